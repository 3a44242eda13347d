"""Measures what it would take if both devices trained, for `--mode auto`: nothing of it starts a second process.

Half of a batch is trained on, to know how much of a step is left with half the clips; the same products of matrices are run on
each device and on both at once, to know whether one is slower and whether they stand in each other's way; and gradients are
assumed to cross between cards as fast as a copy does. That is the best that NCCL, which takes them there, could do: nobody has
run it on cards yet.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf

from myxtts.devices.plan import DevicePlan
from myxtts.pipeline.batch_source import BatchSource
from myxtts.pipeline.transfer import DeviceBatch
from myxtts.training.memory_estimate import FLOAT_BYTES
from myxtts.training.modes.prediction import WORKERS
from myxtts.training.profiling.run import SyncedTraining
from myxtts.training.step import TrainStep
from myxtts.training.updates import split_rows
from myxtts.utils.commons import get_device_context

GRPC_BYTES_PER_S = 300e6
"""Between processes without GPUs, as the bench `cluster` found it: docs/benchmarks/2026-11-16-cluster.md."""
_REPEATS = 3
_COPIED_BYTES = 32 << 20
_MATRIX_WIDTH = 512
_PRODUCTS = 24


def measure_pair(plan: DevicePlan, step: TrainStep, source: BatchSource, training: SyncedTraining) -> dict[str, float]:
    """Values of `StageCosts` that say what two devices would make of training, by name."""
    numbers = sum(int(tf.size(variable.value)) for variable in step.optimizer.variables.values())
    pace, crowding = measure_together(plan.model.device, plan.data.device)
    return {
        "half_share": measure_half_share(source, training),
        "pace": pace,
        "crowding": crowding,
        "exchange_s": estimate_exchange(plan, numbers * FLOAT_BYTES),
    }


def measure_half_share(source: BatchSource, training: SyncedTraining) -> float:
    """Of the training time of a batch, what half of its clips take: half at best, all of it where there is one clip."""
    batch = source.take()
    half = batch._replace(tensors=dict(next(split_rows(batch.tensors, WORKERS))))
    share = _time_training(half, training) / _time_training(batch, training)
    source.advance()
    source.release()
    return min(1.0, max(1 / WORKERS, share))


def measure_together(first: str, second: str) -> tuple[float, float]:
    """How much slower the second device computes, and how far both stand in each other's way, 0 to 1."""
    first_s, second_s, both_s = (_time_products(devices) for devices in ([first], [second], [first, second]))
    unhidden = (both_s - max(first_s, second_s)) / min(first_s, second_s)
    return second_s / first_s, min(1.0, max(0.0, unhidden))


def estimate_exchange(plan: DevicePlan, gradient_bytes: int) -> float:
    """Seconds in which two processes add up their gradients: each sends as much as it has.

    Without GPUs at the speed that TensorFlow's ring was seen to have. Between cards at that of a copy from one to the other, which
    goes the way that NCCL takes (NVLink, the bus, or the host's memory); what NCCL itself adds to it was never measured.
    """
    if plan.rehearsal:
        # A copy inside one process would say nothing about gRPC between two.
        return gradient_bytes / GRPC_BYTES_PER_S
    with get_device_context(plan.data.device):
        there = tf.zeros([_COPIED_BYTES // FLOAT_BYTES]) + 1.0
    with get_device_context(plan.model.device):
        copy_s = _time_best(lambda: tf.identity(there)[:1])
    return copy_s * gradient_bytes / _COPIED_BYTES


def _time_training(batch: DeviceBatch, training: SyncedTraining) -> float:
    training.train(batch)

    def train() -> None:
        training.train(batch)

    return _time_best(train)


def _time_products(devices: Sequence[str]) -> float:
    """Seconds of the same products on each of some devices, all at once."""

    def compute(matrices: list[tf.Tensor]) -> list[tf.Tensor]:
        sums = []
        for device, matrix in zip(devices, matrices, strict=True):
            with get_device_context(device):
                product = matrix
                for _ in range(_PRODUCTS):
                    product = tf.linalg.matmul(product, matrix)
                sums.append(tf.reduce_sum(product))
        return sums

    matrices = []
    for device in devices:
        with get_device_context(device):
            # Its powers stay what it is: nothing overflows.
            matrices.append(tf.fill([_MATRIX_WIDTH, _MATRIX_WIDTH], 1.0 / _MATRIX_WIDTH))
    function = tf.function(compute, autograph=False)
    function(matrices)
    return _time_best(lambda: tf.add_n([tf.identity(each) for each in function(matrices)]))


def _time_best(work: Callable[[], Any]) -> float:
    """Seconds of the fastest of some times; what the work gives is waited for."""
    seconds = []
    for _ in range(_REPEATS):
        began = time.perf_counter()
        given = work()
        if given is not None:
            given.numpy()
        seconds.append(time.perf_counter() - began)
    return min(seconds)
