"""A training thread that hangs is named, with its stack, and the run ends; one that is only slow is left alone."""

import threading
from types import SimpleNamespace

import pytest

from myxtts.errors import WorkStalledError
from myxtts.monitoring.clock import Cause, StepClock, TimeLedger
from myxtts.pipeline.threads import TimeLimits, Work
from myxtts.training import stopping
from myxtts.training.run_log import RunLog
from myxtts.training.stopping import EXIT_CODE, Watchdog

TOO_LONG_S = 30
SOON = TimeLimits(steady_s=0.04, first_s=0.04)
ADVICE = "To go on: python train_main.py --resume"
STEP = Work("step", 7, 0.0)
"""That does not end."""


class Looking(TimeLimits):
    """Limits that are looked at without a pause."""

    @property
    def look_s(self):
        return 0.0


def watch(limits=SOON, *, read_work=lambda: STEP, tell=lambda text, is_last: None, **options):
    return Watchdog(read_work, limits, advise=lambda: ADVICE, tell=tell, **options)


@pytest.mark.parametrize("words_hang", [False, True])
def test_a_thread_that_cannot_be_reached_takes_the_process_with_it(monkeypatch, words_hang):
    """Also where its last words hang: the disk that the training hangs at may be the one that the log lies on."""
    never, has_ended, codes, last_words = threading.Event(), threading.Event(), [], []

    def tell(text, is_last):
        if is_last:
            last_words.append(text)
            never.wait(TOO_LONG_S if words_hang else 0)

    def end(code):
        codes.append(code)
        has_ended.set()

    monkeypatch.setattr(stopping, "LAST_WORDS_S", 0.05 if words_hang else TOO_LONG_S)
    # A wait without a timeout is as deaf as a driver. It is ended by what would have been the end of the process.
    with pytest.raises(WorkStalledError):
        watch(tell=tell, grace_s=0.05, end_process=end).run(lambda: has_ended.wait(TOO_LONG_S / 2))
    never.set()
    assert codes == [EXIT_CODE]
    assert EXIT_CODE != 0
    assert "Stage 'step'" in last_words[0]
    assert ADVICE in last_words[0]


def test_work_that_ends_after_the_warning_goes_on():
    work, warnings, has_warned = [STEP], [], threading.Event()

    def tell(text, is_last):
        warnings.append((text, is_last))
        has_warned.set()

    def come_back():
        assert has_warned.wait(TOO_LONG_S)
        work[0] = Work("step", None, 1.0, is_first=True)
        return "back"

    limits = TimeLimits(steady_s=0.04, first_s=1000)
    assert watch(limits, read_work=lambda: work[0], tell=tell).run(come_back) == "back"
    assert [is_last for _, is_last in warnings] == [False]


@pytest.mark.parametrize(
    ("cause", "is_first", "steps", "name", "expected"),
    [
        (Cause.STEP, False, 3, "step", False),
        (Cause.STEP, True, 3, "step", True),
        (Cause.STEP, False, 0, "step", True),
        (Cause.VALIDATION, False, 3, "validation", False),
        (Cause.CHECKPOINT, False, 3, "checkpoint", True),
        (Cause.OTHER, False, 3, "reading the losses", True),
    ],
)
def test_first_calls_tracing_and_saving_have_a_limit_of_their_own(cause, is_first, steps, name, expected):
    ledger, clock = TimeLedger(), StepClock()
    ledger.begin_loop()
    for _ in range(steps):
        clock.end_step()
    with ledger.spend(cause) as span:
        span.is_first = is_first
        work = RunLog.read_work(SimpleNamespace(ledger=ledger, clock=clock), None, 600.0)
    assert (work.name, work.is_first) == (name, expected)


def test_work_that_ends_at_its_very_limit_is_done_or_stalled_and_nothing_else():
    """What is raised in a thread may arrive anywhere: also where the work is done and the watch about to end."""
    outcomes = set()
    for spins in range(60):
        impatient = watch(Looking(0.0, 0.0), grace_s=TOO_LONG_S)
        try:
            outcomes.add(impatient.run(lambda spins=spins: "done" if sum(range(40 * spins)) >= 0 else ""))
        except WorkStalledError:
            outcomes.add("stalled")
    # What is raised too late would come out here.
    assert sum(range(100_000)) > 0
    assert outcomes <= {"done", "stalled"}
