"""A speaker judge for `myxtts evaluate`: Resemblyzer gives a voice as 256 numbers. Its weights are inside the package.

    python -m venv judges
    judges/bin/pip install torch==2.13.0 'setuptools<81' numpy resemblyzer
    myxtts evaluate --speaker-judge-command "judges/bin/python examples/judges/resemblyzer_voice.py" ...

It says a line when it is ready; then each line that comes names a wav and, behind a tab, its language, and is answered by a line.
"""

import os
import sys

from resemblyzer import VoiceEncoder, preprocess_wav


def embed(encoder: VoiceEncoder, path: str) -> str:
    heard = preprocess_wav(path)
    if not len(heard):
        return "error: it hears no voice in the clip"
    return " ".join(map(str, encoder.embed_utterance(heard).tolist()))


def main() -> None:
    # Packages print to standard output, which belongs to the answers.
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    encoder = VoiceEncoder("cpu", verbose=False)
    print("ready", file=answers, flush=True)
    for line in sys.stdin:
        try:
            answer = embed(encoder, line.split("\t")[0])
        except Exception as error:  # noqa: BLE001  whatever a package raises is about this clip, and is told
            answer = f"error: {' '.join(str(error).split())}"
        print(answer, file=answers, flush=True)


if __name__ == "__main__":
    main()
