"""tf.data settings: really set, in the order that works, and read back."""

import pytest
import tensorflow as tf

from myxtts.data import dataset_optimizer as optimizer
from myxtts.errors import DevicePlanError


def make_dataset():
    return tf.data.Dataset.range(12).map(lambda x: tf.cast(x, tf.float32) * 2).batch(4)


def values(dataset):
    return [batch.numpy().tolist() for batch in dataset]


def test_options_for_throughput_give_up_order_and_others_keep_it():
    assert optimizer.configure_tensorflow_for_max_throughput().deterministic is False
    options = optimizer.get_optimized_dataset_options(parallel_batch=False)
    assert (options.deterministic, options.autotune.enabled) == (True, True)
    assert options.experimental_optimization.parallel_batch is False
    assert options.experimental_optimization.map_fusion is True


def test_the_summary_reads_back_what_is_set():
    assert "parallel_batch: unset" in optimizer.print_optimization_summary(make_dataset())
    text = optimizer.print_optimization_summary(optimizer.optimize_dataset_pipeline(make_dataset(), batch_size=4))
    assert "parallel_batch: True" in text
    assert "deterministic: True" in text
    options = optimizer.get_optimized_dataset_options(map_fusion=False)
    text = optimizer.print_optimization_summary(optimizer.optimize_dataset_pipeline(make_dataset(), 4, None, options))
    assert "map_fusion: False" in text


def test_sources_are_read_in_turn_and_all_of_them(tmp_path):
    for name in "ab":
        (tmp_path / name).write_text(f"{name}1\n{name}2\n")
    files = [str(tmp_path / name) for name in "ab"]
    dataset = optimizer.create_parallel_interleave_dataset(files, tf.data.TextLineDataset, cycle_length=2)
    assert [line.numpy().decode() for line in dataset] == ["a1", "b1", "a2", "b2"]


@pytest.mark.parametrize("device", ["/GPU:0", "gpu:7", "/job:localhost/replica:0/task:0/device:GPU:1", "cuda:0", ""])
def test_a_device_that_is_not_there_is_an_error_that_names_those_that_are(device, caplog):
    caplog.set_level("INFO")
    for prefetch in (optimizer.apply_aggressive_prefetching, optimizer.optimize_dataset_pipeline):
        with pytest.raises(DevicePlanError, match=f"There is no device '{device}' in this process; there are /CPU:0"):
            prefetch(make_dataset(), 128, device)
    assert "Prefetching to" not in caplog.text


@pytest.mark.parametrize("device", ["/CPU:0", "cpu:0", "/device:CPU:0", "/CPU"])
def test_a_device_that_is_there_may_be_named_as_tensorflow_allows(device):
    dataset = optimizer.apply_aggressive_prefetching(make_dataset(), 4, device)
    assert values(dataset) == values(make_dataset())
