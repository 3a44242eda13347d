"""Sentences side by side in the GPT: each is read when it comes, and then every step gives the logits of one more code of each.

`RowDecoder` is all that a batch (`batching.py`) asks of an engine. TensorFlow's is here; another one, such as an int8 decoder that
keeps its cache in NumPy, takes its place by having the same members.

Shapes: B rows, P prompt vectors, S old positions, R new ones, V codes, C width, H heads, D channels of a head.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

import numpy as np
import tensorflow as tf
from numpy.typing import NDArray

from myxtts.inference.speech import choose_bucket, choose_rows
from myxtts.models.attention import HIDDEN
from myxtts.models.decoding import read_prefix
from myxtts.models.gpt import GPT
from myxtts.models.layers import measure, write_at

RECENT = 32
"""New positions that are kept apart from the old ones. A step copies what it writes to: these, and not the whole cache."""
LENGTHS = 64
"""Old positions are filled up to a multiple of it, so that steps have few shapes."""


class HeardRows(NamedTuple):
    """What the network says after a position, of some rows."""

    logits_BV: NDArray[np.float32]
    """Of the next code; the audio tokens, START and STOP included."""
    latents_BC: NDArray[np.float32]
    """The state behind them: what the waveform decoder reads."""


class RowDecoder(Protocol):
    """The network of an engine with places for `most_rows` sentences, told apart by the number of their place.

    It computes logits and nothing else: codes are drawn by the batch, so that they are the same whoever computes. What a row says must
    not depend on other rows, but for rounding. Call it from one thread.
    """

    most_rows: int

    def start(self, row: int, prompt_PC: NDArray[np.float32], ids: Sequence[int]) -> HeardRows:
        """Reads a voice's prompt and a text, without START and STOP, into a free place: what it gives is of one row."""

    def step(self, rows: Sequence[int], codes: Sequence[int]) -> HeardRows:
        """Reads the last code of each of these rows; other rows that were started stay as they are."""

    def release(self, row: int) -> None:
        """Frees a place, at once and whatever its row was doing. Where none was started, nothing is to be done."""


@dataclass(eq=False)
class _Row:
    columns: list[int]
    """Where its keys and values lie among the old positions and, counted on, the new ones."""
    fresh: list[Any] | None = None
    """They themselves, (1, H, S, D) each, until they get a place beside the others'."""
    codes: int = 0
    """That were read so far."""


