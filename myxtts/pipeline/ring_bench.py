"""How fast batches go through shared memory, in GB/s."""

from __future__ import annotations

import os
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np

from myxtts.data.throughput import MOST_STEAL, StealMeter
from myxtts.pipeline.paced_task import BATCH_BYTES, make_batch, make_paced_producer
from myxtts.pipeline.ring import Ring, copy_arrays

ROUNDS = 40
HAND_OVERS = 400
MOST_ATTEMPTS = 3


@dataclass(frozen=True)
class RingSpeed:
    """Medians over batches."""

    batch_bytes: int
    pack: float
    """Into a slot, with its checksum."""
    read: float
    """Verifying a slot: the checksum alone."""
    copy_out: float
    """Out of a slot, verified."""
    round_trip: float
    """From process to process: pack, message, verify, copy out, release; the two sides overlap."""
    steal: float
    discarded: int = 0


def bench_ring(batch_bytes: int = BATCH_BYTES, rounds: int = ROUNDS, hand_overs: int = HAND_OVERS) -> RingSpeed:
    """Measures until the host took little away, or three times."""
    speeds: list[RingSpeed] = []
    while len(speeds) < MOST_ATTEMPTS and not (speeds and speeds[-1].steal <= MOST_STEAL):
        speeds.append(_measure(batch_bytes, rounds, hand_overs))
    return replace(min(speeds, key=lambda speed: speed.steal), discarded=len(speeds) - 1)


def time_ring(batch_bytes: int, rounds: int = ROUNDS) -> tuple[float, float, float]:
    """Median seconds to pack a batch into a slot, to verify it there, and to verify and copy it out."""
    batch = make_batch(batch_bytes)
    reader = Ring.create(3, 2 * batch_bytes)
    writer = Ring.attach(os.dup(reader.fileno()), reader.slots, reader.slot_bytes)
    try:
        content = writer.pack(0, batch)
        return (
            _time_median(lambda: writer.pack(0, batch), rounds),
            _time_median(lambda: reader.read(0, content), rounds),
            _time_median(lambda: copy_arrays(reader.read(0, content), np.array), rounds),
        )
    finally:
        reader.close()
        writer.close()


def _measure(batch_bytes: int, rounds: int, hand_overs: int) -> RingSpeed:
    steal = StealMeter()
    pack, read, copy_out = (batch_bytes / each / 1e9 for each in time_ring(batch_bytes, rounds))
    round_trip = batch_bytes / _time_hand_overs(batch_bytes, hand_overs) / 1e9
    return RingSpeed(batch_bytes, pack, read, copy_out, round_trip, steal.read_share())


def _time_median(action: Callable[[], object], rounds: int) -> float:
    seconds = []
    for _ in range(rounds):
        started = time.perf_counter()
        action()
        seconds.append(time.perf_counter() - started)
    return statistics.median(seconds)


def _time_hand_overs(batch_bytes: int, count: int) -> float:
    """The median time between two batches of a producer that has nothing to do but to pack."""
    with make_paced_producer(0.0, count, batch_bytes) as producer:
        moments = []
        for _ in range(count):
            copy_arrays(producer.take().arrays, np.array)
            producer.release()
            moments.append(time.perf_counter())
    return float(np.median(np.diff(moments)))
