"""Loss scaling for float16: gradients that would vanish are computed larger and made smaller again.

The scale follows what fits: it is halved when gradients overflow, which skips that update, and doubled when none has
for a while.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import tensorflow as tf

FIRST_SCALE = 2.0**15
LEAST_SCALE = 1.0
CALM_UPDATES = 2000
"""Updates without an overflow before the scale is doubled."""


class LossScale:
    """A scale that adapts. Its state lives where it is made."""

    def __init__(self) -> None:
        self.scale = tf.Variable(FIRST_SCALE, trainable=False, name="loss_scale")
        self._calm = tf.Variable(0, dtype=tf.int64, trainable=False, name="calm_updates")

    def read(self) -> tf.Tensor:
        """What the loss is multiplied by."""
        return tf.convert_to_tensor(self.scale)

    def can_shrink(self) -> tf.Tensor:
        """Whether an overflow may still be the scale's doing, and not the model's."""
        return self.scale > LEAST_SCALE

    def note_success(self) -> None:
        """Gradients were finite."""
        calm = self._calm.assign_add(1)
        is_time = calm >= CALM_UPDATES
        self.scale.assign(tf.where(is_time, self.scale * 2, self.scale))
        self._calm.assign(tf.where(is_time, tf.zeros_like(calm), calm))

    def note_overflow(self) -> None:
        """Gradients were not finite."""
        self.scale.assign(tf.maximum(self.scale / 2, LEAST_SCALE))
        self._calm.assign(0)

    def list_state(self) -> Iterator[tuple[str, Any]]:
        yield "scale", self.scale
        yield "calm_updates", self._calm
