"""The smallest GPT that still has everything, and a batch for it."""

from __future__ import annotations

from typing import Any

import numpy as np
import tensorflow as tf

from myxtts.models.gpt import GPT, GPTBatch
from myxtts.models.sizes import GPTSize
from myxtts.models.xtts import initialise_weights

SIZE = GPTSize(
    layers=2,
    width=16,
    heads=2,
    text_tokens=30,
    audio_codes=20,
    max_text_tokens=24,
    max_audio_tokens=40,
    start_text_token=29,
    encoder_blocks=2,
)
TEXT_LENGTHS = (7, 4, 6)
CODE_LENGTHS = (9, 12, 5)


def build_small_gpt(**options: Any) -> GPT:
    """A GPT of width 16 with weights of seed 3."""
    gpt = GPT(SIZE, **options)
    initialise_weights(gpt, 3)
    return gpt


def make_batch(*, tokens: int = 8, codes: int = 13, frames: int = 20) -> GPTBatch:
    """Three rows padded to so many tokens and codes; the same rows for any padding."""
    draw = np.random.default_rng(0)
    mel = draw.standard_normal((3, frames, 80)).astype(np.float32)
    text, audio = np.zeros((3, tokens), np.int32), np.zeros((3, codes), np.int32)
    for row in range(3):
        text[row, : TEXT_LENGTHS[row]] = draw.integers(1, 28, TEXT_LENGTHS[row])
        audio[row, : CODE_LENGTHS[row]] = draw.integers(0, 20, CODE_LENGTHS[row])
    return GPTBatch(*map(tf.constant, (mel, text, TEXT_LENGTHS, audio, CODE_LENGTHS)))


def differentiate(gpt: GPT, batch: GPTBatch, **options: Any) -> tuple[tf.Tensor, list[tf.Tensor]]:
    """The weighted loss of a batch and its gradients."""
    with tf.GradientTape() as tape:
        loss = gpt.compute_losses(batch, **options).weigh()
    return loss, tape.gradient(loss, [variable.value for variable in gpt.trainable_variables])
