"""A recogniser for `myxtts evaluate`: Moonshine writes down the English that it hears. Its weights are inside the package.

    python -m venv judges
    judges/bin/pip install numpy moonshine-voice==0.1.0
    myxtts evaluate --recogniser-command "judges/bin/python examples/judges/moonshine.py" ...

It says a line when it is ready; then each line that comes names a wav and, behind a tab, its language, and is answered by a line.
"""

import os
import sys
import wave

import numpy
from moonshine_voice import ModelArch, get_model_path
from moonshine_voice.transcriber import Transcriber


def transcribe(transcriber: Transcriber, path: str) -> str:
    with wave.open(path, "rb") as file:
        samples = numpy.frombuffer(file.readframes(file.getnframes()), "<i2") / 32768.0
        lines = transcriber.transcribe_without_streaming(samples.tolist(), file.getframerate()).lines
    return " ".join(line.text for line in lines)


def main() -> None:
    # Packages print to standard output, which belongs to the answers.
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    transcriber = Transcriber(str(get_model_path("tiny-en")), ModelArch.TINY)
    print("ready", file=answers, flush=True)
    for line in sys.stdin:
        try:
            answer = transcribe(transcriber, line.split("\t")[0])
        except Exception as error:  # noqa: BLE001  whatever a package raises is about this clip, and is told
            answer = f"error: {error}"
        print(" ".join(answer.split()), file=answers, flush=True)


if __name__ == "__main__":
    main()
