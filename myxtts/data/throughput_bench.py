"""The measurement behind `myxtts bench data`: our reader against what one would do without it, on the same clips."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial

from myxtts.config import DataConfig
from myxtts.data.loading import LoadingEngine
from myxtts.data.loading_workers import WorkerEngine
from myxtts.data.open_engine import ReadAhead, choose_read_ahead, choose_workers, explain_no_native_loading
from myxtts.data.throughput import Contender, Rate, measure_in_turn
from myxtts.data.throughput_loops import Material, measure_stages, open_pinned_processes, open_plain_loop, open_reader

TARGET_SHARE = 0.85
"""Of the machine's own parallel gain: what our reader must at least reach over the plain loop."""

PLAIN, NAIVE, PROCESSES, NATIVE = "plain loop, one thread", "naive tf.data", "ours, reader processes", "ours, TF-native"
ONE_PINNED, ALL_PINNED = "one pinned process, decoding", "all pinned processes, decoding"


@dataclass(frozen=True)
class BenchResult:
    """All that was measured."""

    clips: int
    mean_seconds: float
    batch_size: int
    workers: int
    in_force: str
    """Which of ours a run would use."""
    native_objection: str | None
    """Why that is not TF-native loading, if it is not."""
    stages: Mapping[str, Rate | None]
    """One thread, each stage alone; None where the corpus does not need it."""
    loading: Mapping[str, Rate]
    load_average: tuple[float, float]
    """Of the machine, at the beginning and at the end."""
    windows: int
    discarded: int

    @property
    def machine_gain(self) -> float:
        """What as many pinned processes as there are workers do, over one. No reader can be expected to gain more."""
        return self.loading[ALL_PINNED].clips_per_s / self.loading[ONE_PINNED].clips_per_s

    @property
    def gain(self) -> float:
        """Ours over the plain loop."""
        return self.loading[self.in_force].clips_per_s / self.loading[PLAIN].clips_per_s

    @property
    def over_naive(self) -> float:
        """Ours over naive tf.data."""
        return self.loading[self.in_force].clips_per_s / self.loading[NAIVE].clips_per_s


def bench_reading(material: Material, data: DataConfig, seconds: float, rounds: int) -> BenchResult:
    """Measure each stage alone, then all contenders in turn, `rounds` times `seconds` each."""
    load_before = os.getloadavg()[0]
    workers = max(1, choose_workers(data))
    ahead = choose_read_ahead(data, [material.sampler.plan], accumulation=material.sampler.accumulation)
    objection = explain_no_native_loading(data, [material.corpus])
    stages = measure_stages(material, seconds)
    contenders = _list_contenders(material, data, ahead, workers, seconds, is_plain_wav=objection is None)
    measured = measure_in_turn(contenders, rounds, seconds)
    return BenchResult(
        clips=len(material.corpus),
        mean_seconds=material.corpus.total_seconds / len(material.corpus),
        batch_size=data.batch_size,
        workers=workers,
        in_force=PROCESSES if objection else NATIVE,
        native_objection=objection,
        stages=stages,
        loading=measured.rates,
        load_average=(load_before, os.getloadavg()[0]),
        windows=measured.windows,
        discarded=measured.discarded,
    )


def _list_contenders(
    material: Material, data: DataConfig, ahead: ReadAhead, workers: int, seconds: float, *, is_plain_wav: bool
) -> dict[str, Contender]:
    # Not imported above: a process that only decodes must not wait for TensorFlow.
    from myxtts.data.loading_tf import NativeEngine
    from myxtts.data.throughput_tf import open_naive_dataset

    ours: dict[str, Callable[[], LoadingEngine]] = {
        PROCESSES: partial(WorkerEngine, workers, ahead.depth, ahead.slot_samples)
    }
    if is_plain_wav:
        ours[NATIVE] = partial(
            NativeEngine,
            workers,
            ahead.depth,
            parallel_batch=data.enable_parallel_batch,
            map_fusion=data.enable_map_fusion,
        )
    return {
        PLAIN: partial(open_plain_loop, material),
        NAIVE: partial(open_naive_dataset, material, data.batch_size, is_plain_wav=is_plain_wav),
        **{name: partial(open_reader, material, make_engine, ahead.depth) for name, make_engine in ours.items()},
        ONE_PINNED: partial(open_pinned_processes, material, 1, seconds),
        ALL_PINNED: partial(open_pinned_processes, material, workers, seconds),
    }
