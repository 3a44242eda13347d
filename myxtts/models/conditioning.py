"""Reference mel -> prompt: the conditioning encoder and the perceiver resampler.

Shape suffixes: B batch, T frames, M mel channels, C width, P prompt vectors, H heads, D channels of a head.
"""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from myxtts.models.attention import attend, run_part, split_heads
from myxtts.models.layers import Dense, GroupNorm, Part, RMSNorm, measure, read, swap_rows
from myxtts.models.sizes import MEL_CHANNELS, PROMPT_LATENTS, GPTSize


class EncoderBlock(Part):
    """Self-attention over all frames: no positions, no mask.

    The residual is the *normalised* input, as the checkpoints were trained.
    """

    def __init__(self, width: int, heads: int, *, scores: int = 0, fused_norms: bool = False, dtype: Any = "float32"):
        super().__init__(dtype=dtype)
        self.heads, self.scores = heads, scores
        self.norm = GroupNorm(width, fused=fused_norms, dtype=dtype)
        self.qkv = Dense(width, 3 * width, dtype=dtype)
        self.project = Dense(width, width, dtype=dtype)

    def call(self, x_TBC: tf.Tensor) -> tf.Tensor:
        sizes = measure(x_TBC)
        # Flat, because a compiler for GPUs would otherwise add the residual within the product, to a copy of it.
        normed_NC = self.norm(x_TBC)
        q, k, v = split_heads(self.qkv(normed_NC), sizes[:2], 3, self.heads, head_major=True)
        return tf.reshape(normed_NC + self.project(attend(q, k, v, scores=self.scores)), sizes)


class ConditioningEncoder(Part):
    """A reference mel (B, T, M) as one vector per frame, (T, B, C). It shares the GPT's width and heads."""

    def __init__(
        self, size: GPTSize, *, checkpointing: bool = False, joins: bool = False, dtype: Any = "float32", **options: Any
    ):
        super().__init__(dtype=dtype)
        self.checkpointing, self.joins = checkpointing, joins
        self.project = Dense(MEL_CHANNELS, size.width, dtype=dtype)
        blocks = range(size.encoder_blocks)
        self.blocks = [EncoderBlock(size.width, size.heads, dtype=dtype, **options) for _ in blocks]

    def call(self, mel_BTM: tf.Tensor) -> tf.Tensor:
        x_TBC = swap_rows(self.project(tf.cast(mel_BTM, self.compute_dtype)))
        for block in self.blocks:
            x_TBC = run_part(block, x_TBC, joins=self.joins, again=self.checkpointing)
        return x_TBC


class PerceiverLayer(Part):
    """Latents attend to themselves and the context, then pass a gated feed-forward layer; both are added."""

    def __init__(self, size: GPTSize, *, scores: int = 0, dtype: Any = "float32"):
        super().__init__(dtype=dtype)
        width, inner, hidden = size.width, size.perceiver_inner_width, size.perceiver_hidden_width
        self.heads, self.scores = size.perceiver_heads, scores
        self.query = Dense(width, inner, use_bias=False, dtype=dtype)
        self.key_value = Dense(width, 2 * inner, use_bias=False, dtype=dtype)
        self.project = Dense(inner, width, use_bias=False, dtype=dtype)
        self.expand = Dense(width, 2 * hidden, dtype=dtype)
        self.contract = Dense(hidden, width, dtype=dtype)

    def call(self, latents_PBC: tf.Tensor, context_TBC: tf.Tensor) -> tf.Tensor:
        length, batch, width = measure(latents_PBC)
        latents_NC = tf.reshape(latents_PBC, [-1, width])
        # Not of `latents_NC`: TensorFlow adds three gradients at once in an order that depends on which is there first.
        rows_NC = tf.reshape(tf.concat([latents_PBC, context_TBC], 0), [-1, width])
        (q,) = split_heads(self.query(latents_NC), [length, batch], 1, self.heads)
        k, v = split_heads(self.key_value(rows_NC), [-1, batch], 2, self.heads)
        latents_NC += self.project(attend(q, k, v, scores=self.scores))
        value, gate = tf.split(self.expand(latents_NC), 2, -1)
        latents_NC += self.contract(value * tf.nn.gelu(gate, approximate=False))
        return tf.reshape(latents_NC, [length, batch, width])


class PerceiverResampler(Part):
    """Any number of frame vectors (T, B, C) as 32 prompt vectors, (B, P, C)."""

    def __init__(self, size: GPTSize, *, scores: int = 0, dtype: Any = "float32"):
        super().__init__(dtype=dtype)
        self.latents = self.add_variable("latents", (PROMPT_LATENTS, size.width))
        self.layers = [PerceiverLayer(size, scores=scores, dtype=dtype) for _ in range(size.perceiver_layers)]
        self.norm = RMSNorm(size.width, dtype=dtype)

    def call(self, context_TBC: tf.Tensor) -> tf.Tensor:
        latents_PC = read(self.latents, context_TBC.dtype)
        latents_PBC = tf.tile(latents_PC[:, None], [1, measure(context_TBC)[1], 1])
        for layer in self.layers:
            latents_PBC = layer(latents_PBC, context_TBC)
        return self.norm(swap_rows(latents_PBC))
