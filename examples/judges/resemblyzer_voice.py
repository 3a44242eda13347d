"""A speaker judge for `myxtts evaluate`: Resemblyzer gives a voice as 256 numbers. Its weights are inside the package.

    python -m venv judges
    judges/bin/pip install torch==2.13.0 'setuptools<81' numpy resemblyzer
    myxtts evaluate --speaker-judge-command "judges/bin/python examples/judges/resemblyzer_voice.py" ...

`answering.py`, beside it, talks with the command.
"""

from collections.abc import Callable

from answering import answer_lines
from resemblyzer import VoiceEncoder, preprocess_wav


def load() -> Callable[[str], str]:
    encoder = VoiceEncoder("cpu", verbose=False)

    def embed(path: str) -> str:
        heard = preprocess_wav(path)
        if not len(heard):
            return "error: it hears no voice in the clip"
        return " ".join(map(str, encoder.embed_utterance(heard).tolist()))

    return embed


if __name__ == "__main__":
    answer_lines(load)
