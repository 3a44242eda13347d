"""The DVAE: mel <-> one code per four frames.

Shape suffixes: B batch, F mel frames, T codes (F / 4, rounded up), M mel channels, D length of a code's vector,
C channels."""

from __future__ import annotations

from typing import Any, NamedTuple

import tensorflow as tf

from myxtts.models.layers import Conv1D, Dense, Part, mask_lengths, measure
from myxtts.models.losses import TokenLoss
from myxtts.models.sizes import DVAESize
from myxtts.models.weights import Weight, list_dvae_weights
from myxtts.units import FRAMES_PER_CODE

DECAY = 0.99
SMOOTHING = 1e-5


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


class DVAELosses(NamedTuple):
    """Losses of one forward pass as sums and counts, and what the codebook is to learn from it."""

    reconstruction: TokenLoss
    """Squared error of mel values; its mean is per value."""
    commitment: TokenLoss
    """Squared distance of the encoder's values to their code's."""
    usage: CodeUsage
    """For `Codebook.update`, after the gradients were applied."""
    mel_BFM: tf.Tensor
    """The reconstruction itself."""


class ResidualBlock(Part):
    """Two convolutions over three frames and one over single frames, added to the input."""

    def __init__(self, width: int, *, dtype: Any = "float32"):
        super().__init__(dtype=dtype)
        self.convs = [
            Conv1D(width, width, 3, dtype=dtype),
            Conv1D(width, width, 3, dtype=dtype),
            Dense(width, width, dtype=dtype),
        ]

    def call(self, x_BTC: tf.Tensor) -> tf.Tensor:
        first, second, last = self.convs
        return x_BTC + last(tf.nn.relu(second(tf.nn.relu(first(x_BTC)))))


class DVAEEncoder(Part):
    """Mel (B, F, M) -> vectors (B, ceil(ceil(F / 2) / 2), D)."""

    def __init__(self, size: DVAESize, *, dtype: Any = "float32"):
        super().__init__(dtype=dtype)
        narrow, wide = size.width, 2 * size.width
        self.down = [
            Conv1D(size.mel_channels, narrow, 3, stride=2, dtype=dtype),
            Conv1D(narrow, wide, 3, stride=2, dtype=dtype),
        ]
        self.blocks = [ResidualBlock(wide, dtype=dtype) for _ in range(size.blocks)]
        self.project = Dense(wide, narrow, dtype=dtype)

    def call(self, mel_BFM: tf.Tensor) -> tf.Tensor:
        x = tf.cast(mel_BFM, self.compute_dtype)
        for conv in self.down:
            x = tf.nn.relu(conv(x))
        for block in self.blocks:
            x = block(x)
        return self.project(x)


class DVAEDecoder(Part):
    """Vectors (B, T, D) -> mel (B, 4 T, M)."""

    def __init__(self, size: DVAESize, *, dtype: Any = "float32"):
        super().__init__(dtype=dtype)
        narrow, wide = size.width, 2 * size.width
        self.expand = Dense(narrow, wide, dtype=dtype)
        self.blocks = [ResidualBlock(wide, dtype=dtype) for _ in range(size.blocks)]
        self.up = [Conv1D(wide, wide, 3, dtype=dtype), Conv1D(wide, narrow, 3, dtype=dtype)]
        self.project = Dense(narrow, size.mel_channels, dtype=dtype)

    def call(self, q_BTD: tf.Tensor) -> tf.Tensor:
        x = self.expand(tf.cast(q_BTD, self.compute_dtype))
        for block in self.blocks:
            x = block(x)
        for conv in self.up:
            x = tf.nn.relu(conv(tf.repeat(x, 2, axis=1)))
        return tf.cast(self.project(x), tf.float32)


