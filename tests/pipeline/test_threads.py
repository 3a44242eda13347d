"""Threads that take, work and hand on; the slots between them; and when they count as hanging."""

import gc
import itertools
import threading
import traceback
import weakref
from concurrent.futures import ThreadPoolExecutor
from functools import partial

import pytest

from myxtts.errors import WorkFailedError, WorkStalledError
from myxtts.pipeline.threads import (
    MOST_GAP_S,
    SLOTS,
    EndOfStream,
    Feed,
    Handoff,
    SideThread,
    Stall,
    StallWatch,
    Stopped,
    TimeLimits,
    WaitMeter,
    Work,
    WorkerThread,
    stop_threads,
    wait_watched,
)
from tests.support.clocks import ManualClock

NAMES = ("read", "prepare", "transfer")


def fill(handoff, *items):
    for item in items:
        handoff.reserve()
        handoff.commit(item)


def run_in_thread(function):
    """Starts a function; the returned one waits for its end and gives its result or error."""
    with_one = ThreadPoolExecutor(1)
    outcome = with_one.submit(function)
    with_one.shutdown(wait=False)
    return lambda timeout_s=10: outcome.exception(timeout_s) or outcome.result()


def wait_until_waiting(handoff, side):
    """Returns when the other thread waits, as `giver` or `taker`: its time grows."""
    times = [0.0, 0.0]
    while times[0] == times[1]:
        times = [getattr(handoff.read_facts(), f"{side}_wait_s") for _ in range(2)]


def test_a_fourth_item_waits_for_a_release_and_not_for_a_take():
    handoff = Handoff("h")
    assert handoff.slots == SLOTS == 3
    fill(handoff, "a", "b", "c")
    finish = run_in_thread(handoff.reserve)
    wait_until_waiting(handoff, "giver")
    assert handoff.take() == "a"
    # A taken item still occupies its slot.
    wait_until_waiting(handoff, "giver")
    handoff.release()
    assert finish() is None


@pytest.mark.parametrize("side", ["giver", "taker"])
@pytest.mark.parametrize("end", ["stop", "fail", "finish"])
def test_every_end_reaches_whoever_waits(side, end):
    handoff = Handoff("h")
    if side == "giver":
        fill(handoff, *range(SLOTS))
    finish = run_in_thread(handoff.reserve if side == "giver" else handoff.take)
    wait_until_waiting(handoff, side)
    if end == "fail":
        handoff.fail(RuntimeError("first"))
        handoff.fail(RuntimeError("second"))
        handoff.stop()
        assert str(finish()) == "first"
        with pytest.raises(RuntimeError, match="first"):
            # Though something may be ready.
            handoff.take()
    elif end == "finish" and side == "taker":
        handoff.finish()
        assert isinstance(finish(), EndOfStream)
    else:
        handoff.stop()
        assert isinstance(finish(), Stopped)


def test_readiness_is_the_share_of_time_with_something_ready():
    clock = ManualClock()
    handoff = Handoff("h", clock=clock)
    assert handoff.read_facts().readiness == 0.0, "of no time at all"
    clock.now = 3.0
    fill(handoff, "a", "b")
    clock.now = 7.0
    handoff.take()
    clock.now = 8.0
    handoff.take()
    clock.now = 10.0
    facts = handoff.read_facts()
    # Nothing was ready from 0 to 3 and from 8 to 10.
    assert facts.readiness == pytest.approx(0.5)
    assert (facts.items, facts.giver_wait_s, facts.taker_wait_s) == (2, 0.0, 0.0)


def test_the_waiting_of_both_sides_is_measured():
    clock = ManualClock()
    handoff = Handoff("h", slots=1, clock=clock)
    finish = run_in_thread(handoff.take)
    while handoff.read_facts().taker_wait_s == 0:
        clock.now += 3
    fill(handoff, "a")
    assert finish() == "a"
    finish = run_in_thread(handoff.reserve)
    while handoff.read_facts().giver_wait_s == 0:
        clock.now += 4
    handoff.stop()
    assert isinstance(finish(), Stopped)
    clock.now += 20
    facts = handoff.read_facts()
    assert (facts.items, facts.giver_wait_s, facts.taker_wait_s, facts.readiness) == (1, 4.0, 3.0, pytest.approx(0.0))


