"""A judge in a Python of its own: `python judge_worker.py NAME`.

Needs nothing of MyXTTS, so any Python that has the judge's package can run it: such packages bring frameworks that do not
belong beside TensorFlow. Each line of JSON on standard input names a wav (16 kHz, mono, 16 bit); each line on standard
output answers it with `answer`, a text or numbers, or with `error`. The first line says `ready`, or which package is `missing`.
"""

from __future__ import annotations

import json
import os
import sys
import wave
from collections.abc import Callable
from importlib import import_module
from typing import IO, Any

Answer = Callable[[str], dict[str, Any]]


def open_moonshine() -> Answer:
    """The small English recogniser whose weights are inside the package."""
    moonshine = import_module("moonshine_voice")
    module = import_module("moonshine_voice.transcriber")
    transcriber = module.Transcriber(str(moonshine.get_model_path("tiny-en")), moonshine.ModelArch.TINY)

    def answer(path: str) -> dict[str, Any]:
        samples, rate_hz = read_wav(path)
        lines = transcriber.transcribe_without_streaming(samples.tolist(), rate_hz).lines
        return {"answer": " ".join(line.text for line in lines)}

    return answer


def open_resemblyzer() -> Answer:
    """A voice as a vector of 256 numbers; its weights are inside the package."""
    resemblyzer = import_module("resemblyzer")
    encoder = resemblyzer.VoiceEncoder("cpu", verbose=False)

    def answer(path: str) -> dict[str, Any]:
        samples, rate_hz = read_wav(path)
        heard = resemblyzer.preprocess_wav(samples, rate_hz)
        if not len(heard):
            return {"error": "it hears no voice in the clip"}
        return {"answer": encoder.embed_utterance(heard).tolist()}

    return answer


JUDGES = {"moonshine": open_moonshine, "resemblyzer": open_resemblyzer}


def read_wav(path: str) -> tuple[Any, int]:
    """Samples from -1 to 1, and their rate in Hz."""
    import numpy

    with wave.open(path, "rb") as file:
        frames = file.readframes(file.getnframes())
        return numpy.frombuffer(frames, "<i2").astype("float32") / 32768.0, file.getframerate()


def serve(answer: Answer, questions: IO[str], answers: IO[str]) -> None:
    """Answers until nobody asks any more."""
    for line in questions:
        try:
            reply = answer(json.loads(line)["wav"])
        except Exception as error:  # noqa: BLE001  whatever a package raises is about this clip, and is told
            reply = {"error": f"{type(error).__name__}: {error}"}
        answers.write(json.dumps(reply) + "\n")
        answers.flush()


def main() -> int:
    # Packages print to standard output, which belongs to the answers.
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    try:
        answer = JUDGES[sys.argv[1]]()
    except ImportError as error:
        answers.write(json.dumps({"missing": error.name or str(error)}) + "\n")
        return 0
    answers.write(json.dumps({"ready": sys.argv[1]}) + "\n")
    answers.flush()
    serve(answer, sys.stdin, answers)
    return 0


if __name__ == "__main__":
    sys.exit(main())
