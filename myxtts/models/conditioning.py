"""Reference mel -> prompt: the conditioning encoder and the perceiver resampler.

Shape suffixes: B batch, T frames, M mel channels, C width, P prompt vectors, H heads, D channels of a head.
"""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from myxtts.models.attention import attend, recompute
from myxtts.models.layers import Dense, GroupNorm, Part, RMSNorm, measure, read
from myxtts.models.sizes import MEL_CHANNELS, PROMPT_LATENTS, GPTSize


class EncoderBlock(Part):
    """Self-attention over all frames: no positions, no mask.

    The residual is the *normalised* input, as the checkpoints were trained.
    """

    def __init__(self, width: int, heads: int, *, dtype: Any = "float32"):
        super().__init__(dtype=dtype)
        self.heads = heads
        self.norm = GroupNorm(width, dtype=dtype)
        self.qkv = Dense(width, 3 * width, dtype=dtype)
        self.project = Dense(width, width, dtype=dtype)

    def call(self, x_BTC: tf.Tensor) -> tf.Tensor:
        batch, time, width = measure(x_BTC)
        normed_BTC = self.norm(x_BTC)
        # Head-major: each head's query, key and value channels lie together.
        qkv = tf.reshape(self.qkv(normed_BTC), [batch, time, self.heads, 3, width // self.heads])
        q_BTHD, k_BTHD, v_BTHD = tf.unstack(qkv, axis=3)
        return normed_BTC + self.project(attend(q_BTHD, k_BTHD, v_BTHD))


class ConditioningEncoder(Part):
    """A reference mel (B, T, M) as one vector per frame, (B, T, C). It shares the GPT's width and heads."""

    def __init__(self, size: GPTSize, *, checkpointing: bool = False, dtype: Any = "float32"):
        super().__init__(dtype=dtype)
        self.checkpointing = checkpointing
        self.project = Dense(MEL_CHANNELS, size.width, dtype=dtype)
        self.blocks = [EncoderBlock(size.width, size.heads, dtype=dtype) for _ in range(size.encoder_blocks)]

    def call(self, mel_BTM: tf.Tensor) -> tf.Tensor:
        x_BTC = self.project(tf.cast(mel_BTM, self.compute_dtype))
        for block in self.blocks:
            x_BTC = recompute(block, x_BTC) if self.checkpointing else block(x_BTC)
        return x_BTC


class PerceiverLayer(Part):
    """Latents attend to themselves and the context, then pass a gated feed-forward layer; both are added."""

    def __init__(self, size: GPTSize, *, dtype: Any = "float32"):
        super().__init__(dtype=dtype)
        width, inner, hidden = size.width, size.perceiver_inner_width, size.perceiver_hidden_width
        self.heads = size.perceiver_heads
        self.query = Dense(width, inner, use_bias=False, dtype=dtype)
        self.key_value = Dense(width, 2 * inner, use_bias=False, dtype=dtype)
        self.project = Dense(inner, width, use_bias=False, dtype=dtype)
        self.expand = Dense(width, 2 * hidden, dtype=dtype)
        self.contract = Dense(hidden, width, dtype=dtype)

    def call(self, latents_BPC: tf.Tensor, context_BTC: tf.Tensor) -> tf.Tensor:
        q = self.query(latents_BPC)
        k, v = tf.split(self.key_value(tf.concat([latents_BPC, context_BTC], 1)), 2, -1)
        latents_BPC += self.project(attend(*(self._split_heads(part) for part in (q, k, v))))
        value, gate = tf.split(self.expand(latents_BPC), 2, -1)
        return latents_BPC + self.contract(value * tf.nn.gelu(gate, approximate=False))

    def _split_heads(self, x_BTC: tf.Tensor) -> tf.Tensor:
        batch, time, width = measure(x_BTC)
        return tf.reshape(x_BTC, [batch, time, self.heads, width // self.heads])


class PerceiverResampler(Part):
    """Any number of frame vectors (B, T, C) as 32 prompt vectors, (B, P, C)."""

    def __init__(self, size: GPTSize, *, dtype: Any = "float32"):
        super().__init__(dtype=dtype)
        self.latents = self.add_variable("latents", (PROMPT_LATENTS, size.width))
        self.layers = [PerceiverLayer(size, dtype=dtype) for _ in range(size.perceiver_layers)]
        self.norm = RMSNorm(size.width, dtype=dtype)

    def call(self, context_BTC: tf.Tensor) -> tf.Tensor:
        latents_PC = read(self.latents, context_BTC.dtype)
        latents_BPC = tf.tile(latents_PC[None], [measure(context_BTC)[0], 1, 1])
        for layer in self.layers:
            latents_BPC = layer(latents_BPC, context_BTC)
        return self.norm(latents_BPC)
