"""What watching a run costs: the training loop with its watch against the same loop without one."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any, cast

from myxtts.config.resolve import dump_sections
from myxtts.monitoring.memory_watch import Phase
from myxtts.monitoring.metrics_rows import RunRow
from myxtts.monitoring.step_clock import StepClock
from myxtts.monitoring.time_ledger import Cause, Span, TimeLedger
from myxtts.pipeline.batch_facts import BatchFacts
from myxtts.pipeline.batch_memory import BatchMemory
from myxtts.pipeline.batch_meters import BatchMeters
from myxtts.pipeline.batch_source import PipelineFacts
from myxtts.pipeline.handoff import EndOfStream
from myxtts.pipeline.host_source import make_maker
from myxtts.pipeline.order import Kind
from myxtts.pipeline.transfer import DeviceBatch
from myxtts.training.benches.one_thread import run_calls_in_one_thread
from myxtts.training.benches.run import BenchRun
from myxtts.training.endless_production import NEVER
from myxtts.training.interrupts import StopRequests
from myxtts.training.keeper import Keeper, RunProgress
from myxtts.training.learning_rate import compute_learning_rate
from myxtts.training.loop import Intervals, TrainingLoop
from myxtts.training.run_folder import open_run
from myxtts.training.run_watch import RunWatch
from myxtts.training.team import Alone
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
        """Seconds for so many updates, `watched` and `unwatched`: in both orders, so that a drift hits both. `inside`: what
        the watch took of it, by its own account."""
        (first, own_first), (second, _), (third, _), (last, own_last) = [
            self._time(updates, watched=watched) for watched in (True, False, False, True)
        ]
        return {
            "watched": (first + last) / 2,
            "unwatched": (second + third) / 2,
            "inside": (own_first + own_last) / 2,
        }

    def close(self) -> None:
        self._open.close()

    def _time(self, updates: int, *, watched: bool) -> tuple[float, float]:
        """Seconds of a stretch, and those inside the watch."""
        with ExitStack() as closing:
            watch = _Timed(closing.enter_context(self._open_watch()) if watched else cast(RunWatch, NoWatch()))
            source = _SameBatch(self._batch, WARM_UP + updates, watch.read_cost_s)
            closing.enter_context(get_device_context(self._run.plan.model.device))
            closing.enter_context(run_calls_in_one_thread())
            # Nothing is saved at the end of the stretch: a checkpoint is not what is measured.
            self._keeper.saved_step = WARM_UP + updates
            self._make_loop(source, cast(RunWatch, watch)).run()
        return source.moments[-1] - source.moments[WARM_UP], source.costs_s[-1] - source.costs_s[WARM_UP]

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
            team=Alone(),
            intervals=Intervals(log=training.log_interval, checkpoint=NEVER, early_stopping=0),
            stop=StopRequests(),
            listener=self._listener,
            device=run.plan.model.device,
            progress=RunProgress(),
            choose_rate=choose_rate,
            plan_step=make_maker(run.data, Kind.TRAIN, run.config.data).plan_step,
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


class _Timed:
    """A watch that adds up what its calls take."""

    def __init__(self, watch: RunWatch):
        self._watch = watch
        self._calls_s = 0.0

    def __getattr__(self, name: str) -> Any:
        value = getattr(self._watch, name)
        return self._time_calls(value) if callable(value) else value

    def read_cost_s(self) -> float:
        """Seconds so far: in calls from the loop, and of the processor in threads beside it."""
        beside = [thread for thread in threading.enumerate() if thread is not threading.current_thread()]
        clocks = [time.pthread_getcpuclockid(thread.ident) for thread in beside if thread.ident is not None]
        return self._calls_s + sum(map(time.clock_gettime, clocks))

    def _time_calls(self, call: Callable[..., Any]) -> Callable[..., Any]:
        def timed(*arguments: Any, **facts: Any) -> Any:
            started = time.perf_counter()
            try:
                return call(*arguments, **facts)
            finally:
                self._calls_s += time.perf_counter() - started

        return timed


class _SameBatch:
    """A source that never waits: the same batch a number of times. Notes when each was asked for, and the end."""

    def __init__(self, batch: DeviceBatch, count: int, read_cost_s: Callable[[], float]):
        self._batch = batch
        self._count = count
        self._read_cost_s = read_cost_s
        self.moments: list[float] = []
        self.costs_s: list[float] = []
        """Of the watch so far, at each moment."""

    def take(self) -> DeviceBatch:
        self.moments.append(time.perf_counter())
        self.costs_s.append(self._read_cost_s())
        number = len(self.moments) - 1
        if number == self._count:
            raise EndOfStream
        return self._batch._replace(facts=self._batch.facts._replace(number=number, updates=number))

    def advance(self) -> None:
        """Nothing is prepared."""

    def release(self) -> None:
        """The batch stays."""

    def read_work(self) -> None:
        """Nothing is prepared."""

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

    def count_batch(self, facts: BatchFacts, memory: BatchMemory, *, has_traced: bool, is_retrace: bool) -> None:
        """Nothing is counted."""

    def end_phase(self, step: int, phase: Phase, *, has_traced: bool) -> None:
        """Nothing is looked at."""

    def log_steps(self, **facts: Any) -> None:
        """Nothing is told."""


class _NoLedger:
    @contextmanager
    def spend(self, cause: Cause) -> Iterator[Span]:
        yield Span(cause)


class _NoClock(StepClock):
    def end_step(self) -> None:
        """Nothing is counted."""
