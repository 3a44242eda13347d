"""A training thread that hangs is named, with its stack, and the run ends; one that is only slow is left alone."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import pytest

from myxtts.errors import StageStalledError
from myxtts.monitoring.step_clock import StepClock
from myxtts.monitoring.time_ledger import Cause, TimeLedger
from myxtts.pipeline.patience import FINAL, Patience, Work
from myxtts.training import watchdog
from myxtts.training.run_work import read_run_work
from myxtts.training.watchdog import EXIT_CODE, Watchdog
from tests.pipeline.clocks import ManualClock

TOO_LONG_S = 30
SOON = Patience(item_s=0.04, first_item_s=0.04)
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


def watch(read_work: Any, told: Told, patience: Patience = SOON, **options: Any) -> Watchdog:
    return Watchdog(
        read_work, patience, advice=ADVICE, on_warning=told.warn, on_force=told.force, end_process=told.end, **options
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


@contextmanager
def doing(ledger: TimeLedger, cause: Cause) -> Iterator[None]:
    with ledger.spend(cause):
        yield


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
    with (
        pytest.raises(StageStalledError, match=f"Stage '{name}' has made no progress") as caught,
        watch(lambda: read_run_work(run, source), told),
        doing(ledger, cause),
    ):
        hang_in_python()
    assert "hang_in_python" in str(caught.value)
    assert ADVICE in str(caught.value)
    assert told.warnings == [f"Stage '{name}' has made no progress" + (" at its item 7" if part else "") + (
        f" for more than {SOON.item_s:g} s. The run ends if that lasts {FINAL * SOON.item_s:g} s."
    )]  # fmt: skip
    assert "hang_in_python" in caplog.text, "the warning has the stack"
    assert told.exit_code is None
    assert not any(thread.name == "myxtts-watchdog" for thread in threading.enumerate())


def test_a_thread_that_cannot_be_reached_takes_the_process_with_it(ledger: TimeLedger) -> None:
    told = Told()
    run = make_watch(ledger)
    # A lock without a timeout is as deaf as a driver. It is let go by what would have been the end of the process.
    with (
        pytest.raises(StageStalledError),
        watch(lambda: read_run_work(run, None), told, grace_s=0.05),
        ledger.spend(Cause.STEP),
    ):
        assert told.has_ended.wait(TOO_LONG_S)
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
    with (
        pytest.raises(StageStalledError),
        watch(lambda: read_run_work(run, None), told, grace_s=0.05),
        ledger.spend(Cause.STEP),
    ):
        assert told.has_ended.wait(TOO_LONG_S / 2)
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

    patience = Patience(item_s=4.0, first_item_s=12.0)
    with watch(read_work, told, Looking(patience), clock=clock):
        for number in range(40):
            # Each thing takes three quarters of the limit, ten times as long as the limit altogether.
            work[0] = Work("step", None, float(number))
            for _ in range(3):
                assert looks.acquire(timeout=TOO_LONG_S)
                clock.now += 1.0
                may_go_on.release()
        # Time stands still now, and whoever looks may do so to the end.
        may_go_on.release(10**6)
    assert told.warnings == []


class Looking(Patience):
    """A patience that is looked at without a pause."""

    def __init__(self, patience: Patience):
        super().__init__(patience.item_s, patience.first_item_s)

    @property
    def look_s(self) -> float:
        return 0.0


def test_work_that_ends_after_the_warning_goes_on(ledger: TimeLedger) -> None:
    told = Told()
    work = [Work("step", None, 0.0)]
    with watch(lambda: work[0], told, Patience(item_s=0.04, first_item_s=1000)):
        assert told.has_warned.wait(TOO_LONG_S)
        work[0] = Work("step", None, 1.0, is_first=True)
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
        (Cause.START_UP, False, 3, True),
        (Cause.DATA_STALL, False, 3, True),
        (Cause.OTHER, False, 3, True),
    ],
)
def test_first_calls_tracing_and_saving_have_a_limit_of_their_own(
    ledger: TimeLedger, cause: Cause, is_first: bool, steps: int, expected: bool
) -> None:
    with ledger.spend(cause) as span:
        span.is_first = is_first
        assert read_run_work(make_watch(ledger, steps), None).is_first is expected


def test_without_a_limit_nothing_is_ever_named() -> None:
    patience = Patience.from_limit(0)
    assert patience.item_s == patience.first_item_s == float("inf")
    assert Patience.from_limit(100) == Patience(100, 300)
