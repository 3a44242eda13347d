"""Random numbers that are pure functions of integers, the same in every version of every library."""

from __future__ import annotations

import hashlib

import numpy as np
from numpy.typing import NDArray

_GOLDEN = np.uint64(0x9E3779B97F4A7C15)
_MULTIPLIERS = np.uint64(0xBF58476D1CE4E5B9), np.uint64(0x94D049BB133111EB)
_SHIFTS = np.uint64(30), np.uint64(27), np.uint64(31)
_MASK = (1 << 64) - 1


def mix64(values: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """SplitMix64's output function: a bijection of 64-bit words in which every input bit reaches every output bit."""
    values = (values ^ (values >> _SHIFTS[0])) * _MULTIPLIERS[0]
    values = (values ^ (values >> _SHIFTS[1])) * _MULTIPLIERS[1]
    return values ^ (values >> _SHIFTS[2])


def hash_words(*words: int | NDArray[np.integer]) -> NDArray[np.uint64]:
    """One 64-bit hash per element of the words' common shape, at least one-dimensional. The order of words matters."""
    state = np.zeros(1, np.uint64)
    for word in words:
        # Arrays, not scalars: only arrays wrap around without a warning.
        value = np.array([word & _MASK], np.uint64) if isinstance(word, int) else word.astype(np.uint64)
        state = mix64((state ^ value) + _GOLDEN)
    return state


def digest64(content: bytes | bytearray) -> int:
    """A signed 64-bit key of some bytes."""
    return int.from_bytes(hashlib.blake2b(content, digest_size=8).digest(), "little", signed=True)
