import gc
import itertools
import threading
import traceback
import weakref

import pytest

from myxtts.errors import ProducerFailedError, StageFailedError, StageStalledError
from myxtts.pipeline.handoff import SLOTS, EndOfStream, Handoff, Stopped
from myxtts.pipeline.stage import Feed, Stage, TimeLimits, stop_stages, take_watched
from tests.pipeline.clocks import ManualClock

NAMES = ("read", "prepare", "transfer")


class Chain:
    """Three stages in a row, their hand-offs, and a consumer's view of the last one."""

    def __init__(self, items, works=None, clock=None):
        works = works or {}
        clocks = {"clock": clock} if clock else {}
        source = Feed(iter(items))
        self.handoffs = {}
        self.stages = []
        for name in NAMES:
            sink = self.handoffs[name] = Handoff(name, **clocks)
            self.stages.append(Stage(name, works.get(name, lambda item: item), source, sink, **clocks))
            source = sink
        self.last = source

    def __enter__(self):
        for stage in self.stages:
            stage.start()
        return self

    def __exit__(self, *_):
        stop_stages(self.stages, timeout_s=60)

    def take_all(self):
        taken = []
        while True:
            try:
                taken.append(self.last.take())
            except EndOfStream:
                return taken
            self.last.release()


@pytest.mark.parametrize("count", [0, 1, SLOTS - 1, SLOTS, 100])
def test_everything_arrives_once_and_in_order(count):
    with Chain(range(count), {"read": lambda item: item + 1, "transfer": lambda item: item * 10}) as chain:
        assert chain.take_all() == [10 * (item + 1) for item in range(count)]
        assert [stage.read_facts().items for stage in chain.stages] == [count] * 3


def test_never_more_than_three_items_are_alive_at_a_hand_off():
    alive = dict.fromkeys(NAMES, 0)
    most = dict.fromkeys(NAMES, 0)
    lock = threading.Lock()

    class CountingHandoff(Handoff):
        def reserve(self):
            super().reserve()
            with lock:
                alive[self.name] += 1
                most[self.name] = max(most[self.name], alive[self.name])

        def release(self):
            with lock:
                alive[self.name] -= 1
            super().release()

    source, stages = Feed(iter(range(200))), []
    for name in NAMES:
        sink = CountingHandoff(name)
        stages.append(Stage(name, lambda item: item, source, sink))
        source = sink
    for stage in stages:
        stage.start()
    for expected in range(200):
        assert source.take() == expected
        source.release()
    stop_stages(stages)
    assert all(1 <= count <= SLOTS for count in most.values()), most


@pytest.mark.parametrize("failing", NAMES)
@pytest.mark.parametrize("at", [0, 5])
def test_an_error_in_a_stage_reaches_the_consumer_with_name_and_traceback(failing, at):
    def explode_on_item(item):
        if item == at:
            raise KeyError("the original")
        return item

    with Chain(itertools.count(), {failing: explode_on_item}) as chain:
        with pytest.raises(StageFailedError, match=f"Stage '{failing}' failed at its item {at}: KeyError") as caught:
            chain.take_all()
        cause = caught.value.__cause__
        assert isinstance(cause, KeyError)
        assert "explode_on_item" in "".join(traceback.format_exception(cause))
        for stage in chain.stages:
            # Before anybody stops them: the failure ends the stages on both sides.
            stage.join(20)


@pytest.mark.parametrize("failing", NAMES)
def test_an_error_reaches_neighbours_that_wait(failing):
    """The failing stage holds its first item until the others can do nothing but wait; then it fails."""
    others_wait = threading.Event()

    def fail_late(item):
        assert others_wait.wait(60)
        raise ValueError("late")

    with Chain(itertools.count(), {failing: fail_late}) as chain:
        before = [chain.handoffs[name] for name in NAMES[: NAMES.index(failing)]]
        after = [chain.handoffs[name] for name in NAMES[NAMES.index(failing) : -1]]
        for handoff in before:
            wait_for(handoff, lambda handoff: handoff._meter.giver._since is not None)
        for handoff in after:
            wait_for(handoff, lambda handoff: handoff._meter.taker._since is not None)
        others_wait.set()
        with pytest.raises(StageFailedError, match=f"'{failing}'.*late"):
            chain.take_all()


def wait_for(handoff, condition):
    while True:
        with handoff._changed:
            if condition(handoff):
                return


def test_an_error_of_the_iterator_is_one_of_the_first_stage():
    def items():
        yield 1
        raise OSError("disk gone")

    with (
        Chain(items()) as chain,
        pytest.raises(StageFailedError, match="'read' failed at its item 1: OSError: disk gone"),
    ):
        chain.take_all()


def test_a_failing_producer_is_not_blamed_on_the_stage_that_takes_from_it():
    class DeadSource:
        def take(self):
            raise ProducerFailedError("died too often")

        def release(self):
            raise AssertionError

        def stop(self):
            pass

    sink = Handoff("out")
    stage = Stage("transfer", lambda item: item, DeadSource(), sink)
    stage.start()
    with pytest.raises(ProducerFailedError, match=r"^died too often$"):
        sink.take()
    stage.join()


