"""Loads done by TensorFlow's own input pipeline: for plain wav files only, and without Python in its graph.

Which files make which batch comes through a queue, so one pipeline lives as long as the run. Files that turn out not to
be plain wav, or cannot be read, are loaded in this process instead. Shapes: B rows, S samples, H bytes of a file's head."""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

import numpy as np
import tensorflow as tf

from myxtts.audio.reading import PLAIN_FORMAT, PLAIN_SAMPLE_BYTES, PLAIN_SCALE
from myxtts.data.dataset_optimizer import get_optimized_dataset_options
from myxtts.data.loaders import ClipFile, Load, LoadingEngine, is_unchanged
from myxtts.utils.commons import get_device_context

HEAD_BYTES = 1024
"""In which the data chunk must begin. Programs that write more in front of it are rare."""

_FORMAT_END = 8 + len(PLAIN_FORMAT)

MOST_CHUNKS = 3
"""Chunks before the data chunk that are skipped, apart from the format chunk. ffmpeg writes one."""


class NativeEngine(LoadingEngine):
    """Loads in tf.data; what it cannot load, in this process."""

    def __init__(self, readers: int, depth: int, *, parallel_batch: bool = True, map_fusion: bool = True):
        self._loads: deque[Load] = deque()
        options = get_optimized_dataset_options(parallel_batch=parallel_batch, map_fusion=map_fusion)
        options.threading.private_threadpool_size = readers
        with get_device_context("/CPU:0"):
            # Never full: a reader starts no more loads than it may have under way, plus those it has cancelled.
            self._queue = tf.queue.FIFOQueue(np.iinfo(np.int32).max, [tf.string, tf.int32, tf.int64, tf.int32])
            requests = tf.data.Dataset.counter().map(self._take_request)
            # Behind a buffer of its own, so that no optimisation can run it in parallel with itself.
            batches = requests.prefetch(1).map(load_batch, num_parallel_calls=readers, deterministic=True)
            self._iterator = iter(batches.prefetch(depth).with_options(options))

    def _take_request(self, count: Any) -> Any:
        request = self._queue.dequeue()
        for part, shape in zip(request, ([None], [None], [None], []), strict=True):
            part.set_shape(shape)
        return request

    def start(self, files: Sequence[ClipFile | None], samples: int) -> Load:
        load = Load(files, samples)
        self._loads.append(load)
        with get_device_context("/CPU:0"):
            self._queue.enqueue(
                [
                    tf.constant([os.fsencode(file.path) if file else b"" for file in files], tf.string),
                    tf.constant([file.samples if file else 0 for file in files], tf.int32),
                    tf.constant([file.size_bytes if file else 0 for file in files], tf.int64),
                    tf.constant(samples, tf.int32),
                ]
            )
        return load

    def finish(self, load: Load) -> None:
        while load in self._loads:
            self._receive()
        load.load_pending()

    def cancel(self, load: Load) -> None:
        load.is_cancelled = True
        load.wav = None

    def close(self) -> None:
        with get_device_context("/CPU:0"):
            self._queue.close(cancel_pending_enqueues=True)
        # Its threads end with it.
        del self._iterator

    def _receive(self) -> None:
        load = self._loads.popleft()
        try:
            with get_device_context("/CPU:0"):
                wav_BS, is_loaded_B = next(self._iterator)
        except tf.errors.OpError:
            # A file could not be opened. Its batch takes part in the order, but brings nothing.
            return
        if load.is_cancelled:
            return
        load.wav = wav_BS.numpy()
        for row in np.flatnonzero(is_loaded_B.numpy()).tolist():
            file = load.files[row]
            # One that is gone by now fails when it is loaded here.
            with suppress(OSError):
                if file is not None and is_unchanged(file):
                    load.note(row, None)
        if load.pending:
            # The rest is written to, which TensorFlow's own memory must not be.
            load.wav = load.wav.copy()


def load_batch(paths_B: Any, lengths_B: Any, sizes_B: Any, samples: Any) -> tuple[Any, Any]:
    """(B, S) samples, and which rows were loaded (B,): those whose file is plain wav of the expected size."""
    contents_B = tf.map_fn(
        lambda path: tf.cond(path == b"", lambda: tf.constant(b""), lambda: tf.io.read_file(path)), paths_B
    )
    heads_BH = tf.cast(tf.io.decode_raw(contents_B, tf.uint8, fixed_length=HEAD_BYTES), tf.int32)
    starts_B, data_bytes_B = _find_data(heads_BH)
    is_loaded_B = (
        _match_format(heads_BH)
        & (data_bytes_B == lengths_B * PLAIN_SAMPLE_BYTES)
        & (starts_B + data_bytes_B <= tf.strings.length(contents_B))
        & (tf.cast(tf.strings.length(contents_B), tf.int64) == sizes_B)
    )
    data_B = tf.strings.substr(contents_B, tf.where(is_loaded_B, starts_B, 0), tf.where(is_loaded_B, data_bytes_B, 0))
    integers_BS = tf.io.decode_raw(data_B, tf.int16, fixed_length=samples * PLAIN_SAMPLE_BYTES)
    return tf.cast(integers_BS, tf.float32) * PLAIN_SCALE, is_loaded_B


def _match_format(heads_BH: Any) -> Any:
    """(B,) whether the head of a file is that of plain wav, up to the format chunk's end; bytes 4 to 7 are the file's size."""
    expected = np.frombuffer(b"RIFF" + PLAIN_FORMAT, np.uint8).astype(np.int32)
    found_BH = tf.concat([heads_BH[:, :4], heads_BH[:, 8:_FORMAT_END]], axis=1)
    return tf.reduce_all(found_BH == expected, axis=1)


def _find_data(heads_BH: Any) -> tuple[Any, Any]:
    """(B,) where the data chunk's content begins, and its size in bytes; 0 where it does not begin in the head."""
    starts_B = tf.fill([tf.shape(heads_BH)[0]], _FORMAT_END)
    name = np.frombuffer(b"data", np.uint8).astype(np.int32)
    for chunk in range(MOST_CHUNKS + 1):
        places_B8 = tf.minimum(starts_B[:, None] + np.arange(8, dtype=np.int32), HEAD_BYTES - 1)
        header_B8 = tf.gather(heads_BH, places_B8, batch_dims=1)
        is_data_B = tf.reduce_all(header_B8[:, :4] == name, axis=1)
        # Signed: a chunk of 2 GB or more becomes negative, and is found nowhere.
        size_B = tf.reduce_sum(header_B8[:, 4:] * np.array([1, 1 << 8, 1 << 16, 1 << 24], np.int32), axis=1)
        if chunk < MOST_CHUNKS:
            skipped_B = tf.clip_by_value(starts_B + 8 + size_B + size_B % 2, 0, HEAD_BYTES - 1)
            starts_B = tf.where(is_data_B, starts_B, skipped_B)
    return tf.where(is_data_B, starts_B + 8, 0), tf.where(is_data_B, size_B, 0)
