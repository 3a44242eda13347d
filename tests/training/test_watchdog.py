"""A training thread that hangs is named, with its stack, and the run ends; one that is only slow is left alone."""

from __future__ import annotations

import threading
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, TypeVar

import pytest

from myxtts.errors import StageStalledError
from myxtts.monitoring.step_clock import StepClock
from myxtts.monitoring.time_ledger import Cause, TimeLedger
from myxtts.pipeline.stage import FINAL, TimeLimits, Work
from myxtts.training import stopping as watchdog
from myxtts.training.run_log import RunLog, read_start_work
from myxtts.training.stopping import EXIT_CODE, StalledNow, Watchdog
from tests.pipeline.clocks import ManualClock

T = TypeVar("T")

TOO_LONG_S = 30
LONG_S = 600.0
SOON = TimeLimits(steady_s=0.04, first_s=0.04)
ADVICE = "To go on: python train_main.py --resume"


class Told:
    """What a watchdog says, and whether it ended the process."""

    def __init__(self) -> None:
        self.warnings: list[str] = []
        self.has_warned = threading.Event()
        self.last_word: str | None = None
        self.exit_code: int | None = None
        self.has_ended = threading.Event()

    def warn(self, text: str) -> None:
        self.warnings.append(text)
        self.has_warned.set()

    def force(self, text: str) -> None:
        self.last_word = text

    def end(self, code: int) -> None:
        self.exit_code = code
        self.has_ended.set()


def watch(read_work: Any, told: Told, limits: TimeLimits = SOON, **options: Any) -> Watchdog:
    return Watchdog(
        read_work,
        limits,
        advise=lambda: ADVICE,
        on_warning=told.warn,
        on_force=told.force,
        end_process=told.end,
        **options,
    )


def hang_in_python() -> None:
    """As a wait with a timeout does: Python runs now and then."""
    never = threading.Event()
    for _ in range(100 * TOO_LONG_S):
        never.wait(0.01)
    raise AssertionError("nobody ended it")


@pytest.fixture
def ledger() -> TimeLedger:
    ledger = TimeLedger()
    ledger.begin_loop()
    return ledger


def make_watch(ledger: TimeLedger, steps: int = 1) -> Any:
    clock = StepClock()
    for _ in range(steps):
        clock.end_step()
    return SimpleNamespace(ledger=ledger, clock=clock)


class SlowSource:
    """A source whose thread is the one that trains, as in the single mode."""

    def __init__(self, part: str | None = None):
        self._work = None if part is None else Work(part, 7, 0.0)

    def read_work(self) -> Work | None:
        return self._work


def do(ledger: TimeLedger, cause: Cause, work: Callable[[], T]) -> T:
    """Does something that is booked under a cause."""
    with ledger.spend(cause):
        return work()


@pytest.mark.parametrize(
    ("cause", "part", "name"),
    [
        (Cause.DATA_STALL, "read", "read"),
        (Cause.DATA_STALL, "prepare", "prepare"),
        (Cause.DATA_STALL, "transfer", "transfer"),
        (Cause.STEP, None, "step"),
        (Cause.VALIDATION, None, "validation"),
        (Cause.CHECKPOINT, None, "checkpoint"),
        (Cause.OTHER, None, "reading the losses"),
    ],
)
def test_every_stage_that_hangs_is_named_with_its_stack(
    ledger: TimeLedger, caplog: pytest.LogCaptureFixture, cause: Cause, part: str | None, name: str
) -> None:
    told = Told()
    run, source = make_watch(ledger), SlowSource(part)
    with pytest.raises(StageStalledError, match=f"Stage '{name}' has made no progress") as caught:
        watch(lambda: RunLog.read_work(run, source, LONG_S), told).run(lambda: do(ledger, cause, hang_in_python))
    assert "hang_in_python" in str(caught.value)
    assert ADVICE in str(caught.value)
    assert told.warnings == [f"Stage '{name}' has made no progress" + (" at its item 7" if part else "") + (
        f" for more than {SOON.steady_s:g} s. The run ends if that lasts {FINAL * SOON.steady_s:g} s."
    )]  # fmt: skip
    assert "hang_in_python" in caplog.text, "the warning has the stack"
    assert told.exit_code is None
    assert not any(thread.name == "myxtts-watchdog" for thread in threading.enumerate())


