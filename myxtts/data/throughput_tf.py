"""The tf.data pipeline one would write first: map, batch, prefetch. What ours is compared with."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import tensorflow as tf

from myxtts.audio.reading import read_clip
from myxtts.data.throughput import Piece, warm_up
from myxtts.data.throughput_loops import WARM_SECONDS, Material
from myxtts.utils.commons import get_device_context

_LEAST_WARM_BATCHES = 20


@contextmanager
def open_naive_dataset(material: Material, batch_size: int, *, is_plain_wav: bool) -> Iterator[Iterator[Piece]]:
    """Clips in the order of the run through `map`, `padded_batch` and `prefetch`, each with tf.data's own tuning.

    Its texts are tokenised beforehand, which is more than it would get in life.

    Args:
        is_plain_wav: decode with TensorFlow's own operation; else with a Python function, as other formats need it.
    """
    order = np.concatenate(
        [material.sampler.make_batch(step).clips for step in range(material.sampler.steps_per_epoch)]
    )
    ids = material.ids.take(order.astype(np.intp))
    load = _decode_wav if is_plain_wav else _decode_anything
    with get_device_context("/CPU:0"):
        paths = tf.constant([os.fsencode(material.corpus.find_file(clip)) for clip in order.tolist()])
        texts = tf.RaggedTensor.from_row_splits(ids.ids.astype(np.int32), ids.offsets)
        dataset = (
            tf.data.Dataset.from_tensor_slices((paths, texts))
            .repeat()
            .map(lambda path, text: (*load(path), text), num_parallel_calls=tf.data.AUTOTUNE)
            .padded_batch(batch_size)
            .prefetch(tf.data.AUTOTUNE)
        )
        iterator = iter(dataset)

    def loop() -> Iterator[Piece]:
        for wav_BS, lengths_B, _ in iterator:
            yield Piece(len(wav_BS), int(lengths_B.numpy().sum()))

    pieces = loop()
    # tf.data needs some batches to find its own settings.
    warm_up(pieces, 2 * WARM_SECONDS, least=_LEAST_WARM_BATCHES)
    yield pieces


def _decode_wav(path: Any) -> tuple[Any, Any]:
    wav_S1, _ = tf.audio.decode_wav(tf.io.read_file(path), desired_channels=1)
    return wav_S1[:, 0], tf.shape(wav_S1)[0]


def _decode_anything(path: Any) -> tuple[Any, Any]:
    wav_S = tf.numpy_function(lambda name: read_clip(os.fsdecode(name)), [path], tf.float32, stateful=False)
    wav_S.set_shape([None])
    return wav_S, tf.shape(wav_S)[0]
