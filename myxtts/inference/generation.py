"""Token ids and voices -> codes and latents, compiled once for each of a few shapes.

Shapes: B rows, T text tokens, M codes, P prompt vectors, C width.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import tensorflow as tf
from numpy.typing import NDArray

from myxtts.inference.following import Following
from myxtts.inference.speech import SpeechSettings, choose_bucket, choose_rows
from myxtts.inference.voices import Voice
from myxtts.models.decoding import Decoding, Greedy, Sampling, continue_decoding, specify_decoding, start_decoding
from myxtts.models.gpt import GPT
from myxtts.models.sizes import PROMPT_LATENTS, GPTSize

PUBLISHED_TEMPERATURE = 0.75
PUBLISHED_PENALTY = 5.0
"""For repetitions, of the published v2 model."""
SCRATCH_PENALTY = 1.0
"""Of a model trained from scratch here. It says the same code many times in a word that it knows by heart: with the published
penalty a recogniser misunderstood 60 % of its words, without one 17 %."""

CACHE_BYTES = 1 << 30
"""What the keys and values of a batch may take."""
MOST_ROWS = 8
"""Beyond this, rows that have stopped wait too long for those that have not."""

_FLOAT_BYTES = 4

Inputs = tuple[Any, Any, Any, Any]
"""Prompts (B, P, C), texts (B, T), their lengths (B) and keys (B, 2)."""


@dataclass(frozen=True)
class Row:
    """What one row of a batch is to say."""

    ids: tuple[int, ...]
    voice: Voice
    key: tuple[int, int]
    """Draws depend on it alone."""


@dataclass(frozen=True)
class GeneratedRow:
    """Codes and latents of one row so far."""

    codes_M: NDArray[np.int32]
    """The stop token included, where there is one."""
    latents_MC: NDArray[np.float32]
    stopped: bool
    is_last: bool = True
    following: Following | None = None
    """How it went through its text, once that was looked at."""

    @property
    def is_doubted(self) -> bool:
        return self.following is not None and bool(self.following.doubts)


class Generator(Protocol):
    """Says texts in codes: all that speaking asks of whatever decodes, TensorFlow or another engine."""

    most_rows: int
    """The most rows at a time."""

    @property
    def traces(self) -> int:
        """How often anything was compiled."""

    def generate(self, rows: Sequence[Row], settings: SpeechSettings) -> list[GeneratedRow]:
        """What each row says, all rows at once."""

    def stream(self, row: Row, settings: SpeechSettings, codes: int) -> Iterator[GeneratedRow]:
        """The same for one row, after every so many codes."""


class CodeGenerator:
    """The generator in TensorFlow, for so many rows at a time that their cache stays within `CACHE_BYTES`."""

    def __init__(self, gpt: GPT, *, usual_penalty: float = PUBLISHED_PENALTY):
        self._gpt = gpt
        self._usual_penalty = usual_penalty
        self.most_rows = count_rows(gpt.size)
        # One function for each shape: TensorFlow warns of a function that is compiled again, and would be right.
        self._compiled: dict[tuple[Any, ...], Any] = {}

    @property
    def traces(self) -> int:
        return sum(function.experimental_get_tracing_count() for function in self._compiled.values())

    def generate(self, rows: Sequence[Row], settings: SpeechSettings) -> list[GeneratedRow]:
        inputs = self._pad(rows)
        rule = make_rule(settings, self._usual_penalty)
        say = self._compile(self._trace_all, inputs, rule)
        said = say(inputs, rule, tf.constant(limit_codes(settings, self._gpt.size)))
        codes_BM, latents_BMC, lengths_B, stopped_B = (tensor.numpy() for tensor in said)
        return [
            GeneratedRow(codes_BM[row, :length].astype(np.int32), latents_BMC[row, :length], bool(stopped_B[row]))
            for row, length in enumerate(lengths_B[: len(rows)])
        ]

    def stream(self, row: Row, settings: SpeechSettings, codes: int) -> Iterator[GeneratedRow]:
        rule, limit = make_rule(settings, self._usual_penalty), limit_codes(settings, self._gpt.size)
        inputs = self._pad([row])
        decoding = self._compile(self._trace_start, inputs, rule)(inputs, rule)
        while True:
            fresh = min(codes, limit) - 1 if int(decoding.count) == 1 else min(codes, limit - int(decoding.count))
            decoding = self._compile_rest(decoding, rule)(decoding, rule, tf.constant(fresh))
            count, stopped = int(decoding.count), bool(decoding.stopped_B[0])
            is_last = stopped or count >= limit
            codes_M = decoding.codes_BM[0, :count].numpy().astype(np.int32)
            yield GeneratedRow(codes_M, decoding.latents_BMC[0, :count].numpy(), stopped, is_last)
            if is_last:
                return

    def _pad(self, rows: Sequence[Row]) -> Inputs:
        # Rows that fill up repeat the last one, so that they stop when it does.
        filled = [*rows, *[rows[-1]] * (choose_rows(len(rows)) - len(rows))]
        bucket = choose_bucket(max(len(row.ids) for row in rows), self._gpt.size.max_text_tokens)
        text_BT = np.full((len(filled), bucket), self._gpt.size.stop_text_token, np.int32)
        for index, row in enumerate(filled):
            text_BT[index, : len(row.ids)] = row.ids
        return (
            tf.constant(np.stack([row.voice.prompt_PC for row in filled])),
            tf.constant(text_BT),
            tf.constant([len(row.ids) for row in filled], tf.int32),
            tf.constant([row.key for row in filled], tf.int32),
        )

    def _trace_all(self, inputs: Inputs, rule: Sampling | Greedy, limit: Any) -> tuple[Any, Any, Any, Any]:
        said = continue_decoding(self._gpt, self._trace_start(inputs, rule), rule=rule, codes=limit - 1)
        return said.codes_BM, said.latents_BMC, said.lengths_B, said.stopped_B

    def _trace_start(self, inputs: Inputs, rule: Sampling | Greedy) -> Decoding:
        prompt_BPC, text_BT, lengths_B, keys_B2 = inputs
        return start_decoding(
            self._gpt,
            prompt_BPC,
            text_BT,
            rule=rule,
            max_codes=self._gpt.size.max_new_codes,
            text_lengths_B=lengths_B,
            seeds_B2=keys_B2,
        )

    def _compile(self, function: Callable[..., Any], inputs: Inputs, rule: Sampling | Greedy) -> Any:
        key = (function.__name__, type(rule), *(tuple(each.shape) for each in inputs))
        if key not in self._compiled:
            self._compiled[key] = tf.function(function, autograph=False)
        return self._compiled[key]

    def _compile_rest(self, decoding: Decoding, rule: Sampling | Greedy) -> Any:
        """A function for the rest of a generation, however long it and its text are."""
        key = ("rest", type(rule))
        if key not in self._compiled:
            specs = tf.nest.map_structure(lambda tensor: tf.TensorSpec(tensor.shape, tensor.dtype), rule)
            self._compiled[key] = tf.function(
                lambda decoding, rule, codes: continue_decoding(self._gpt, decoding, rule=rule, codes=codes),
                input_signature=[specify_decoding(decoding), specs, tf.TensorSpec([], tf.int32)],
                autograph=False,
            )
        return self._compiled[key]


def make_rule(settings: SpeechSettings, usual_penalty: float = PUBLISHED_PENALTY) -> Sampling | Greedy:
    """How codes are chosen, as tensors: other numbers are no reason to compile again."""
    asked = settings.repetition_penalty
    penalty = tf.constant(usual_penalty if asked is None else asked, tf.float32)
    if settings.greedy:
        return Greedy(penalty)
    return Sampling(
        temperature=tf.constant(choose_temperature(settings), tf.float32),
        top_k=tf.constant(settings.top_k, tf.int32),
        top_p=tf.constant(settings.top_p, tf.float32),
        repetition_penalty=penalty,
    )


def limit_codes(settings: SpeechSettings, size: GPTSize) -> int:
    """The most codes of a piece."""
    return size.max_new_codes if settings.max_codes is None else min(settings.max_codes, size.max_new_codes)


def choose_temperature(settings: SpeechSettings) -> float:
    """The temperature to draw at: that of the published model unless another is given."""
    return PUBLISHED_TEMPERATURE if settings.temperature is None else settings.temperature


def choose_penalty(*, is_published: bool) -> float:
    """The penalty for repetitions that suits a model: one that descends from the published one, or one from scratch."""
    return PUBLISHED_PENALTY if is_published else SCRATCH_PENALTY


def count_rows(size: GPTSize, cache_bytes: int = CACHE_BYTES) -> int:
    """Rows whose keys and values fit into so many bytes: a power of two, at least 1."""
    positions = PROMPT_LATENTS + size.text_positions + size.audio_positions
    row_bytes = 2 * size.layers * positions * size.width * _FLOAT_BYTES
    fitting = max(1, min(MOST_ROWS, cache_bytes // row_bytes))
    return 1 << (fitting.bit_length() - 1)
