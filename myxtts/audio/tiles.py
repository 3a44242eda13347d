"""Matrix products whose bits do not depend on what else is in the batch.

A plain `tf.matmul` picks its blocking by the number of rows, so a frame's mel changes in the last bits when a clip gets
neighbours or more padding (measured on CPU, with oneDNN and without). Cutting the rows into tiles of a fixed size makes
every tile the same product, wherever it stands. The price is about a tenth of the mel's time.

Shapes: B clips, T rows (frames or blocks), K inputs, N outputs.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import tensorflow as tf
from numpy.typing import NDArray

TILE_ROWS = 64


def multiply_in_tiles(x_BTK: Any, matrix_KN: NDArray[np.float32]) -> Any:
    """`x @ matrix` (B, T, N), each row a function of that row and its place in T alone."""
    inputs, outputs = matrix_KN.shape
    batch, rows = read_size(x_BTK, 0), read_size(x_BTK, 1)
    padded = tf.pad(x_BTK, [[0, 0], [0, -rows % TILE_ROWS], [0, 0]])
    tiles = tf.reshape(padded, (-1, TILE_ROWS, inputs))
    product = tf.matmul(tiles, matrix_KN[None])
    return tf.reshape(product, (batch, -1, outputs))[:, :rows]


def read_size(tensor: Any, axis: int) -> Any:
    """The size of an axis: a number where tracing knows it, else a scalar tensor."""
    size = tensor.shape[axis]
    return tf.shape(tensor)[axis] if size is None else size


def mark_positions(lengths_B: Any, size: Any) -> Any:
    """(B, size) booleans: true at positions before each length."""
    return tf.range(size)[None, :] < tf.cast(lengths_B, tf.int32)[:, None]