def test_a_thread_that_cannot_be_reached_takes_the_process_with_it(ledger: TimeLedger) -> None:
    told = Told()
    run = make_watch(ledger)
    # A lock without a timeout is as deaf as a driver. It is let go by what would have been the end of the process.
    hanging = watch(lambda: RunLog.read_work(run, None, LONG_S), told, grace_s=0.05)
    with pytest.raises(StageStalledError):
        hanging.run(lambda: do(ledger, Cause.STEP, lambda: told.has_ended.wait(TOO_LONG_S)))
    assert told.exit_code == EXIT_CODE != 0
    assert told.last_word is not None
    assert "Stage 'step'" in told.last_word
    assert ADVICE in told.last_word


def test_last_words_that_hang_do_not_keep_the_process(ledger: TimeLedger, monkeypatch: pytest.MonkeyPatch) -> None:
    """The disk that the training hangs at may be the one that the log lies on."""
    monkeypatch.setattr(watchdog, "LAST_WORDS_S", 0.05)
    told, run = Told(), make_watch(ledger)
    never = threading.Event()
    told.force = lambda text: never.wait(TOO_LONG_S)  # type: ignore[method-assign]
    hanging = watch(lambda: RunLog.read_work(run, None, LONG_S), told, grace_s=0.05)
    with pytest.raises(StageStalledError):
        hanging.run(lambda: do(ledger, Cause.STEP, lambda: told.has_ended.wait(TOO_LONG_S / 2)))
    never.set()
    assert told.exit_code == EXIT_CODE


def test_a_stage_that_is_slow_but_alive_is_never_named(ledger: TimeLedger) -> None:
    told, clock = Told(), ManualClock()
    looks, may_go_on = threading.Semaphore(0), threading.Semaphore(0)
    work = [Work("step", None, 0.0)]

    def read_work() -> Work:
        looks.release()
        may_go_on.acquire(timeout=TOO_LONG_S)
        return work[0]

    def work_slowly() -> None:
        for number in range(40):
            # Each thing takes three quarters of the limit, ten times as long as the limit altogether.
            work[0] = Work("step", None, float(number))
            for _ in range(3):
                assert looks.acquire(timeout=TOO_LONG_S)
                clock.now += 1.0
                may_go_on.release()
        # Time stands still now, and whoever looks may do so to the end.
        may_go_on.release(10**6)

    watch(read_work, told, Looking(TimeLimits(steady_s=4.0, first_s=12.0)), clock=clock).run(work_slowly)
    assert told.warnings == []


class Looking(TimeLimits):
    """Limits that are looked at without a pause."""

    def __init__(self, limits: TimeLimits):
        super().__init__(limits.steady_s, limits.first_s)

    @property
    def look_s(self) -> float:
        return 0.0


def test_work_that_ends_after_the_warning_goes_on(ledger: TimeLedger) -> None:
    told = Told()
    work = [Work("step", None, 0.0)]

    def come_back() -> str:
        assert told.has_warned.wait(TOO_LONG_S)
        work[0] = Work("step", None, 1.0, is_first=True)
        return "back"

    assert watch(lambda: work[0], told, TimeLimits(steady_s=0.04, first_s=1000)).run(come_back) == "back"
    assert len(told.warnings) == 1
    assert told.exit_code is None