def test_news_that_arrive_late_count_from_when_they_were_made():
    clock = ManualClock()
    meter = WaitMeter("producer", clock)
    clock.now = 10.0
    # Made at 4 by a process that had waited 1.5 s, but read only now.
    meter.note_ready(made_at=4.0, waited_s=1.5)
    assert (meter.read().readiness, meter.read().giver_wait_s) == (pytest.approx(0.6), 1.5)
    meter.note_taken()
    # Neither a time before it was empty nor one in the future makes it less or more than ready.
    for made_at in (3.0, 99.0):
        clock.now += 5.0
        meter.note_ready(made_at)
        meter.note_taken()
    assert (meter.read().items, meter.read().readiness) == (3, pytest.approx((6 + 5) / 20))


class CountingHandoff(Handoff):
    """Knows how many items it had at most."""

    def __init__(self, name):
        super().__init__(name)
        self._alive = self.most = 0
        self._counting = threading.Lock()

    def reserve(self):
        super().reserve()
        with self._counting:
            self._alive += 1
            self.most = max(self.most, self._alive)

    def release(self):
        with self._counting:
            self._alive -= 1
        super().release()


class Chain:
    """Three threads in a row, their hand-offs, and a consumer's view of the last one."""

    def __init__(self, items, works=None):
        source = Feed(iter(items))
        self.handoffs, self.threads = [], []
        for name in NAMES:
            sink = CountingHandoff(name)
            self.handoffs.append(sink)
            self.threads.append(WorkerThread(name, (works or {}).get(name, lambda item: item), source, sink))
            source = sink
        self.last = source

    def __enter__(self):
        for thread in self.threads:
            thread.start()
        return self

    def __exit__(self, *_):
        stop_threads(self.threads, timeout_s=60)

    def take_all(self):
        taken = []
        while True:
            try:
                taken.append(self.last.take())
            except EndOfStream:
                return taken
            self.last.release()


@pytest.mark.parametrize("count", [0, 1, SLOTS, 100])
def test_everything_arrives_once_and_in_order_and_never_more_than_three_items_are_alive(count):
    with Chain(range(count), {"read": lambda item: item + 1, "transfer": lambda item: item * 10}) as chain:
        assert chain.take_all() == [10 * (item + 1) for item in range(count)]
        assert [thread.read_facts().items for thread in chain.threads] == [count] * 3
        for thread in chain.threads:
            thread.join()
        assert [thread.read_work() for thread in chain.threads] == [None] * 3, "what has ended does not hang"
    assert all(handoff.most <= SLOTS for handoff in chain.handoffs)


@pytest.mark.parametrize("failing", NAMES)
@pytest.mark.parametrize("at", [0, 5])
def test_an_error_reaches_the_consumer_and_neighbours_that_wait_with_name_and_traceback(failing, at):
    others_wait = threading.Event()

    def explode_on_item(item):
        if item == at:
            assert others_wait.wait(60)
            raise KeyError("the original")
        return item

    with Chain(itertools.count(), {failing: explode_on_item}) as chain:
        place = NAMES.index(failing)
        if at == 0:
            # The others can do nothing but wait.
            for number, handoff in enumerate(chain.handoffs[:-1]):
                wait_until_waiting(handoff, "giver" if number < place else "taker")
        others_wait.set()
        with pytest.raises(WorkFailedError, match=f"Stage '{failing}' failed at its item {at}: KeyError") as caught:
            chain.take_all()
        cause = caught.value.__cause__
        assert isinstance(cause, KeyError)
        assert "explode_on_item" in "".join(traceback.format_exception(cause))
        for thread in chain.threads:
            # Before anybody stops them: the failure ends the threads on both sides.
            assert thread.join(20)


def test_a_thread_that_waits_holds_no_item():
    made = []

    def make(_):
        item = threading.Event()
        made.append(weakref.ref(item))
        return item

    before, sink = Handoff("in"), Handoff("out")
    fill(before, 0)
    thread = WorkerThread("make", make, before, sink)
    thread.start()
    sink.take()
    wait_until_waiting(before, "taker")
    gc.collect()
    assert made[0]() is None, "the thread keeps its last batch alive"
    stop_threads([thread])


