import threading

import pytest

from myxtts.errors import StageFailedError
from myxtts.pipeline.handoff import SLOTS, EndOfStream, Handoff, Stopped
from myxtts.pipeline.waiting import SharedMeter
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
    """Returns when the other thread waits: it holds the condition's lock until then."""
    while True:
        with handoff._changed:
            if getattr(handoff._meter, side)._since is not None:
                return


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
    fill(handoff, "a", "b", "c")
    finish = run_in_thread(handoff.reserve)
    wait_until_waiting(handoff, "giver")
    assert handoff.take() == "a"
    with handoff._changed:
        assert handoff._meter.giver._since is not None, "a taken item still occupies its slot"
    handoff.release()
    assert finish() is None


def test_slots_are_three():
    assert Handoff("h").slots == SLOTS == 3


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


def test_the_end_reaches_a_taker_that_already_waits():
    handoff = Handoff("h")
    finish = run_in_thread(handoff.take)
    wait_until_waiting(handoff, "taker")
    handoff.finish()
    assert isinstance(finish(), EndOfStream)


@pytest.mark.parametrize("side", ["giver", "taker"])
@pytest.mark.parametrize("end", ["stop", "fail"])
def test_stop_and_failure_reach_whoever_waits(side, end):
    handoff = Handoff("h")
    if side == "giver":
        fill(handoff, *range(SLOTS))
        finish = run_in_thread(handoff.reserve)
    else:
        finish = run_in_thread(handoff.take)
    wait_until_waiting(handoff, side)
    error = StageFailedError("first")
    if end == "stop":
        handoff.stop()
        assert isinstance(finish(), Stopped)
    else:
        handoff.fail(error)
        handoff.fail(StageFailedError("second"))
        handoff.stop()
        assert finish() is error
        with pytest.raises(StageFailedError, match="first"):
            handoff.take()


def test_a_failure_overtakes_what_is_ready():
    handoff = Handoff("h")
    fill(handoff, 1)
    handoff.fail(StageFailedError("gone"))
    with pytest.raises(StageFailedError, match="gone"):
        handoff.take()


def test_waiting_for_an_item_ends_with_the_time_or_the_item():
    handoff = Handoff("h")
    assert handoff.wait_for_item(0.0) is False
    fill(handoff, 1)
    assert handoff.wait_for_item(0.0) is True
    assert handoff.take() == 1
    handoff.finish()
    with pytest.raises(EndOfStream):
        handoff.wait_for_item(60.0)


def test_readiness_is_the_share_of_time_with_something_ready():
    clock = ManualClock()
    handoff = Handoff("h", clock=clock)
    handoff.reserve()
    clock.now = 3.0
    handoff.commit("a")
    clock.now = 4.0
    handoff.reserve()
    handoff.commit("b")
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
    wait_until_waiting(handoff, "taker")
    clock.now = 2.0
    assert handoff.read_facts().taker_wait_s == 2.0, "a wait that goes on counts already"
    fill(handoff, "a")
    assert finish() == "a"
    clock.now = 5.0
    finish = run_in_thread(handoff.reserve)
    wait_until_waiting(handoff, "giver")
    clock.now = 9.0
    handoff.release()
    finish()
    clock.now = 20.0
    facts = handoff.read_facts()
    assert (facts.giver_wait_s, facts.taker_wait_s) == (4.0, 2.0)


def test_resetting_begins_a_new_window_even_while_somebody_waits():
    clock = ManualClock()
    handoff = Handoff("h", clock=clock)
    finish = run_in_thread(handoff.take)
    wait_until_waiting(handoff, "taker")
    clock.now = 6.0
    assert handoff.read_facts(reset=True).taker_wait_s == 6.0
    clock.now = 8.0
    fill(handoff, "a")
    finish()
    clock.now = 10.0
    facts = handoff.read_facts()
    assert (facts.items, facts.taker_wait_s, facts.readiness) == (1, 2.0, pytest.approx(0.0))


def test_a_wait_that_ends_in_an_error_counts():
    clock = ManualClock()
    handoff = Handoff("h", clock=clock)
    finish = run_in_thread(handoff.take)
    wait_until_waiting(handoff, "taker")
    clock.now = 5.0
    handoff.stop()
    finish()
    clock.now = 9.0
    assert handoff.read_facts().taker_wait_s == 5.0


def test_news_that_arrive_late_count_from_when_they_were_made():
    clock = ManualClock()
    meter = SharedMeter("producer", clock)
    clock.now = 10.0
    # Made at 4 by a process that had waited 1.5 s, but read only now.
    meter.note_ready(made_at=4.0, waited_s=1.5)
    facts = meter.read(reset=True)
    assert (facts.readiness, facts.giver_wait_s) == (pytest.approx(0.6), 1.5)
    meter.note_taken()
    clock.now = 20.0
    # A time before the window and one in the future are both no times of this window.
    meter.note_ready(made_at=3.0, waited_s=0.0)
    assert meter.read(reset=False).readiness == pytest.approx(1.0)
    meter.note_taken()
    meter.note_ready(made_at=99.0, waited_s=0.0)
    facts = meter.read(reset=False)
    assert (facts.items, facts.readiness) == (2, pytest.approx(1.0))


def test_facts_of_no_time_at_all():
    facts = Handoff("h", clock=ManualClock()).read_facts()
    assert (facts.name, facts.items, facts.readiness) == ("h", 0, 0.0)


def test_waiting_until_full_ends_when_nothing_more_can_be_made_ready():
    handoff = Handoff("test", slots=2)
    assert not handoff.wait_until_full(0.0)
    for item in range(2):
        handoff.reserve()
        handoff.commit(item)
    assert handoff.wait_until_full(60.0)
    handoff.take()
    assert not handoff.wait_until_full(0.0)
    handoff.finish()
    assert handoff.wait_until_full(60.0)
    handoff.stop()
    with pytest.raises(Stopped):
        handoff.wait_until_full(60.0)
