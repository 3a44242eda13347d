"""The measurement behind `myxtts bench planner`: is what `--mode auto` would choose the fastest mode, or nearly so?

Stages hold their device for a set time, so that every mode can be tried on any machine, through the threads, slots and
processes of a real run. For each workload the planner measures a few batches and chooses; then every mode runs, and the one
chosen is compared with the fastest. No TensorFlow here.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace

import numpy as np

from myxtts.data.throughput import MOST_STEAL, StealMeter
from myxtts.pipeline.paced_bench import SERIES, WARM_UP_BATCHES, run_paced
from myxtts.pipeline.paced_task import BATCH_BYTES, hold, make_batch
from myxtts.pipeline.ring import copy_arrays
from myxtts.pipeline.ring_bench import time_ring
from myxtts.training.mode_choice import choose_mode
from myxtts.training.mode_prediction import WINDOWS, Candidate, Circumstances, Layout, StageCosts

TRIED = (Layout.SINGLE, Layout.DUAL, Layout.ISOLATED)
"""What can be chosen; the word of each is that of its paced engine."""
MOST_REGRET = 0.05
"""How much slower than the best the choice may be."""
_MOST_ATTEMPTS = 2


@dataclass(frozen=True)
class Workload:
    """Milliseconds that each stage holds its device for a batch."""

    prepare_ms: float
    transfer_ms: float
    train_ms: float
    codes_ms: float = 0.0
    """Of preparing, what a cache saves; 0 for a run that keeps no codes."""


WORKLOADS = (
    # Preparing a hundredth, a tenth, half, all and twice of training: a published model, a middle one, small ones.
    *(Workload(40 * ratio, 1, 40) for ratio in (0.01, 0.1, 0.5, 1.0)),
    Workload(40, 1, 20),
    # A slow way between the devices.
    *(Workload(10, transfer, 30) for transfer in (20, 60)),
    Workload(30, 35, 10),
    # Codes that are made once.
    Workload(30, 1, 40, codes_ms=28),
    Workload(30, 1, 10, codes_ms=20),
)


@dataclass(frozen=True)
class PlannerCases:
    """What is run."""

    workloads: tuple[Workload, ...] = WORKLOADS
    measured_batches: int = 8
    """Of the short measurement, of each of its parts."""
    batches: int = 60
    """Of each mode that is tried, after its warm-up."""
    batch_bytes: int = BATCH_BYTES
    epochs: int = 100


@dataclass(frozen=True)
class PlannerOutcome:
    """One workload."""

    workload: Workload
    chosen: str
    predicted_ms: Mapping[str, float]
    reached_ms: Mapping[str, float]
    """Per batch, by mode, tried for longer."""
    steal: float
    discarded: int = 0

    @property
    def best(self) -> str:
        return min(self.reached_ms, key=lambda mode: self.reached_ms[mode])

    @property
    def regret(self) -> float:
        """How much longer a batch takes in the mode chosen than in the fastest, as a share."""
        return self.reached_ms[self.chosen] / self.reached_ms[self.best] - 1

    @property
    def is_quiet(self) -> bool:
        return self.steal <= MOST_STEAL


def bench_planner(cases: PlannerCases) -> Iterator[PlannerOutcome]:
    """All workloads in turn; one that the host disturbed is tried again."""
    for workload in cases.workloads:
        outcomes: list[PlannerOutcome] = []
        while len(outcomes) < _MOST_ATTEMPTS and not (outcomes and outcomes[-1].is_quiet):
            outcomes.append(_try_workload(workload, cases))
        yield replace(min(outcomes, key=lambda outcome: outcome.steal), discarded=len(outcomes) - 1)


def measure_workload(workload: Workload, batches: int, batch_bytes: int) -> StageCosts:
    """What a planner finds out about a workload from a few batches."""
    prepare_s, transfer_s, train_s = (
        each / 1000 for each in (workload.prepare_ms, workload.transfer_ms, workload.train_ms)
    )
    batch = make_batch(batch_bytes)

    def transfer() -> None:
        hold(transfer_s)
        copy_arrays(batch, np.array)

    pack_s, _, unpack_s = time_ring(batch_bytes, batches)
    return StageCosts(
        prepare_s=_time(lambda: hold(prepare_s), batches),
        transfer_s=_time(transfer, batches),
        train_s=_time(lambda: hold(train_s), batches),
        single_s=min(_run(Layout.SINGLE, workload, batches, batch_bytes) for _ in range(WINDOWS)),
        dual_s=min(_run(Layout.DUAL, workload, batches, batch_bytes) for _ in range(WINDOWS)),
        codes_s=workload.codes_ms / 1000,
        pack_s=pack_s,
        unpack_s=unpack_s,
    )


def _try_workload(workload: Workload, cases: PlannerCases) -> PlannerOutcome:
    steal = StealMeter()
    costs = measure_workload(workload, cases.measured_batches, cases.batch_bytes)
    keeps_codes = workload.codes_ms > 0
    around = Circumstances(
        epochs=cases.epochs,
        kept_obstacle=None if keeps_codes else "There are none.",
        online_obstacle="codes are kept" if keeps_codes else None,
    )
    choice = choose_mode(costs, around, devices=("", ""))
    predicted = {each.candidate: each.step_s for each in choice.predictions}
    # Once the codes are there: the first epoch of many.
    left = replace(workload, prepare_ms=workload.prepare_ms - workload.codes_ms)
    return PlannerOutcome(
        workload=workload,
        chosen=str(choice.layout),
        predicted_ms={str(layout): predicted[Candidate(layout, keeps_codes)] * 1000 for layout in TRIED},
        reached_ms={str(layout): _run(layout, left, cases.batches, cases.batch_bytes) * 1000 for layout in TRIED},
        steal=steal.read_share(),
    )


def _run(layout: Layout, workload: Workload, batches: int, batch_bytes: int) -> float:
    """Seconds per batch in a mode, after the batches that fill it."""
    done = run_paced(
        SERIES if layout is Layout.SINGLE else str(layout),
        workload.prepare_ms / 1000,
        workload.train_ms / 1000,
        WARM_UP_BATCHES + batches,
        batch_bytes,
        workload.transfer_ms / 1000,
    )
    return float(np.diff(done[WARM_UP_BATCHES - 1 :]).mean())


def _time(work: Callable[[], None], times: int) -> float:
    began = time.perf_counter()
    for _ in range(times):
        work()
    return (time.perf_counter() - began) / times
