"""Loads done by TensorFlow's own input pipeline: for plain wav files only, and without Python in its graph.

Which files make which batch comes through a queue, so one pipeline lives as long as the run. A batch with a file that turns
out not to be plain wav, or cannot be read, is loaded in this process instead: with the same samples, or the right failure.

Shapes: B rows, S samples, C channels.
"""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

import numpy as np
import tensorflow as tf

from myxtts.data.dataset_optimizer import get_optimized_dataset_options
from myxtts.data.loaders import ClipFile, Load, LoadingEngine, is_unchanged
from myxtts.units import SAMPLE_RATE_HZ
from myxtts.utils.commons import get_device_context


class NativeEngine(LoadingEngine):
    """Loads in tf.data; what it cannot load, in this process.

    Args:
        readers: batches that are read at a time.
        depth: loads that may be under way.
        parallel_batch, map_fusion: the tf.data optimisations of these names.
    """

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
    """(B, S) samples, and which rows were loaded (B,): those whose file is plain wav of the expected size and length."""

    def load_row(row: tuple[Any, Any, Any]) -> tuple[Any, Any]:
        loaded: tuple[Any, Any] = tf.cond(row[0] == b"", lambda: (tf.zeros([samples]), False), lambda: decode(*row))
        return loaded

    def decode(path: Any, length: Any, size: Any) -> tuple[Any, Any]:
        content = tf.io.read_file(path)
        # An error for anything but 16-bit PCM.
        wav_SC, rate_hz = tf.audio.decode_wav(content)
        is_plain = (
            (rate_hz == SAMPLE_RATE_HZ)
            & tf.reduce_all(tf.shape(wav_SC) == tf.stack([length, 1]))
            & (tf.cast(tf.strings.length(content), tf.int64) == size)
        )
        wav_S = wav_SC[:samples, 0]
        return tf.pad(wav_S, [[0, samples - tf.shape(wav_S)[0]]]), is_plain

    signature = (tf.TensorSpec([None], tf.float32), tf.TensorSpec([], tf.bool))
    wav_BS, is_loaded_B = tf.map_fn(load_row, (paths_B, lengths_B, sizes_B), fn_output_signature=signature)
    return wav_BS, is_loaded_B
