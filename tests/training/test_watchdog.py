"""A training thread that hangs is named, with its stack, and the run ends; one that is only slow is left alone."""

from __future__ import annotations

import threading
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from myxtts.errors import WorkStalledError
from myxtts.monitoring.clock import Cause, StepClock, TimeLedger
from myxtts.pipeline.threads import TimeLimits, Work
from myxtts.training import stopping as watchdog
from myxtts.training.run_log import RunLog
from myxtts.training.stopping import EXIT_CODE, Watchdog

TOO_LONG_S = 30
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

    def tell(self, text: str, is_last: bool) -> None:
        if is_last:
            self.last_word = text
        else:
            self.warnings.append(text)
            self.has_warned.set()

    def end(self, code: int) -> None:
        self.exit_code = code
        self.has_ended.set()


class Looking(TimeLimits):
    """Limits that are looked at without a pause."""

    @property
    def look_s(self) -> float:
        return 0.0


@pytest.fixture
def told() -> Told:
    return Told()


def watch(told: Told, read_work: Callable[[], Any], limits: TimeLimits = SOON, **options: Any) -> Watchdog:
    says = {"tell": told.tell, "end_process": told.end, **options}
    return Watchdog(read_work, limits, advise=lambda: ADVICE, **says)


def read_step() -> Work:
    """A step that does not end."""
    return Work("step", 7, 0.0)


@pytest.mark.parametrize("words_hang", [False, True])
def test_a_thread_that_cannot_be_reached_takes_the_process_with_it(
    told: Told, monkeypatch: pytest.MonkeyPatch, words_hang: bool
) -> None:
    """Also where its last words hang: the disk that the training hangs at may be the one that the log lies on."""
    never = threading.Event()

    def tell(text: str, is_last: bool) -> None:
        if words_hang and is_last:
            never.wait(TOO_LONG_S)
        told.tell(text, is_last)

    monkeypatch.setattr(watchdog, "LAST_WORDS_S", 0.05 if words_hang else TOO_LONG_S)
    # A wait without a timeout is as deaf as a driver. It is ended by what would have been the end of the process.
    with pytest.raises(WorkStalledError):
        watch(told, read_step, grace_s=0.05, tell=tell).run(lambda: told.has_ended.wait(TOO_LONG_S / 2))
    never.set()
    assert told.exit_code == EXIT_CODE != 0
    if not words_hang:
        assert "Stage 'step'" in (told.last_word or "")
        assert ADVICE in (told.last_word or "")


def test_work_that_ends_after_the_warning_goes_on(told: Told) -> None:
    work = [read_step()]

    def come_back() -> str:
        assert told.has_warned.wait(TOO_LONG_S)
        work[0] = Work("step", None, 1.0, is_first=True)
        return "back"

    assert watch(told, lambda: work[0], TimeLimits(steady_s=0.04, first_s=1000)).run(come_back) == "back"
    assert len(told.warnings) == 1
    assert told.exit_code is None


@pytest.mark.parametrize(
    ("cause", "is_first", "steps", "name", "expected"),
    [
        (Cause.STEP, False, 3, "step", False),
        (Cause.STEP, True, 3, "step", True),
        (Cause.STEP, False, 0, "step", True),
        (Cause.VALIDATION, False, 3, "validation", False),
        (Cause.VALIDATION, True, 3, "validation", True),
        (Cause.CHECKPOINT, False, 3, "checkpoint", True),
        (Cause.OTHER, False, 3, "reading the losses", True),
    ],
)
def test_first_calls_tracing_and_saving_have_a_limit_of_their_own(
    cause: Cause, is_first: bool, steps: int, name: str, expected: bool
) -> None:
    ledger, clock = TimeLedger(), StepClock()
    ledger.begin_loop()
    for _ in range(steps):
        clock.end_step()
    with ledger.spend(cause) as span:
        span.is_first = is_first
        run: Any = SimpleNamespace(ledger=ledger, clock=clock)
        work = RunLog.read_work(run, None, 600.0)
    assert (work.name, work.is_first) == (name, expected)


def test_work_that_ends_at_its_very_limit_is_done_or_stalled_and_nothing_else(told: Told) -> None:
    """What is raised in a thread may arrive anywhere: also where the work is done and the watch about to end."""
    outcomes = set()
    for spins in range(60):
        impatient = watch(told, read_step, Looking(0.0, 0.0), grace_s=TOO_LONG_S)
        try:
            outcomes.add(impatient.run(lambda spins=spins: "done" if sum(range(40 * spins)) >= 0 else ""))
        except WorkStalledError:
            outcomes.add("stalled")
    # What is raised too late would come out here.
    assert sum(range(100_000)) > 0
    assert outcomes <= {"done", "stalled"}