@pytest.mark.parametrize(
    ("cause", "is_first", "steps", "expected"),
    [
        (Cause.STEP, False, 3, False),
        (Cause.STEP, True, 3, True),
        (Cause.STEP, False, 0, True),
        (Cause.VALIDATION, False, 3, False),
        (Cause.VALIDATION, True, 3, True),
        (Cause.CHECKPOINT, False, 3, True),
        (Cause.DATA_STALL, False, 3, True),
        (Cause.OTHER, False, 3, True),
    ],
)
def test_first_calls_tracing_and_saving_have_a_limit_of_their_own(
    ledger: TimeLedger, cause: Cause, is_first: bool, steps: int, expected: bool
) -> None:
    with ledger.spend(cause) as span:
        span.is_first = is_first
        assert RunLog.read_work(make_watch(ledger, steps), None, LONG_S).is_first is expected


def test_every_part_of_the_start_is_named_and_has_a_limit_of_its_own() -> None:
    ledger = TimeLedger()
    with ledger.spend(Cause.START_UP, "scanning the corpus") as span:
        span.item = 512
        for work in (read_start_work(ledger, LONG_S), RunLog.read_work(make_watch(ledger), None, LONG_S)):
            assert (work.stage, work.item, work.limit_s) == ("scanning the corpus", 512, LONG_S)
    assert read_start_work(ledger, LONG_S).stage == "start-up"
    ledger.begin_loop()
    assert read_start_work(ledger, LONG_S).stage == "the end of the run"
    assert TimeLimits.from_setting(8).setup_s == 600, "an import may take that long"
    assert TimeLimits.from_setting(300).setup_s == 900
    assert TimeLimits.from_setting(0).setup_s == float("inf")


def test_a_start_that_hangs_ends_at_the_limit_of_its_own() -> None:
    told, ledger = Told(), TimeLedger()
    limits = TimeLimits(steady_s=1000, first_s=1000)
    hanging = watch(lambda: read_start_work(ledger, 0.04), told, Looking(limits))

    def build() -> None:
        with ledger.spend(Cause.START_UP, "building the model"):
            hang_in_python()

    with pytest.raises(
        StageStalledError, match=r"Stage 'building the model' has made no progress for more than 0\.08 s"
    ):
        hanging.run(build)
    assert told.warnings == [
        "Stage 'building the model' has made no progress for more than 0.04 s. The run ends if that lasts 0.08 s."
    ]


@pytest.mark.parametrize("place", ["before the lock", "behind the lock"])
def test_what_is_raised_while_the_watch_is_left_never_comes_out_raw(
    monkeypatch: pytest.MonkeyPatch, place: str
) -> None:
    """What is raised in a thread may arrive anywhere: also where the work is done and the watch about to end."""
    told = Told()
    leave, arrivals = Watchdog._leave, iter([True])

    def interrupted(self: Watchdog) -> None:
        is_struck = next(arrivals, False)
        if is_struck and place == "before the lock":
            raise StalledNow
        leave(self)
        if is_struck:
            raise StalledNow

    monkeypatch.setattr(Watchdog, "_leave", interrupted)
    with pytest.raises(StageStalledError):
        watch(lambda: None, told).run(lambda: "done")
    assert not any(thread.name == "myxtts-watchdog" for thread in threading.enumerate())


def test_without_a_limit_nothing_is_ever_named() -> None:
    limits = TimeLimits.from_setting(0)
    assert limits.steady_s == limits.first_s == float("inf")
    assert TimeLimits.from_setting(100) == TimeLimits(100, 300)


def test_work_that_ends_at_its_very_limit_is_done_or_stalled_and_nothing_else() -> None:
    outcomes = set()
    for spins in range(60):
        told = Told()
        impatient = watch(lambda: Work("step", None, 0.0), told, Looking(TimeLimits(0.0, 0.0)), grace_s=TOO_LONG_S)
        try:
            outcomes.add(impatient.run(lambda spins=spins: "done" if sum(range(40 * spins)) >= 0 else ""))
        except StageStalledError:
            outcomes.add("stalled")
    # What is raised too late would come out here.
    assert sum(range(100_000)) > 0
    assert outcomes <= {"done", "stalled"}
