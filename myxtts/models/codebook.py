"""The DVAE's codebook: vectors that follow the encoder by a moving average, not by gradients.

Shape suffixes: B batch, T time, K codes, D length of a vector, N vectors in a row.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import tensorflow as tf

from myxtts.models.layers import Part, measure

DECAY = 0.99
SMOOTHING = 1e-5
DOUBT = 2e-5
"""Share of its length by which a vector of the encoder may be off: more than ten times what was seen."""
ROUNDING = 5e-7


class CodeUsage(NamedTuple):
    """Which vectors fell to which code in one batch. Micro-batches and ranks add theirs."""

    counts_K: tf.Tensor
    sums_KD: tf.Tensor


class Codebook(Part):
    """Vectors by code, and the nearest code of a vector.

    Example:
        >>> book = Codebook(1024, 512)
        >>> book.draw_from(encoder(mel), seed_2)       # a fresh codebook: a random one collapses to few codes
        >>> codes = book.find_nearest(encoder(mel))
        >>> book.update(book.measure_usage(encoder(mel), codes))
        >>> book.revive(encoder(mel), seed_2)          # now and then
    """

    def __init__(self, codes: int, width: int, *, dtype: Any = "float32"):
        super().__init__(dtype=dtype)
        self.codes, self.width = codes, width
        self.vectors = self.add_variable("vectors", (codes, width), trainable=False)
        self.cluster_size = self.add_variable("cluster_size", (codes,), trainable=False)
        self.vector_sums = self.add_variable("vector_sums", (codes, width), trainable=False)

    def find_nearest(self, z_BTD: tf.Tensor) -> tf.Tensor:
        """The code (B, T) of each vector, by squared distance in float32, int64."""
        return tf.reshape(tf.argmin(self._measure_distances(z_BTD), -1), measure(z_BTD)[:-1])

    def find_nearest_surely(self, z_BTD: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        """The code of each vector, and whether it is the nearest by more than rounding, here or in the encoder, can
        have moved it."""
        distances_NK = self._measure_distances(z_BTD)
        nearness_N2, codes_N2 = tf.math.top_k(-distances_NK, 2)
        longest = tf.reduce_max(tf.norm(tf.cast(self.vectors.value, tf.float32), axis=-1))
        lengths_N = tf.norm(tf.reshape(tf.cast(z_BTD, tf.float32), [-1, self.width]), axis=-1)
        # The first part is of the vectors' errors, the second of the subtraction's.
        error_N = DOUBT * lengths_N * longest + ROUNDING * tf.reduce_max(tf.abs(distances_NK), -1)
        is_sure_N = nearness_N2[:, 0] - nearness_N2[:, 1] > error_N
        shape = measure(z_BTD)[:-1]
        return tf.reshape(tf.cast(codes_N2[:, 0], tf.int64), shape), tf.reshape(is_sure_N, shape)

    def _measure_distances(self, z_BTD: tf.Tensor) -> tf.Tensor:
        vectors_KD = tf.cast(self.vectors.value, tf.float32)
        z_ND = tf.reshape(tf.cast(z_BTD, tf.float32), [-1, self.width])
        # Less the vector's own square, which is the same for all codes and only costs digits.
        return tf.reduce_sum(tf.square(vectors_KD), -1) - 2 * tf.matmul(z_ND, vectors_KD, transpose_b=True)

    def look_up(self, codes_BT: tf.Tensor) -> tf.Tensor:
        """The vectors (B, T, D) of codes, float32, without gradient."""
        return tf.gather(tf.stop_gradient(tf.convert_to_tensor(self.vectors.value)), codes_BT)

    def measure_usage(self, z_BTD: tf.Tensor, codes_BT: tf.Tensor, counted_BT: tf.Tensor | None = None) -> CodeUsage:
        """How often each code was taken and what was taken to it; `counted` leaves padding out."""
        z_ND = tf.reshape(tf.stop_gradient(tf.cast(z_BTD, tf.float32)), [-1, self.width])
        codes_N = tf.reshape(codes_BT, [-1])
        weights_N = (
            tf.ones_like(z_ND[:, 0]) if counted_BT is None else tf.reshape(tf.cast(counted_BT, tf.float32), [-1])
        )
        return CodeUsage(
            tf.math.unsorted_segment_sum(weights_N, codes_N, self.codes),
            tf.math.unsorted_segment_sum(z_ND * weights_N[:, None], codes_N, self.codes),
        )

    def update(self, usage: CodeUsage) -> None:
        """Moves the vectors towards what was taken to them. Apart from the gradients: a step that fails half way
        must not leave a half-updated model."""
        self.cluster_size.assign(DECAY * self.cluster_size.value + (1 - DECAY) * usage.counts_K)
        self.vector_sums.assign(DECAY * self.vector_sums.value + (1 - DECAY) * usage.sums_KD)
        total = tf.reduce_sum(self.cluster_size.value)
        share_K = (self.cluster_size.value + SMOOTHING) / (total + self.codes * SMOOTHING)
        self.vectors.assign(self.vector_sums.value / (share_K * total)[:, None])

    def draw_from(self, z_BTD: tf.Tensor, seed_2: tf.Tensor) -> None:
        """Makes vectors drawn from the encoder's output the codebook, all of the same standing; of few, some are drawn twice."""
        drawn_KD = self._draw(z_BTD, seed_2)
        self.vectors.assign(drawn_KD)
        self.vector_sums.assign(drawn_KD)
        self.cluster_size.assign(tf.ones([self.codes]))

    def revive(self, z_BTD: tf.Tensor, seed_2: tf.Tensor, *, below: float = 0.03) -> tf.Tensor:
        """Replaces codes hardly used any more by drawn vectors of the encoder; how many, int32.

        Args:
            below: a code is dead when its moving average falls below this share of the mean code's.
        """
        mean = tf.reduce_mean(self.cluster_size.value)
        dead_K1 = (self.cluster_size.value < below * mean)[:, None]
        drawn_KD = self._draw(z_BTD, seed_2)
        self.vectors.assign(tf.where(dead_K1, drawn_KD, self.vectors.value))
        self.vector_sums.assign(tf.where(dead_K1, drawn_KD * mean, self.vector_sums.value))
        # The mean's standing: time to be chosen before it counts as dead again.
        self.cluster_size.assign(tf.where(dead_K1[:, 0], mean, self.cluster_size.value))
        return tf.reduce_sum(tf.cast(dead_K1, tf.int32))

    def _draw(self, z_BTD: tf.Tensor, seed_2: tf.Tensor) -> tf.Tensor:
        z_ND = tf.reshape(tf.cast(z_BTD, tf.float32), [-1, self.width])
        order_N = tf.argsort(tf.random.stateless_uniform([tf.shape(z_ND)[0]], seed_2, alg="philox"))
        return tf.gather(z_ND, tf.gather(order_N, tf.range(self.codes) % tf.shape(order_N)[0]))
