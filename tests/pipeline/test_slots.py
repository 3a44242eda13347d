"""The hand-off between two threads."""

import threading

import pytest

from myxtts.pipeline.slots import SLOTS, EndOfStream, Handoff, Stopped, WaitMeter
from tests.pipeline.clocks import ManualClock


def fill(handoff, *items):
    for item in items:
        handoff.reserve()
        handoff.commit(item)


def run_in_thread(function):
    """Starts a function; the returned one waits for its end and gives its result or error."""
    outcome = []

    def run():
        try:
            outcome.append(function())
        except (Stopped, EndOfStream, RuntimeError) as error:
            outcome.append(error)

    thread = threading.Thread(target=run)
    thread.start()

    def finish():
        thread.join(10)
        assert not thread.is_alive()
        return outcome[0]

    return finish


def wait_until_waiting(handoff, side):
    """Returns when the other thread waits, as `giver` or `taker`."""
    while getattr(handoff._meter, side)._since is None:
        pass


def test_items_arrive_in_the_order_of_commits():
    handoff = Handoff("h")
    received = []

    def take_all():
        for _ in range(100):
            received.append(handoff.take())
            handoff.release()

    finish = run_in_thread(take_all)
    fill(handoff, *range(100))
    finish()
    assert received == list(range(100))


def test_a_fourth_item_waits_for_a_release_and_not_for_a_take():
    handoff = Handoff("h")
    assert handoff.slots == SLOTS == 3
    fill(handoff, "a", "b", "c")
    finish = run_in_thread(handoff.reserve)
    wait_until_waiting(handoff, "giver")
    assert handoff.take() == "a"
    assert handoff._meter.giver._since is not None, "a taken item still occupies its slot"
    handoff.release()
    assert finish() is None


def test_releasing_more_than_was_taken_is_a_mistake_of_ours():
    with pytest.raises(AssertionError, match="more slots released"):
        Handoff("h").release()


def test_what_was_committed_can_be_taken_after_the_end():
    handoff = Handoff("h")
    fill(handoff, 1, 2)
    handoff.finish()
    assert [handoff.take(), handoff.take()] == [1, 2]
    with pytest.raises(EndOfStream):
        handoff.take()


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


def test_waiting_until_full_ends_when_nothing_more_can_be_made_ready():
    handoff = Handoff("test", slots=2)
    assert not handoff.wait_until_full(0.0)
    fill(handoff, 0, 1)
    assert handoff.wait_until_full(60.0)
    handoff.take()
    assert not handoff.wait_until_full(0.0)
    handoff.finish()
    assert handoff.wait_until_full(60.0)
    handoff.stop()
    with pytest.raises(Stopped):
        handoff.wait_until_full(60.0)


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


def test_the_waiting_of_both_sides_is_measured_and_begins_anew_after_a_reset():
    clock = ManualClock()
    handoff = Handoff("h", slots=1, clock=clock)
    finish = run_in_thread(handoff.take)
    wait_until_waiting(handoff, "taker")
    clock.now = 2.0
    assert handoff.read_facts(reset=True).taker_wait_s == 2.0, "a wait that goes on counts already"
    clock.now = 5.0
    fill(handoff, "a")
    assert finish() == "a"
    finish = run_in_thread(handoff.reserve)
    wait_until_waiting(handoff, "giver")
    clock.now = 9.0
    handoff.stop()
    assert isinstance(finish(), Stopped)
    clock.now = 20.0
    facts = handoff.read_facts()
    assert (facts.items, facts.giver_wait_s, facts.taker_wait_s, facts.readiness) == (1, 4.0, 3.0, pytest.approx(0.0))


def test_news_that_arrive_late_count_from_when_they_were_made():
    clock = ManualClock()
    meter = WaitMeter("producer", clock)
    clock.now = 10.0
    # Made at 4 by a process that had waited 1.5 s, but read only now.
    meter.note_ready(made_at=4.0, waited_s=1.5)
    facts = meter.read(reset=True)
    assert (facts.readiness, facts.giver_wait_s) == (pytest.approx(0.6), 1.5)
    meter.note_taken()
    clock.now = 20.0
    # A time before the window and one in the future are both no times of this window.
    for made_at in (3.0, 99.0):
        meter.note_ready(made_at)
        meter.note_taken()
    facts = meter.read()
    assert (facts.items, facts.readiness) == (3, pytest.approx(1.0))
