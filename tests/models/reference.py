"""The reference's arrays: those that travel with the project, and the rest where the shared fixtures are."""

from __future__ import annotations

import json
from functools import lru_cache
from typing import Any

import numpy as np
import tensorflow as tf

from myxtts.models.sizes import DecoderSize, DVAESize, GPTSize, SpeakerSize
from myxtts.units import SAMPLES_PER_CODE
from tests.support.shared_files import ASSETS, find_parity

GPT_SIZE = GPTSize(
    layers=3,
    width=128,
    heads=4,
    text_tokens=100,
    audio_codes=64,
    max_text_tokens=60,
    max_audio_tokens=80,
    start_text_token=37,
)
DVAE_SIZE = DVAESize(width=32, codes=64)
DECODER_SIZE = DecoderSize(latent_width=128, width=64, speaker_width=64)
SPEAKER_SIZE = SpeakerSize(width=64, filters=(16, 32, 48, 64), blocks=(2, 2, 2, 1))
WHOLE_GPT_SIZE = GPTSize(
    layers=2,
    width=64,
    heads=4,
    text_tokens=188,
    audio_codes=64,
    max_text_tokens=120,
    max_audio_tokens=60,
    start_text_token=170,
)
WHOLE_DECODER_SIZE = DecoderSize(latent_width=64, width=64, speaker_width=64)


@lru_cache(maxsize=4)
def load_case(case: str) -> dict[str, np.ndarray]:
    """The arrays of a case, from the project itself if it has them."""
    path = ASSETS / f"models_{case}.npz"
    if not path.exists():
        path = find_parity(f"{case}.npz")
    with np.load(path) as arrays:
        return dict(arrays)


def load_state(case: str, prefix: str = "") -> dict[str, np.ndarray]:
    """The weights of a case whose checkpoint names start with a prefix, without it."""
    start = "state/" + prefix
    return {key.removeprefix(start): value for key, value in load_case(case).items() if key.startswith(start)}


def load_facts(case: str) -> dict[str, Any]:
    """What a case says besides its arrays, such as the norm of every gradient."""
    path = ASSETS / f"models_{case}.json"
    if not path.exists():
        path = find_parity(f"{case}.json")
    return dict(json.loads(path.read_text()))


def count_codes(samples_B: Any) -> Any:
    """Codes of clips by their samples at 22.05 kHz."""
    return -(-samples_B // SAMPLES_PER_CODE)


def span_as_reference(spans_B2: np.ndarray) -> tf.Tensor:
    """Spans whose blanking repeats two slips of the reference: it counts 256 samples to a code, and blanks the last row alone."""
    spans = np.zeros_like(spans_B2)
    spans[-1] = spans_B2[-1] * (SAMPLES_PER_CODE // 256)
    return tf.constant(spans)


def channels_last(array: np.ndarray) -> tf.Tensor:
    """The reference's (B, channels, time) as (B, time, channels)."""
    return tf.constant(array.swapaxes(1, 2))


def differ(ours: Any, theirs: np.ndarray) -> float:
    """The largest difference; shapes must agree."""
    ours = np.asarray(ours)
    assert ours.shape == theirs.shape
    return float(np.max(np.abs(ours - theirs)))
