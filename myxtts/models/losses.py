"""Cross-entropy as a sum and a count, so that parts of a batch can be added before dividing.

Shape suffixes: B batch, L positions, V vocabulary.
"""

from __future__ import annotations

from typing import NamedTuple

import tensorflow as tf

TEXT_WEIGHT = 0.01
AUDIO_WEIGHT = 1.0


class TokenLoss(NamedTuple):
    """Cross-entropy over the counted positions of a batch."""

    total: tf.Tensor
    """Sum over positions, float32."""
    count: tf.Tensor
    """Counted positions, float32."""

    @property
    def mean(self) -> tf.Tensor:
        """Per token; 0 when nothing is counted."""
        return tf.math.divide_no_nan(self.total, self.count)


class GPTLosses(NamedTuple):
    """Losses of one forward pass. Micro-batches and ranks add totals and divide by the global batch's counts:
    the mean of their means is another number."""

    text: TokenLoss
    audio: TokenLoss

    def weigh(self, text_count: tf.Tensor | None = None, audio_count: tf.Tensor | None = None) -> tf.Tensor:
        """The loss to minimise: 0.01 x text + audio, each per token.

        Args:
            text_count: text tokens of the *global* batch when this is a part of it; its own when None.
            audio_count: audio tokens of the global batch, likewise.
        """
        text = self.text if text_count is None else TokenLoss(self.text.total, text_count)
        audio = self.audio if audio_count is None else TokenLoss(self.audio.total, audio_count)
        return TEXT_WEIGHT * text.mean + AUDIO_WEIGHT * audio.mean


def measure_cross_entropy(
    logits_BLV: tf.Tensor, targets_BL: tf.Tensor, counted_BL: tf.Tensor, *, smoothing: float = 0.0
) -> TokenLoss:
    """Cross-entropy of the counted positions, in float32.

    Args:
        smoothing: share of the target's probability spread over the whole vocabulary.
    """
    logits = tf.cast(logits_BLV, tf.float32)
    losses_BL = tf.nn.sparse_softmax_cross_entropy_with_logits(targets_BL, logits)
    if smoothing:
        spread_BL = tf.reduce_logsumexp(logits, -1) - tf.reduce_mean(logits, -1)
        losses_BL = (1 - smoothing) * losses_BL + smoothing * spread_BL
    counted = tf.cast(counted_BL, tf.float32)
    return TokenLoss(tf.reduce_sum(losses_BL * counted), tf.reduce_sum(counted))
