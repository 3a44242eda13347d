"""Sentences side by side on the engine for CPUs, and which engine decodes: that one, or TensorFlow."""

from __future__ import annotations

import importlib.util
import itertools
from collections.abc import Iterator, Sequence
from typing import Literal

import numpy as np
import tensorflow as tf
from numpy.typing import NDArray

from myxtts.devices.runtime import is_on_cpu
from myxtts.inference.batching import SentenceBatch
from myxtts.inference.engine import DecodingEngine, EngineError, KeptFile, Step, quantise, read_weights
from myxtts.inference.generation import CodeGenerator, GeneratedRow, Generator, Row, count_rows
from myxtts.inference.rows import HeardRows, RowDecoder, TensorRows
from myxtts.inference.speech import SpeechSettings
from myxtts.models.gpt import GPT

EngineChoice = Literal["auto", "float32", "int8"]
"""`auto` is int8 where it can be had and a CPU speaks."""
PACKAGES = ("onnxruntime", "onnx")
_GPU_SPEAKS = "a GPU speaks here."


class EngineRows:
    """The rows of a GPT on an engine, a `RowDecoder`. They lie side by side in the cache: where one goes, the last takes its place."""

    def __init__(self, engine: DecodingEngine, most_rows: int):
        self.most_rows, self._engine = most_rows, engine
        self._cache = engine.open_cache(most_rows)
        self._rows: list[int] = []
        """The caller's number of each."""
        self._lengths_B = np.zeros(most_rows, np.int32)
        """Positions of each that were read, and codes among them."""
        self._codes_B = np.zeros(most_rows, np.int32)
        self._steps: dict[int, Step] = {}
        """By how many rows they read."""
        tables = engine.gpt.audio_embedding, engine.gpt.audio_positions
        self._tokens_VC, self._positions_MC = (np.asarray(each.value, np.float32) for each in tables)

    def start(self, row: int, prompt_PC: NDArray[np.float32], ids: Sequence[int]) -> HeardRows:
        index = len(self._rows)
        x_1QC = self._engine.embed(tf.constant(prompt_PC[None]), tf.constant([ids], tf.int32)).numpy()
        length = x_1QC.shape[1]
        heard = Step(self._engine, self._cache, index, index + 1, length).run(x_1QC, np.array([length - 1]))
        self._rows.append(row)
        self._lengths_B[index], self._codes_B[index] = length, 0
        return heard

    def step(self, rows: Sequence[int], codes: Sequence[int]) -> HeardRows:
        read = [self._rows.index(row) for row in rows]
        count = max(read) + 1
        if count not in self._steps:
            self._steps[count] = Step(self._engine, self._cache, 0, count)
        self._codes_B[read] += 1
        # What others read is written where their next position comes, and forgotten.
        tokens_B = np.zeros(count, np.int32)
        tokens_B[read] = codes
        x_BC = self._tokens_VC[tokens_B] + self._positions_MC[self._codes_B[:count]]
        heard = self._steps[count].run(x_BC[:, None], self._lengths_B[:count])
        self._lengths_B[read] += 1
        return HeardRows(*(each[read] for each in heard))

    def release(self, row: int) -> None:
        if row not in self._rows:
            return
        index, last = self._rows.index(row), len(self._rows) - 1
        moved = self._rows.pop()
        if index != last:
            self._rows[index] = moved
            length = self._lengths_B[index] = self._lengths_B[last]
            self._codes_B[index] = self._codes_B[last]
            self._cache[:, :, index, :, :length] = self._cache[:, :, last, :, :length]


class EngineGenerator:
    """The generator on an engine."""

    traces = 0
    """Nothing is compiled for a shape."""

    def __init__(self, engine: DecodingEngine, *, usual_penalty: float):
        self._engine, self._usual_penalty = engine, usual_penalty
        self.most_rows = count_rows(engine.gpt.size)

    def generate(self, rows: Sequence[Row], settings: SpeechSettings) -> list[GeneratedRow]:
        batch = self._open_batch(len(rows))
        sentences = [batch.add(row, settings, object()) for row in rows]
        while not all(each.is_over for each in sentences):
            batch.step()
        return [each.show() for each in sentences]

    def stream(self, row: Row, settings: SpeechSettings, codes: int) -> Iterator[GeneratedRow]:
        batch = self._open_batch(1)
        for states in batch.follow([row], settings, None, lambda: itertools.count(codes, codes)):
            for state in states:
                if state is None:
                    batch.step()
                else:
                    yield state

    def _open_batch(self, rows: int) -> SentenceBatch:
        return SentenceBatch(EngineRows(self._engine, rows), self._engine.gpt.size, usual_penalty=self._usual_penalty)


def open_decoders(
    gpt: GPT, choice: EngineChoice, *, usual_penalty: float, file: KeptFile | None = None
) -> tuple[Generator, RowDecoder, str]:
    """What decodes: texts at a time, and sentences that come and go; and a line that says which engine that is.

    Raises `EngineError` where int8 was asked for and cannot be had.
    """
    problem = engine = None
    if missing := [name for name in PACKAGES if importlib.util.find_spec(name) is None]:
        problem = (
            f"{missing[0]} is not installed: pip install -c constraints.txt '.[fast]' in the source folder of MyXTTS"
        )
    elif not is_on_cpu():
        problem = _GPU_SPEAKS
    elif choice != "float32":
        engine, problem = _open_engine(gpt, file)
    if choice == "int8" and problem:
        raise EngineError(f"To decode in int8, onnxruntime and a CPU are needed, but {problem}")
    if engine and not problem:
        fast = EngineGenerator(engine, usual_penalty=usual_penalty)
        note = "Engine: int8 by onnxruntime. TensorFlow's is --engine float32."
        return fast, EngineRows(engine, fast.most_rows), note
    note = "Engine: float32 by TensorFlow."
    if choice == "auto" and problem != _GPU_SPEAKS:
        note += f" int8 is several times as fast on a CPU, but {problem}"
    generator = CodeGenerator(gpt, usual_penalty=usual_penalty)
    return generator, TensorRows(gpt, generator.most_rows), note


def _open_engine(gpt: GPT, file: KeptFile | None) -> tuple[DecodingEngine | None, str | None]:
    """The engine, and what is wrong with it; where it cannot be opened, that alone."""
    weights = read_weights(gpt)
    narrow = file.read(weights) if file else quantise(weights)
    try:
        engine = DecodingEngine(gpt, weights | narrow)
        problem = engine.find_problem()
        if problem and file and (mended := file.mend(narrow, weights)):
            engine = DecodingEngine(gpt, weights | mended)
            problem = engine.find_problem()
    except EngineError as error:
        return None, str(error)
    return engine, problem
