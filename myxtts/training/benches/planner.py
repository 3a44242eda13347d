"""The measurement behind `myxtts bench planner`: is what `--mode auto` would choose the fastest mode, or nearly so?

Stages hold their device for a set time, so that every mode can be tried on any machine, through the threads, slots and
processes of a real run. For each workload the planner measures a few batches and chooses; then every mode runs, with and
without kept codes where there are some, and the one chosen is compared with the fastest. No TensorFlow here.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace

import numpy as np

from myxtts.cluster.paced_workers import Pace, run_paced_workers
from myxtts.data.throughput import MOST_STEAL, StealMeter
from myxtts.pipeline.paced_bench import SERIES, WARM_UP_BATCHES, run_paced
from myxtts.pipeline.paced_task import BATCH_BYTES, hold, make_batch
from myxtts.pipeline.ring import copy_arrays
from myxtts.pipeline.ring_bench import time_ring
from myxtts.training.modes.choice import choose_mode
from myxtts.training.modes.prediction import WINDOWS, WORKERS, Candidate, Circumstances, Layout, StageCosts

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
    """Of preparing, what a cache saves; 0 for a run that can keep no codes."""
    exchange_ms: float = 4.0
    """Of the gradients, where two devices train."""
    half_share: float = 0.5
    """Of the time of training, what it takes with half the clips."""
    epochs: int = 100


WORKLOADS = (
    # Preparing a hundredth, a tenth, half, all and twice of training: a published model, a middle one, small ones.
    *(Workload(40 * ratio, 1, 40) for ratio in (0.01, 0.1, 0.5, 1.0)),
    Workload(40, 1, 20),
    # Gradients that take long to cross, and batches too small to fill a device.
    Workload(0.4, 1, 40, exchange_ms=30),
    Workload(20, 1, 40, half_share=0.9),
    # A slow way between the devices, for batches and for gradients.
    *(Workload(10, transfer, 30, exchange_ms=40) for transfer in (20, 60)),
    Workload(30, 35, 10, exchange_ms=40),
    # Codes that are made once: hidden behind training anyway, not hidden, and in a run too short for it.
    Workload(30, 1, 40, codes_ms=28, exchange_ms=40),
    Workload(30, 1, 10, codes_ms=20, exchange_ms=40),
    Workload(60, 1, 20, codes_ms=55),
    Workload(60, 1, 20, codes_ms=55, exchange_ms=40, epochs=2),
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


@dataclass(frozen=True)
class PlannerOutcome:
    """One workload."""

    workload: Workload
    chosen: str
    """As `Candidate` names it."""
    predicted_ms: Mapping[str, float]
    reached_ms: Mapping[str, float]
    """Per batch, of every candidate, tried for longer."""
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
        exchange_s=workload.exchange_ms / 1000,
        half_share=_time(lambda: hold(train_s * workload.half_share), batches) / _time(lambda: hold(train_s), batches),
    )


def _try_workload(workload: Workload, cases: PlannerCases) -> PlannerOutcome:
    steal = StealMeter()
    costs = measure_workload(workload, cases.measured_batches, cases.batch_bytes)
    around = Circumstances(epochs=workload.epochs, kept_obstacle=None if workload.codes_ms else "There are none.")
    choice = choose_mode(costs, around, devices=("", ""))
    return PlannerOutcome(
        workload=workload,
        chosen=str(Candidate(choice.layout, choice.keeps_codes)),
        predicted_ms={str(each.candidate): each.step_s * 1000 for each in choice.predictions},
        reached_ms=_try_all(workload, cases),
        steal=steal.read_share(),
    )


def _try_all(workload: Workload, cases: PlannerCases) -> dict[str, float]:
    """Milliseconds per batch of every candidate, over all epochs."""
    reached_ms = {}
    kept = replace(workload, prepare_ms=workload.prepare_ms - workload.codes_ms)
    for layout in Layout:
        online_ms = _run(layout, workload, cases.batches, cases.batch_bytes) * 1000
        reached_ms[str(Candidate(layout))] = online_ms
        if workload.codes_ms:
            found_ms = _run(layout, kept, cases.batches, cases.batch_bytes) * 1000
            # The first epoch is one without them.
            mean_ms = (online_ms + (workload.epochs - 1) * found_ms) / workload.epochs
            reached_ms[str(Candidate(layout, keeps_codes=True))] = mean_ms
    return reached_ms


def _run(layout: Layout, workload: Workload, batches: int, batch_bytes: int) -> float:
    """Seconds per batch in a mode, after the batches that fill it."""
    prepare_s, train_s, count = workload.prepare_ms / 1000, workload.train_ms / 1000, WARM_UP_BATCHES + batches
    if layout is Layout.DATA_PARALLEL:
        pace = Pace(prepare_s / WORKERS, train_s * workload.half_share, workload.exchange_ms / 1000, count)
        done = run_paced_workers(WORKERS, pace)
    else:
        engine = SERIES if layout is Layout.SINGLE else str(layout)
        done = run_paced(engine, prepare_s, train_s, count, batch_bytes, workload.transfer_ms / 1000)
    return float(np.diff(done[WARM_UP_BATCHES - 1 :]).mean())


def _time(work: Callable[[], None], times: int) -> float:
    began = time.perf_counter()
    for _ in range(times):
        work()
    return (time.perf_counter() - began) / times
