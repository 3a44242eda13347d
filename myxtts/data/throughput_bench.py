"""The measurement behind `myxtts bench data`: our reader against what one would do without it, on the same clips."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial

from myxtts.config import DataConfig
from myxtts.data.open_engine import (
    Engine,
    ReadAhead,
    choose_engine,
    choose_read_ahead,
    choose_workers,
    explain_no_native_loading,
    start_engine,
)
from myxtts.data.throughput import Contender, Rate, measure_in_turn
from myxtts.data.throughput_loops import Material, measure_stages, open_pinned_processes, open_plain_loop, open_reader
from myxtts.data.workers import count_workers

TARGET_SHARE = 0.85
"""Of the machine's own parallel gain: what our reader must at least reach over the plain loop."""

PLAIN, NAIVE = "plain loop, one thread", "naive tf.data"
PROCESSES, NATIVE, HERE = "ours, reader processes", "ours, TF-native", "ours, in this process"
ONE_PINNED, ALL_PINNED = "one pinned process, decoding", "all pinned processes, decoding"

_NAMES = {Engine.PROCESSES: PROCESSES, Engine.NATIVE: NATIVE, Engine.HERE: HERE}


@dataclass(frozen=True)
class BenchResult:
    """All that was measured."""

    clips: int
    mean_seconds: float
    batch_size: int
    workers: int
    clips_per_row: int
    """That a run reads: 2 where voice prompts are cut from other clips. What is measured here is single clips."""
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
    cores: int
    """That this process may use."""

    @property
    def was_busy(self) -> bool:
        """Whether others used more than a quarter of the machine when it began. Who has more threads then gets more of it."""
        return self.load_average[0] > self.cores / 4

    @property
    def machine_gain(self) -> float:
        """What as many pinned processes as there are workers do, over one. No reader can be expected to gain more."""
        if self.workers == 1:
            # The same thing measured twice: what differs is the machine's mood.
            return 1.0
        return self.loading[ALL_PINNED].clips_per_s / self.loading[ONE_PINNED].clips_per_s

    @property
    def gain(self) -> float:
        """Ours over the plain loop."""
        return self.loading[self.in_force].clips_per_s / self.loading[PLAIN].clips_per_s

    @property
    def rows_per_s(self) -> float:
        """Rows of batches that a run can have at most."""
        return self.loading[self.in_force].clips_per_s / self.clips_per_row

    @property
    def over_naive(self) -> float:
        """Ours over naive tf.data."""
        return self.loading[self.in_force].clips_per_s / self.loading[NAIVE].clips_per_s


def bench_reading(material: Material, data: DataConfig, seconds: float, rounds: int) -> BenchResult:
    """Measure each stage alone, then all contenders in turn, `rounds` times `seconds` each."""
    load_before = os.getloadavg()[0]
    workers = max(1, choose_workers(data))
    ahead = choose_read_ahead(data, [material.sampler.plan], accumulation=material.sampler.accumulation)
    choice = choose_engine(data, [material.corpus])
    is_plain_wav = explain_no_native_loading([material.corpus]) is None
    engines = [Engine.PROCESSES, *([Engine.NATIVE] if is_plain_wav else [])]
    if choice.engine not in engines:
        engines.append(choice.engine)
    stages = measure_stages(material, seconds)
    contenders = {
        **_list_baselines(material, data, workers, seconds, is_plain_wav=is_plain_wav),
        **{_NAMES[engine]: _make_contender(material, data, ahead, engine) for engine in engines},
    }
    measured = measure_in_turn(contenders, rounds, seconds)
    return BenchResult(
        clips=len(material.corpus),
        mean_seconds=material.corpus.total_seconds / len(material.corpus),
        batch_size=data.batch_size,
        workers=workers,
        clips_per_row=2 if data.prompt_from == "speaker" else 1,
        in_force=_NAMES[choice.engine],
        native_objection=choice.why_not_native,
        stages=stages,
        loading=measured.rates,
        load_average=(load_before, os.getloadavg()[0]),
        windows=measured.windows,
        discarded=measured.discarded,
        cores=count_workers(),
    )


def _list_baselines(
    material: Material, data: DataConfig, workers: int, seconds: float, *, is_plain_wav: bool
) -> dict[str, Contender]:
    # Not imported above: a process that only decodes must not wait for TensorFlow.
    from myxtts.data.throughput_tf import open_naive_dataset

    return {
        PLAIN: partial(open_plain_loop, material),
        NAIVE: partial(open_naive_dataset, material, data.batch_size, is_plain_wav=is_plain_wav),
        ONE_PINNED: partial(open_pinned_processes, material, 1, seconds),
        ALL_PINNED: partial(open_pinned_processes, material, workers, seconds),
    }


def _make_contender(material: Material, data: DataConfig, ahead: ReadAhead, engine: Engine) -> Contender:
    return partial(open_reader, material, partial(start_engine, engine, data, ahead), ahead.depth)