class TensorRows:
    """The rows of a GPT in TensorFlow, computed together with 1, 2, 4 or 8 places."""

    def __init__(self, gpt: GPT, most_rows: int):
        self._gpt, self.most_rows = gpt, most_rows
        self._rows: dict[int, _Row] = {}
        self._places: list[_Row | None] = []
        self._old: list[Any] = []
        self._new: list[Any] = []
        self._bias_BS = self._bias_BR = np.zeros((0, 0), np.float32)
        self._written = RECENT
        size = gpt.size
        cache = tf.TensorSpec([None, size.heads, None, size.width // size.heads], gpt.compute_dtype)
        caches, floats, wholes = (
            [cache] * (2 * size.layers),
            tf.TensorSpec([None, None]),
            tf.TensorSpec([None], tf.int32),
        )
        self._read_text = tf.function(
            self._trace_text,
            input_signature=[tf.TensorSpec([1, None, size.width]), tf.TensorSpec([1, None], tf.int32), wholes],
            autograph=False,
        )
        self._read_codes = tf.function(
            self._trace_codes,
            input_signature=[caches, caches, floats, floats, wholes, wholes, tf.TensorSpec([], tf.int32)],
            autograph=False,
        )

    @property
    def traces(self) -> int:
        """How often anything was compiled."""
        return sum(each.experimental_get_tracing_count() for each in (self._read_text, self._read_codes))

    def start(self, row: int, prompt_PC: NDArray[np.float32], ids: Sequence[int]) -> HeardRows:
        size = self._gpt.size
        ids_T = np.full(choose_bucket(len(ids), size.max_text_tokens), size.stop_text_token, np.int32)
        ids_T[: len(ids)] = ids
        read = self._read_text(tf.constant(prompt_PC[None]), tf.constant(ids_T[None]), tf.constant([len(ids)]))
        logits_1V, latents_1C, caches = read
        self._rows[row] = _Row(list(range(caches[0].shape[2])), caches)
        return HeardRows(logits_1V.numpy(), latents_1C.numpy())

    def step(self, rows: Sequence[int], codes: Sequence[int]) -> HeardRows:
        read = [self._rows[row] for row in rows]
        if self._written == RECENT or any(row.fresh for row in read) or 2 * len(self._rows) <= len(self._places):
            self._arrange()
        places = [self._places.index(row) for row in read]
        codes_B, positions_B = np.zeros((2, len(self._places)), np.int32)
        # The token START has position 0.
        codes_B[places], positions_B[places] = codes, [row.codes + 1 for row in read]
        self._bias_BR[places, self._written] = 0.0
        logits_BV, latents_BC, self._new = self._read_codes(
            self._old,
            self._new,
            tf.constant(self._bias_BS),
            tf.constant(self._bias_BR),
            tf.constant(codes_B),
            tf.constant(positions_B),
            tf.constant(self._written),
        )
        for row in read:
            row.columns.append(self._bias_BS.shape[1] + self._written)
            row.codes += 1
        self._written += 1
        return HeardRows(logits_BV.numpy()[places], latents_BC.numpy()[places])

    def release(self, row: int) -> None:
        gone = self._rows.pop(row, None)
        self._places = [None if row is gone else row for row in self._places]

    def _arrange(self) -> None:
        """Puts the keys and values of all rows side by side, each row's without gaps, and makes room for new ones."""
        fresh = [row for row in self._rows.values() if row.fresh]
        kept = [row for row in self._rows.values() if not row.fresh]
        rows = [*kept, *fresh]
        count, longest = choose_rows(len(rows)), max(len(row.columns) for row in rows)
        length = -(-longest // LENGTHS) * LENGTHS
        places = [self._places.index(row) for row in kept]
        columns_BS = np.array([row.columns + [0] * (length - len(row.columns)) for row in kept], np.int32)
        arranged: list[Any] = []
        for index in range(2 * self._gpt.size.layers):
            parts = [_lengthen(row.fresh[index], length) for row in fresh if row.fresh]
            if kept:
                whole = tf.gather(tf.concat([self._old[index], self._new[index]], 2), places)
                parts.insert(0, tf.gather(whole, columns_BS, axis=2, batch_dims=1))
            _, heads, _, width = parts[0].shape
            arranged.append(tf.concat([*parts, tf.zeros([count - len(rows), heads, length, width], parts[0].dtype)], 0))
        self._old, self._new = arranged, [tf.zeros([count, heads, RECENT, width], arranged[0].dtype)] * len(arranged)
        self._bias_BS, self._bias_BR = (np.full((count, each), HIDDEN, np.float32) for each in (length, RECENT))
        for place, row in enumerate(rows):
            row.fresh, row.columns = None, list(range(len(row.columns)))
            self._bias_BS[place, : len(row.columns)] = 0.0
        self._places, self._written = [*rows, *[None] * (count - len(rows))], 0

    def _trace_text(self, prompt_1PC: Any, ids_1T: Any, lengths_1: Any) -> tuple[Any, Any, list[Any]]:
        gpt = self._gpt
        text, start_11 = gpt.frame_prefix_text(ids_1T, lengths_1), tf.fill([1, 1], gpt.size.start_audio_token)
        x_1SC = tf.concat([gpt.embed_prefix(prompt_1PC, text.inputs_BL), gpt.embed_audio(start_11)], 1)
        others = [tf.ones([1, measure(each)[1]], tf.bool) for each in (prompt_1PC, start_11)]
        visible_1S = tf.concat([others[0], text.visible_BL, others[1]], 1)
        hidden_1C, keys, values = read_prefix(gpt, x_1SC, visible_1S)
        # What only fills the text up is left out.
        columns_S = tf.where(visible_1S[0])[:, 0]
        caches = [tf.gather(each, columns_S, axis=2) for pair in zip(keys, values, strict=True) for each in pair]
        return *self._finish(hidden_1C), caches

    def _trace_codes(
        self, old: list[Any], new: list[Any], bias_BS: Any, bias_BR: Any, codes_B: Any, positions_B: Any, place: Any
    ) -> tuple[Any, Any, list[Any]]:
        gpt, written = self._gpt, list[Any]()
        x_BC, length = gpt.embed_code(codes_B, positions_B), tf.shape(bias_BS)[1]
        bias_BT = tf.concat([bias_BS, bias_BR], 1)[:, None, None]
        for index, block in enumerate(gpt.blocks):
            q_BH1D, *fresh = block.make_qkv(x_BC, measure(x_BC)[0])
            (k_BHSD, v_BHSD), pair = old[2 * index : 2 * index + 2], new[2 * index : 2 * index + 2]
            k_BHRD, v_BHRD = (write_at(cache, each, place, axis=2) for cache, each in zip(pair, fresh, strict=True))
            q_BH1D *= 1 / math.sqrt(k_BHRD.shape[-1])
            scores_BH1T = tf.concat([tf.matmul(q_BH1D, each, transpose_b=True) for each in (k_BHSD, k_BHRD)], -1)
            weights_BH1T = tf.cast(tf.nn.softmax(tf.cast(scores_BH1T, tf.float32) + bias_BT), q_BH1D.dtype)
            y_BH1D = tf.matmul(weights_BH1T[..., :length], v_BHSD) + tf.matmul(weights_BH1T[..., length:], v_BHRD)
            x_BC = block.finish(x_BC, tf.reshape(y_BH1D, [-1, gpt.size.width]))
            written += [k_BHRD, v_BHRD]
        return *self._finish(gpt.finish(x_BC)), written

    def _finish(self, hidden_BC: Any) -> tuple[Any, Any]:
        return tf.cast(self._gpt.audio_head(hidden_BC), tf.float32), tf.cast(hidden_BC, tf.float32)


def _lengthen(cache_1HSD: Any, length: int) -> Any:
    return tf.pad(cache_1HSD, [[0, 0], [0, 0], [0, length - cache_1HSD.shape[2]], [0, 0]])
