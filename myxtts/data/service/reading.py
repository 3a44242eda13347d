"""What data workers do, as a graph without Python, and how its answers come here.

Workers run in other processes, on other machines, and know only TensorFlow. They read files and send their bytes; what
the bytes mean is found out here, by the same code that reads plain wav files everywhere else.

Shapes: N requests, R files of a request, F files that could be read.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from myxtts.config.address import Address
from myxtts.data.service.messages import FileContents
from myxtts.utils.commons import get_device_context

NAME_FILE = "/etc/hostname"
"""Read with every request, so that it is known on which machine a worker runs."""

FILES_AT_A_TIME = 8
"""Of one request, by one worker. Storage on other machines answers late, but many at a time."""

_REQUESTS_AT_A_TIME = 2
_NO_FILE = -1


def read_through_service(address: Address, requests: Mapping[int, Sequence[str]]) -> Iterator[FileContents]:
    """The files of each numbered request, in the order in which workers become ready.

    Ends early, or with an `OpError`, when the service loses something: whoever asks keeps count. A request may come twice.
    """
    service = tf.data.experimental.service
    target = f"grpc://{address}"
    with get_device_context("/CPU:0"):
        dataset = make_dataset(requests)
        # Sound is noise to a compressor.
        dataset_id = service.register_dataset(target, dataset, compression=None)
        answers = service.from_dataset_id(
            processing_mode=service.ShardingPolicy.DYNAMIC,
            service=target,
            dataset_id=dataset_id,
            element_spec=dataset.element_spec,
        )
        iterator = iter(answers)
    while True:
        with get_device_context("/CPU:0"):
            answer = next(iterator, None)
        if answer is None:
            return
        yield _parse_answer(*answer)


def make_dataset(requests: Mapping[int, Sequence[str]]) -> tf.data.Dataset:
    """What workers share among them: (number, places_F, contents_F) for each request."""
    width = max(map(len, requests.values()))
    paths_NR = [
        [NAME_FILE.encode(), *map(os.fsencode, paths), *[b""] * (width - len(paths))] for paths in requests.values()
    ]
    numbers_N = np.fromiter(requests, np.int64, len(requests))
    options = tf.data.Options()
    # A dataset lives for seconds: what it would learn about itself in that time is not worth the search.
    options.autotune.enabled = False
    options.experimental_optimization.apply_default_optimizations = False
    return (
        tf.data.Dataset.from_tensor_slices((numbers_N, paths_NR))
        .map(_read_files, num_parallel_calls=_REQUESTS_AT_A_TIME, deterministic=False)
        .with_options(options)
    )


def _read_files(number: Any, paths_R: Any) -> tuple[Any, Any, Any]:
    count = tf.shape(paths_R, tf.int64)[0]
    files = (
        tf.data.Dataset.from_tensor_slices((tf.range(count), paths_R))
        .filter(lambda place, path: path != b"")
        .map(lambda place, path: (place, tf.io.read_file(path)), num_parallel_calls=FILES_AT_A_TIME)
        .ignore_errors()
    )
    # Never empty: what cannot be read must not look like an answer that was lost.
    nothing = tf.data.Dataset.from_tensors((tf.constant(_NO_FILE, tf.int64), b""))
    places_F, contents_F = files.concatenate(nothing).batch(count + 1).get_single_element()
    return number, places_F, contents_F


def _parse_answer(number: Any, places_F: Any, contents_F: Any) -> FileContents:
    found = dict(zip(places_F.numpy().tolist(), contents_F.numpy().tolist(), strict=True))
    del found[_NO_FILE]
    machine = found.pop(0, b"").decode("utf-8", "replace").strip()
    return FileContents(int(number), {place - 1: content for place, content in found.items()}, machine)
