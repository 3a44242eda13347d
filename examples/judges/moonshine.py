"""A recogniser for `myxtts evaluate`: Moonshine writes down the English that it hears. Its weights are inside the package.

    python -m venv judges
    judges/bin/pip install numpy moonshine-voice==0.1.0
    myxtts evaluate --recogniser-command "judges/bin/python examples/judges/moonshine.py" ...

`answering.py`, beside it, talks with the command.
"""

import wave
from collections.abc import Callable

import numpy
from answering import answer_lines
from moonshine_voice import ModelArch, get_model_path
from moonshine_voice.transcriber import Transcriber


def load() -> Callable[[str], str]:
    transcriber = Transcriber(str(get_model_path("tiny-en")), ModelArch.TINY)

    def transcribe(path: str) -> str:
        with wave.open(path, "rb") as file:
            samples = numpy.frombuffer(file.readframes(file.getnframes()), "<i2") / 32768.0
            lines = transcriber.transcribe_without_streaming(samples.tolist(), file.getframerate()).lines
        return " ".join(line.text for line in lines)

    return transcribe


if __name__ == "__main__":
    answer_lines(load)
