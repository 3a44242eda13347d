"""tf.data settings for throughput, for any `tf.data.Dataset`, applied in the only order in which they take effect.

Options first, then one host prefetch, then one device prefetch, last. The iterator of a device prefetch hides the
host pipeline from everything set behind it, and a map behind it would move the batch back to the CPU.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence

import tensorflow as tf

from myxtts.config import DataConfig
from myxtts.devices.runtime import require_device

_log = logging.getLogger(__name__)

_OPTIMIZATIONS = ("parallel_batch", "map_fusion", "map_parallelization", "map_and_batch_fusion", "noop_elimination")


def get_optimized_dataset_options(
    deterministic: bool = True, parallel_batch: bool = True, map_fusion: bool = True
) -> tf.data.Options:
    """Options for a fast host pipeline, which keeps the order of elements or hands on whatever is ready first."""
    options = tf.data.Options()
    options.deterministic = deterministic
    options.autotune.enabled = True
    chosen = {"parallel_batch": parallel_batch, "map_fusion": map_fusion}
    for name in _OPTIMIZATIONS:
        # tf.data's optimisations come and go between versions; one that is gone has nothing left to set.
        if hasattr(options.experimental_optimization, name):
            setattr(options.experimental_optimization, name, chosen.get(name, True))
    return options


def configure_tensorflow_for_max_throughput() -> tf.data.Options:
    """Options for the highest throughput, where the order of elements does not matter."""
    return get_optimized_dataset_options(deterministic=False)


def apply_aggressive_prefetching(
    dataset: tf.data.Dataset, batch_size: int, prefetch_to_device: str | None = None, *, depth: int | None = None
) -> tf.data.Dataset:
    """The dataset with batches ready ahead on the host and, where a device is given, on the device.

    How many follows from the batch size as `--prefetch-buffer-size auto` does, unless `depth` is given. Must be the last
    step of a pipeline. Raises `DevicePlanError` for a device that is not there.
    """
    if prefetch_to_device is not None:
        require_device(prefetch_to_device)
    depth = DataConfig(batch_size=batch_size).prefetch_depth if depth is None else depth
    dataset = dataset.prefetch(depth)
    if prefetch_to_device is None:
        return dataset
    _log.info("Prefetching to %s with buffer_size=%d", prefetch_to_device, depth)
    return dataset.apply(tf.data.experimental.prefetch_to_device(prefetch_to_device, buffer_size=depth))


def optimize_dataset_pipeline(
    dataset: tf.data.Dataset,
    batch_size: int,
    prefetch_to_device: str | None = None,
    options: tf.data.Options | None = None,
) -> tf.data.Dataset:
    """The dataset with options (order-preserving unless given) and prefetching, in the order that works."""
    dataset = dataset.with_options(options or get_optimized_dataset_options())
    return apply_aggressive_prefetching(dataset, batch_size, prefetch_to_device)


def create_parallel_interleave_dataset(
    sources: Sequence[str],
    make_dataset: Callable[[tf.Tensor], tf.data.Dataset],
    cycle_length: int | None = None,
    deterministic: bool = True,
) -> tf.data.Dataset:
    """Elements of several sources (usually files), read in parallel and taken in turn.

    Args:
        make_dataset: from a source to the dataset of its elements; must be made of TensorFlow operations.
        cycle_length: how many sources are open at once; tf.data decides unless given.
        deterministic: take them strictly in turn, so that the order is repeatable.
    """
    parallel = tf.data.AUTOTUNE if cycle_length is None else cycle_length
    return tf.data.Dataset.from_tensor_slices(list(sources)).interleave(
        make_dataset, cycle_length=cycle_length, num_parallel_calls=parallel, deterministic=deterministic
    )


def print_optimization_summary(dataset: tf.data.Dataset) -> str:
    """Logs, and returns, the options that are really set on a dataset, one a line; what is not set is `unset`."""
    options = _find_options(dataset)
    values = {
        "deterministic": options.deterministic,
        "autotune": options.autotune.enabled,
        **{name: getattr(options.experimental_optimization, name, None) for name in _OPTIMIZATIONS},
    }
    text = "\n".join(f"{name}: {'unset' if value is None else value}" for name, value in values.items())
    _log.info("tf.data options in force:\n%s", text)
    return text


def _find_options(dataset: tf.data.Dataset) -> tf.data.Options:
    """The nearest options set on the way to the source: a device prefetch in between answers with empty ones."""
    empty = tf.data.Options()
    return next((found for found in map(tf.data.Dataset.options, _walk_inputs(dataset)) if found != empty), empty)


def _walk_inputs(dataset: tf.data.Dataset) -> Iterator[tf.data.Dataset]:
    yield dataset
    for source in dataset._inputs():
        yield from _walk_inputs(source)
