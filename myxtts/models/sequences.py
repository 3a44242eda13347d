"""Text and codes -> what the GPT reads, what it must say, what may be seen and what counts.

Shape suffixes: B batch, T text tokens, M codes, L positions of a framed sequence.
"""

from __future__ import annotations

from typing import NamedTuple

import tensorflow as tf

from myxtts.audio.units import SAMPLES_PER_CODE
from myxtts.errors import UserError
from myxtts.models.layers import measure
from myxtts.models.sizes import STOP_CODES, GPTSize


class SequenceTooLongError(UserError):
    """A text, clip or prompt is longer than the model's position tables."""


class Framed(NamedTuple):
    """A sequence with its start and stop tokens."""

    inputs_BL: tf.Tensor
    targets_BL: tf.Tensor
    visible_BL: tf.Tensor
    """Whether a position may be attended to."""
    counted_BL: tf.Tensor
    """Whether a position's target is part of the loss."""


def frame_text(text_BT: tf.Tensor, lengths_B: tf.Tensor, size: GPTSize) -> Framed:
    """Token ids between START and STOP, T + 2 positions.

    What lies in `text_BT` beyond a row's length has no effect. The STOP after a text is a target but, as in the
    reference, hidden from what follows.
    """
    tokens = measure(text_BT)[1]
    check_length("A text", tokens, size.max_text_tokens, "tokens")
    inside_BT = tf.sequence_mask(lengths_B, tokens)
    padded_BT = tf.where(inside_BT, text_BT, tf.cast(size.stop_text_token, text_BT.dtype))
    return _frame(padded_BT, lengths_B + 1, 1, size.start_text_token, size.stop_text_token)


def frame_audio(codes_BM: tf.Tensor, lengths_B: tf.Tensor, size: GPTSize) -> Framed:
    """Codes between START and STOP, M + 5 positions; each row is trained on its codes and four stop tokens.

    What lies in `codes_BM` beyond a row's length has no effect.
    """
    codes = measure(codes_BM)[1]
    check_length("A clip", codes, size.max_audio_tokens - 2, "codes")
    inside_BM = tf.sequence_mask(lengths_B, codes)
    padded_BM = tf.where(inside_BM, codes_BM, tf.cast(size.stop_audio_token, codes_BM.dtype))
    return _frame(padded_BM, lengths_B + STOP_CODES, STOP_CODES, size.start_audio_token, size.stop_audio_token)


def blank_spans(framed: Framed, spans_B2: tf.Tensor) -> Framed:
    """Audio without the targets the prompt was cut from, which the model could copy.

    Args:
        spans_B2: first and last sample (exclusive) of each row's prompt within its own clip.
    """
    bounds_B2 = spans_B2 // SAMPLES_PER_CODE
    places_L = tf.range(measure(framed.targets_BL)[1], dtype=bounds_B2.dtype)[None]
    within_BL = (places_L >= bounds_B2[:, :1]) & (places_L < bounds_B2[:, 1:])
    return framed._replace(counted_BL=framed.counted_BL & ~within_BL)


def check_length(what: str, length: int | tf.Tensor, limit: int, unit: str) -> None:
    """Raises `SequenceTooLongError` for a length known to be beyond the limit."""
    if isinstance(length, int) and length > limit:
        raise SequenceTooLongError(
            f"{what} may have {limit} {unit} at most in this model, but has {length}. Split it, or build the model "
            "with larger limits (max_text_tokens, max_audio_tokens, max_prompt_tokens)."
        )


def _frame(padded_BT: tf.Tensor, visible_B: tf.Tensor, stops: int, start: int, stop: int) -> Framed:
    rows = measure(padded_BT)[0]
    dtype = padded_BT.dtype
    stops_BS = tf.fill([rows, stops], tf.cast(stop, dtype))
    start_B1 = tf.fill([rows, 1], tf.cast(start, dtype))
    inputs_BL = tf.concat([start_B1, padded_BT, stops_BS], 1)
    targets_BL = tf.concat([padded_BT, stops_BS, stops_BS[:, :1]], 1)
    seen_BL = tf.sequence_mask(visible_B, measure(inputs_BL)[1])
    return Framed(inputs_BL, targets_BL, seen_BL, seen_BL)