class Hang:
    """Work that does not end before it is let go."""

    def __init__(self):
        self.has_begun = threading.Event()
        self.may_end = threading.Event()

    def work_that_hangs(self, item=None):
        self.has_begun.set()
        assert self.may_end.wait(60)
        return item


@pytest.fixture
def hang():
    hang = Hang()
    yield hang
    hang.may_end.set()


def test_a_thread_that_does_not_stop_is_an_error_with_its_stack(hang):
    with Chain(range(9), {"prepare": hang.work_that_hangs}) as chain:
        assert hang.has_begun.wait(60)
        with pytest.raises(WorkStalledError, match=r"Stage 'prepare' did not stop within 0.5 s") as caught:
            stop_threads(chain.threads, timeout_s=0.5)
        hang.may_end.set()
    assert "work_that_hangs" in str(caught.value)


def test_a_side_thread_does_one_thing_at_a_time_and_lets_nothing_pile_up(hang):
    side, done = SideThread("side"), []
    side.begin(hang.work_that_hangs)
    finish = run_in_thread(partial(side.begin, partial(done.append, "second")))
    assert hang.has_begun.wait(60)
    with pytest.raises(TimeoutError):
        finish(timeout_s=0.1)
    hang.may_end.set()
    finish()
    del side, finish
    for thread in threading.enumerate():
        if thread.name.startswith("myxtts-side"):
            gc.collect()
            thread.join(10)
    assert done == ["second"]


@pytest.mark.parametrize("part", ["prepare", "read"])
def test_the_consumer_is_told_who_hangs_in_which_part_of_its_work_and_where(part, hang, caplog):
    def work(item):
        chain.threads[1].report_part(part)
        return hang.work_that_hangs(item)

    chain = Chain(range(9), {"prepare": work})
    with chain:
        assert hang.has_begun.wait(60)
        what = f"Stage '{part}' has made no progress at its item 0 for more than"
        with pytest.raises(WorkStalledError, match=f"{what} 0.1 s") as caught:
            wait_watched(chain.last, chain.threads, TimeLimits(first_s=0.05, steady_s=1000))
        hang.may_end.set()
    (warning,) = caplog.messages
    assert f"{what} 0.05 s" in warning, "it was told before"
    assert "work_that_hangs" in warning
    assert "work_that_hangs" in str(caught.value)


LIMITS = TimeLimits(steady_s=10, first_s=30)


class Watched:
    """A watch that looks once in each second of a clock."""

    def __init__(self):
        self.clock = ManualClock()
        self.watch = StallWatch(LIMITS, self.clock)

    def look(self, work, seconds):
        """What is told within so many seconds."""
        told = []
        for _ in range(seconds):
            self.clock.now += 1
            told.append(self.watch.look(work))
        return [stall for stall in told if stall is not None]


@pytest.mark.parametrize(
    ("work", "limit_s"),
    [
        (Work("read", 3, 0.0), 10),
        (Work("read", 0, 0.0, is_first=True), 30),
        (Work("waiting for a batch", None, 0.0, limit_s=50), 50),
    ],
)
def test_a_warning_comes_after_the_limit_and_the_end_after_twice_that(work, limit_s):
    watched = Watched()
    assert watched.look(work, limit_s + 1) == []
    assert watched.look(work, 5) == [Stall(work, limit_s, is_final=False)]
    assert watched.look(work, 2 * limit_s) == [Stall(work, 2 * limit_s, is_final=True)]


def test_something_else_begins_the_count_anew_and_a_machine_that_slept_made_nobody_hang():
    watched = Watched()
    for number in range(20):
        assert watched.look(Work("read", number, float(number)), 9) == []
        assert watched.look(None, 2) == []
    work = Work("step", None, 0.0)
    assert watched.look(work, 2) == []
    watched.clock.now += 3600
    assert watched.watch.look(work) is None
    assert LIMITS.steady_s > MOST_GAP_S
    assert len(watched.look(work, 10)) == 1


def test_starting_and_importing_do_not_depend_on_the_setting():
    limits, usual = TimeLimits.from_setting(8), TimeLimits()
    assert (limits.steady_s, limits.first_s, limits.import_s) == (8, 24, usual.import_s)
    assert limits.setup_s == limits.import_s
    assert TimeLimits.from_setting(300).setup_s == 900
    assert TimeLimits.from_setting(0).steady_s == TimeLimits.from_setting(0).longest_s == float("inf")