class DVAE(Part):
    """Audio codes of a mel and back, weight-compatible with `dvae.pth`.

    Distances to the codebook are float32, whatever it computes in.

    Example:
        >>> dvae = DVAE(DVAESize(width=512, codes=1024))
        >>> dvae.encode(mel_BFM).shape  # mel (4, 862, 80)
        TensorShape([4, 216])
    """

    def __init__(self, size: DVAESize, *, dtype: Any = "float32"):
        super().__init__(dtype=dtype)
        self.size = size
        self.encoder = DVAEEncoder(size, dtype=dtype)
        self.decoder = DVAEDecoder(size, dtype=dtype)
        self.codebook = Codebook(size.codes, size.width, dtype=dtype)
        # Of no use to anybody, in the reference neither; an exported file must have them.
        rows = (size.accumulator_rows, size.codes)
        self.accumulator = self.add_variable("accumulator", rows, trainable=False)
        self.accumulator_index = self.add_variable("accumulator_index", (1,), dtype="int64", trainable=False)
        self.accumulator_filled = self.add_variable("accumulator_filled", (1,), dtype="int64", trainable=False)

    def list_weights(self) -> list[Weight]:
        """Its weights under the names they have in `dvae.pth`."""
        return list_dvae_weights(self.size)

    def encode(self, mel_BFM: tf.Tensor) -> tf.Tensor:
        """The codes (B, T) of a mel, int64. A row's codes depend on that row and its length alone.

        The last bits of a product change with the number of rows in it, and between two codes almost equally near a
        last bit decides. So each row is encoded alone.
        """
        if mel_BFM.shape[0] == 1:
            return self.codebook.find_nearest(self.encoder(mel_BFM))
        return tf.map_fn(lambda mel_FM: self.encode(mel_FM[None])[0], mel_BFM, fn_output_signature=tf.int64)

    def decode(self, codes_BT: tf.Tensor) -> tf.Tensor:
        """The mel (B, 4 T, M) of codes, float32."""
        return self.decoder(self.codebook.look_up(codes_BT))

    def compute_losses(
        self, mel_BFM: tf.Tensor, frame_lengths_B: tf.Tensor | None = None, *, quantise: bool = True
    ) -> DVAELosses:
        """Losses of a training batch. Nothing is updated: see `DVAELosses.usage`.

        Args:
            mel_BFM: F a multiple of 4, float32.
            frame_lengths_B: frames of each row that are not padding; all when None.
            quantise: False lets the decoder read the encoder's vectors themselves. So trained for a few hundred
                steps, the encoder spreads out before the codebook is drawn from it.
        """
        frames = mel_BFM.shape[1]
        lengths_B = tf.fill([tf.shape(mel_BFM)[0]], frames) if frame_lengths_B is None else frame_lengths_B
        counted_BF = mask_lengths(lengths_B, frames)
        counted_BT = counted_BF[:, ::FRAMES_PER_CODE]
        z_BTD = tf.cast(self.encoder(mel_BFM), tf.float32)
        codes_BT = self.codebook.find_nearest(z_BTD)
        q_BTD = self.codebook.look_up(codes_BT)
        # Straight through: forward the code's vector, backward as if it were the encoder's.
        read_BTD = z_BTD + tf.stop_gradient(q_BTD - z_BTD) if quantise else z_BTD
        rebuilt_BFM = self.decoder(read_BTD)
        return DVAELosses(
            _sum_squares(mel_BFM - rebuilt_BFM, counted_BF),
            _sum_squares(q_BTD - z_BTD, counted_BT),
            self.codebook.measure_usage(z_BTD, codes_BT, counted_BT),
            rebuilt_BFM,
        )


def _sum_squares(difference_BTC: tf.Tensor, counted_BT: tf.Tensor) -> TokenLoss:
    counted = tf.cast(counted_BT, tf.float32)
    squares_BT = tf.reduce_sum(tf.square(difference_BTC), -1)
    return TokenLoss(tf.reduce_sum(squares_BT * counted), tf.reduce_sum(counted) * difference_BTC.shape[-1])
