"""The pieces of work that `myxtts bench model` times, each ready to be done once per call."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial

import numpy as np
import tensorflow as tf

from myxtts.cli.model_speed import (
    CLIP_FRAMES,
    CODES,
    PROMPT_FRAMES,
    ROWS,
    TEXT_TOKENS,
    Shape,
    list_shapes,
)
from myxtts.models.decoding import generate
from myxtts.models.dropout import make_dropout_key
from myxtts.models.dvae import DVAE
from myxtts.models.gpt import GPT, GPTBatch
from myxtts.models.initialise import initialise_weights
from myxtts.models.names import find_variable
from myxtts.models.sampling import Sampling
from myxtts.models.sizes import MEL_CHANNELS, PROMPT_LATENTS, DVAESize, GPTSize
from myxtts.training.optimizer import AdamW, list_decayed_paths, list_trained_variables

TEXT_VOCABULARY = 6681
DVAE_WIDTH = 512
LEARNING_RATE, WEIGHT_DECAY, DROPOUT = 5e-6, 1e-2, 0.1
READ_BYTES = 1 << 28
"""Far more than any cache holds."""

Work = Callable[[], object]


@contextmanager
def open_work(name: str) -> Iterator[Work]:
    """One piece of work, compiled and done once; its memory is free again afterwards."""
    makers: dict[str, Callable[[], Work]] = {
        "dvae": make_encoding,
        "decode": partial(make_decoding, 1, "float32"),
        "decode 4 rows": partial(make_decoding, ROWS, "float32"),
        "decode 16-bit": partial(make_decoding, 1, "float16"),
        "decode 16-bit 4 rows": partial(make_decoding, ROWS, "float16"),
        "read memory": make_memory_reading,
    }
    makers |= {f"step {shape.name}": partial(make_training_step, shape) for shape in list_shapes()}
    work = makers[name]()
    try:
        work()
        yield work
    finally:
        del work
        # Layers refer to each other in circles: two models at a time would double what the bench needs.
        gc.collect()


def make_training_step(shape: Shape) -> Work:
    """Forward, backward and update of a GPT, dropout on."""
    gpt = build_gpt(shape, "float32")
    variables = list_trained_variables(gpt)
    optimizer = AdamW(variables, list_decayed_paths(gpt), WEIGHT_DECAY)
    batch = make_batch()

    @tf.function(autograph=False)  # type: ignore[untyped-decorator]
    def train(step: tf.Tensor) -> tf.Tensor:
        with tf.GradientTape() as tape:
            loss = gpt.compute_losses(batch, dropout_key=make_dropout_key(1, step)).weigh()
        gradients = tape.gradient(loss, [variable.value for variable in variables.values()])
        optimizer.apply(gradients, tf.constant(LEARNING_RATE))
        return loss

    return lambda: float(train(tf.constant(1)))


def make_encoding() -> Work:
    """Mels of clips to codes, with a DVAE of the published size."""
    dvae = DVAE(DVAESize(width=DVAE_WIDTH, codes=1024))
    initialise_weights(dvae, 1)
    encode = tf.function(dvae.encode, autograph=False)
    mel = tf.random.stateless_normal([ROWS, CLIP_FRAMES, MEL_CHANNELS], [1, 2])
    return lambda: encode(mel).numpy()


def make_decoding(rows: int, dtype: str) -> Work:
    """Text and prompt to exactly `CODES` codes per row, sampled as in the published configuration."""
    gpt = build_gpt(list_shapes()[-1], dtype)
    _forbid_stop(gpt)
    prompt = tf.random.stateless_normal([rows, PROMPT_LATENTS, gpt.size.width], [1, 2])
    text = make_batch().text_BT[:rows]
    seeds = tf.stack([tf.zeros([rows], tf.int32), tf.range(rows)], 1)
    say = tf.function(partial(generate, gpt, rule=Sampling(), max_codes=CODES), autograph=False)
    return lambda: say(prompt_BPC=prompt, text_BT=text, seeds_B2=seeds).codes_BM.numpy()


def make_memory_reading() -> Work:
    """Reads `READ_BYTES` once with all threads, and does next to nothing with them."""
    values = tf.fill([READ_BYTES // 4], 1.0)
    add_up = tf.function(tf.reduce_sum, autograph=False)
    return lambda: float(add_up(values))


def build_gpt(shape: Shape, dtype: str) -> GPT:
    """A GPT with the published vocabulary and limits, at other widths."""
    size = GPTSize(
        layers=shape.layers,
        width=shape.width,
        heads=shape.heads,
        text_tokens=TEXT_VOCABULARY,
        audio_codes=1024,
        max_text_tokens=402,
        max_audio_tokens=605,
    )
    gpt = GPT(size, dropout=DROPOUT, dtype=dtype)
    initialise_weights(gpt, 1)
    return gpt


def make_batch() -> GPTBatch:
    """Random rows without padding; the prompt is as long as the recipe's."""
    draw = np.random.default_rng(0)
    return GPTBatch(
        tf.constant(draw.standard_normal((ROWS, PROMPT_FRAMES, MEL_CHANNELS)).astype(np.float32)),
        tf.constant(draw.integers(1, TEXT_VOCABULARY, (ROWS, TEXT_TOKENS)), tf.int32),
        tf.fill([ROWS], TEXT_TOKENS),
        tf.constant(draw.integers(0, 1024, (ROWS, CODES)), tf.int32),
        tf.fill([ROWS], CODES),
    )


def _forbid_stop(gpt: GPT) -> None:
    weight = find_variable(gpt, "audio_head.bias")
    bias = weight.numpy()
    bias[gpt.size.stop_audio_token] = -1e4
    weight.assign(bias)
