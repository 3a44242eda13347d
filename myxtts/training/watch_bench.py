"""What watching a run costs: the training loop with its watch against the same loop without one."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any, cast

from myxtts.config.resolve import dump_sections
from myxtts.monitoring.metrics_rows import RunRow
from myxtts.monitoring.step_clock import StepClock
from myxtts.monitoring.time_ledger import Cause, Span, TimeLedger
from myxtts.pipeline.batch_facts import BatchFacts
from myxtts.pipeline.batch_meters import BatchMeters
from myxtts.pipeline.batch_source import PipelineFacts
from myxtts.pipeline.handoff import EndOfStream
from myxtts.pipeline.transfer import DeviceBatch
from myxtts.training.bench_run import NEVER, BenchRun
from myxtts.training.interrupts import StopRequests
from myxtts.training.keeper import Keeper, RunProgress
from myxtts.training.learning_rate import compute_learning_rate
from myxtts.training.loop import Intervals, TrainingLoop
from myxtts.training.one_thread import run_calls_in_one_thread
from myxtts.training.run_folder import open_run
from myxtts.training.run_watch import RunWatch
from myxtts.training.trained_model import TrainedModel
from myxtts.training.updates import UpdateMaker
from myxtts.utils.commons import get_device_context

WARM_UP = 2


class WatchBench:
    """Runs stretches of the loop on one batch, with and without a watch.

    Args:
        batch: on the model device.
    """

    def __init__(self, run: BenchRun, trained: TrainedModel, batch: DeviceBatch):
        self._run = run
        self._trained = trained
        self._batch = batch
        with get_device_context(run.plan.model.device):
            self._listener = trained.make_listener(run.folder)
        self._open = ExitStack()
        folder = self._open.enter_context(open_run(run.config, command=("myxtts", "bench", "pipeline")))
        self._keeper = Keeper(folder, run.config, trained, run.data, {})

    def run(self, updates: int) -> dict[str, float]:
        """Seconds for so many updates, `watched` and `unwatched`: in both orders, so that a drift hits both."""
        stretches = [self._time(updates, watched=watched) for watched in (True, False, False, True)]
        return {"watched": (stretches[0] + stretches[3]) / 2, "unwatched": (stretches[1] + stretches[2]) / 2}

    def close(self) -> None:
        self._open.close()

    def _time(self, updates: int, *, watched: bool) -> float:
        source = _SameBatch(self._batch, WARM_UP + updates)
        with ExitStack() as closing:
            watch = closing.enter_context(self._open_watch()) if watched else cast(RunWatch, NoWatch())
            closing.enter_context(get_device_context(self._run.plan.model.device))
            closing.enter_context(run_calls_in_one_thread())
            # Nothing is saved at the end of the stretch: a checkpoint is not what is measured.
            self._keeper.saved_step = WARM_UP + updates
            self._make_loop(source, watch).run()
        return source.moments[-1] - source.moments[WARM_UP]

    def _make_loop(self, source: _SameBatch, watch: RunWatch) -> TrainingLoop:
        run, training = self._run, self._run.config.training

        def choose_rate(step: int) -> float:
            return compute_learning_rate(training, step, NEVER)

        return TrainingLoop(
            source=source,
            trained=self._trained,
            updates=UpdateMaker(self._trained.step, choose_rate, accumulation=1),
            order=run.production.make_order(run.data),
            data=run.data,
            keeper=self._keeper,
            watch=watch,
            intervals=Intervals(log=training.log_interval, checkpoint=NEVER, early_stopping=0),
            stop=StopRequests(),
            listener=self._listener,
            device=run.plan.model.device,
            progress=RunProgress(),
            choose_rate=choose_rate,
        )

    def _open_watch(self) -> RunWatch:
        run = self._run
        row = RunRow(
            time_s=time.time(),
            step=0,
            end_step=NEVER,
            stage="gpt",
            mode=str(run.plan.mode),
            devices={"data": run.plan.data.device, "model": run.plan.model.device},
            settings=dump_sections(run.config),
            environment={},
        )
        return RunWatch(
            run.folder,
            ledger=TimeLedger(),
            row=row,
            resumed=False,
            plan=run.plan,
            tensorboard=run.folder / "tensorboard",
            epochs=None,
            checkpoint_interval=NEVER,
        )


class _SameBatch:
    """A source that never waits: the same batch a number of times. Notes when each was asked for, and the end."""

    def __init__(self, batch: DeviceBatch, count: int):
        self._batch = batch
        self._count = count
        self.moments: list[float] = []

    def take(self) -> DeviceBatch:
        self.moments.append(time.perf_counter())
        number = len(self.moments) - 1
        if number == self._count:
            raise EndOfStream
        return self._batch._replace(facts=self._batch.facts._replace(number=number, updates=number))

    def advance(self) -> None:
        """Nothing is prepared."""

    def release(self) -> None:
        """The batch stays."""

    def read_facts(self, reset: bool = False) -> PipelineFacts:
        return PipelineFacts((), (), BatchMeters())

    def close(self) -> None:
        """There is nothing to end."""


class NoWatch:
    """Takes the place of a `RunWatch`, and looks at nothing."""

    def __init__(self) -> None:
        self.ledger = _NoLedger()
        self.clock = _NoClock()

    def begin_loop(self) -> None:
        """Nothing is counted."""

    def count_batch(self, facts: BatchFacts) -> None:
        """Nothing is counted."""

    def log_steps(self, **facts: Any) -> None:
        """Nothing is told."""


class _NoLedger:
    @contextmanager
    def spend(self, cause: Cause) -> Iterator[Span]:
        yield Span(cause)


class _NoClock(StepClock):
    def end_step(self) -> None:
        """Nothing is counted."""
