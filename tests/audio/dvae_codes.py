"""A plain DVAE encoder, for following a mel to the codes it becomes."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

PREFIX = "state/dvae."


def encode(arrays: dict[str, NDArray], mel_TM: NDArray) -> NDArray[np.int64]:
    """The codes of one mel."""
    codebook = arrays[f"{PREFIX}codebook.embed"].astype(np.float64)
    distances = -2 * compute_vectors(arrays, mel_TM) @ codebook + np.sum(np.square(codebook), axis=0)
    return np.argmin(distances, axis=1)


def compute_vectors(arrays: dict[str, NDArray], mel_TM: NDArray) -> NDArray[np.float64]:
    """What is looked up in the codebook: one vector per code."""
    hidden = mel_TM.astype(np.float64)
    for layer in ("encoder.0.0", "encoder.1.0"):
        hidden = np.maximum(0, _convolve(arrays, layer, hidden, stride=2))
    for block in (2, 3, 4):
        inner = hidden
        for layer in (0, 2):
            inner = np.maximum(0, _convolve(arrays, f"encoder.{block}.net.{layer}", inner))
        hidden = hidden + _convolve(arrays, f"encoder.{block}.net.4", inner)
    return _convolve(arrays, "encoder.5", hidden)


def _convolve(arrays: dict[str, NDArray], layer: str, x_TC: NDArray, stride: int = 1) -> NDArray:
    weight = arrays[f"{PREFIX}{layer}.weight"].astype(np.float64)
    width = weight.shape[2]
    padded = np.pad(x_TC, ((width // 2, width // 2), (0, 0)))
    windows = np.lib.stride_tricks.sliding_window_view(padded, width, axis=0)[::stride]
    return np.einsum("tcw,ocw->to", windows, weight) + arrays[f"{PREFIX}{layer}.bias"]