def test_the_consumer_may_leave_early():
    with Chain(itertools.count()) as chain:
        assert [chain.last.take() for _ in range(2)] == [0, 1]
    with pytest.raises(Stopped):
        chain.last.take()


def test_a_consumer_that_never_takes_leaves_no_stage_waiting():
    with Chain(itertools.count()) as chain:
        wait_for(chain.handoffs["transfer"], lambda handoff: handoff._meter.giver._since is not None)


def test_stopping_stages_that_were_never_started():
    stop_stages(Chain(range(3)).stages)


def test_a_stage_that_waits_holds_no_item():
    class Batch:
        pass

    made = []

    def make(_):
        batch = Batch()
        made.append(weakref.ref(batch))
        return batch

    more = threading.Event()

    def items():
        yield 0
        assert more.wait(60)

    sink = Handoff("out")
    stage = Stage("make", make, Feed(items()), sink)
    stage.start()
    sink.take()
    sink.release()
    gc.collect()
    assert made[0]() is None, "the stage keeps its last batch alive"
    more.set()
    stage.join()


def test_busy_time_is_time_in_the_work_alone():
    clock = ManualClock()

    def work(item):
        clock.now += 2.0
        return item

    sink = Handoff("out", clock=clock)
    stage = Stage("work", work, Feed(iter(range(3))), sink, clock=clock)
    stage.start()
    for _ in range(3):
        sink.take()
        sink.release()
    stage.join()
    facts = stage.read_facts()
    assert (facts.name, facts.items, facts.busy_s) == ("work", 3, 6.0)


class Hang:
    """Work that does not end before it is let go."""

    def __init__(self):
        self.has_begun = threading.Event()
        self.may_end = threading.Event()

    def work_that_hangs(self, item):
        self.has_begun.set()
        assert self.may_end.wait(60)
        return item


def test_a_stage_that_does_not_stop_is_an_error_with_its_stack():
    hang = Hang()
    chain = Chain(range(9), {"prepare": hang.work_that_hangs})
    for stage in chain.stages:
        stage.start()
    assert hang.has_begun.wait(60)
    with pytest.raises(StageStalledError, match=r"Stage 'prepare' did not stop within 0.5 s") as caught:
        stop_stages(chain.stages, timeout_s=0.5)
    assert "work_that_hangs" in str(caught.value)
    hang.may_end.set()
    stop_stages(chain.stages)


@pytest.mark.parametrize("name", NAMES)
def test_the_consumer_is_told_which_stage_hangs_and_where(name, caplog):
    hang = Hang()
    chain = Chain(range(9), {name: hang.work_that_hangs})
    for stage in chain.stages:
        stage.start()
    assert hang.has_begun.wait(60)
    with pytest.raises(
        StageStalledError, match=f"Stage '{name}' has made no progress at its item 0 for more than 0.1 s"
    ) as caught:
        take_watched(chain.last, chain.stages, TimeLimits(first_s=0.05, steady_s=1000))
    assert "work_that_hangs" in str(caught.value)
    (warning,) = caplog.messages
    assert f"Stage '{name}' has made no progress at its item 0 for more than 0.05 s" in warning, "it was told before"
    assert "work_that_hangs" in warning
    hang.may_end.set()
    stop_stages(chain.stages)


def test_an_iterator_that_hangs_is_the_first_stages_fault():
    event = threading.Event()

    def items_that_hang():
        yield 0
        assert event.wait(60)

    chain = Chain(items_that_hang())
    for stage in chain.stages:
        stage.start()
    limits = TimeLimits(first_s=1000, steady_s=0.05)
    assert take_watched(chain.last, chain.stages, limits) == 0
    chain.last.release()
    with pytest.raises(StageStalledError, match="Stage 'read' has made no progress at its item 1") as caught:
        take_watched(chain.last, chain.stages, limits)
    assert "items_that_hang" in str(caught.value)
    event.set()
    stop_stages(chain.stages)


def test_a_stage_that_has_ended_does_not_count_as_stalled():
    clock = ManualClock()
    chain = Chain([], clock=clock)
    with chain:
        assert chain.take_all() == []
        for stage in chain.stages:
            stage.join()
        assert [stage.read_work() for stage in chain.stages] == [None] * 3


def test_a_stage_that_hangs_in_a_part_of_its_work_is_named_by_that_part():
    hang = Hang()

    def work(item):
        stage.report_part("read")
        return hang.work_that_hangs(item)

    sink = Handoff("out")
    stage = Stage("prepare", work, Feed(iter([0])), sink)
    stage.start()
    assert hang.has_begun.wait(60)
    with pytest.raises(StageStalledError, match="Stage 'read' has made no progress"):
        take_watched(sink, [stage], TimeLimits(first_s=0.02, steady_s=1000))
    hang.may_end.set()
    stop_stages([stage])
