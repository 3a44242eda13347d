"""Where the time of a run goes, the times of steps, the time left, and who waits for whom."""

from dataclasses import replace
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from myxtts.monitoring.clock import (
    Cause,
    Flow,
    ProgressMeter,
    StepClock,
    TimeLedger,
    add_flows,
    find_slowest,
    measure_durations,
    measure_elapsed,
    subtract_flow,
    sum_spent,
)
from myxtts.monitoring.metrics import IntervalMeter
from myxtts.pipeline.threads import HandoffFacts, WorkFacts
from tests.monitoring.runs import make_flow
from tests.support.clocks import ManualClock


def only(spent):
    return {cause: seconds for cause, seconds in spent.items() if seconds}


def test_a_span_may_change_its_cause_counts_while_it_is_open_and_when_it_ends_by_an_error():
    clock = ManualClock()
    ledger = TimeLedger(clock)
    with pytest.raises(KeyError), ledger.spend(Cause.STEP) as span:  # noqa: PT012
        clock.move(3)
        assert ledger.read()[Cause.STEP] == 3
        span.cause = Cause.TRACE
        raise KeyError
    clock.move(1)
    assert only(ledger.read()) == {Cause.TRACE: 3, Cause.START_UP: 1}


def test_windows_add_up_to_the_whole_also_where_a_loop_begins_twice():
    clock = ManualClock()
    ledger = TimeLedger(clock)
    clock.move(4)
    windows = [ledger.take_window()]
    for _ in range(2):
        ledger.begin_loop()
        with ledger.spend(Cause.STEP):
            clock.move(6)
        clock.move(1)
        windows.append(ledger.take_window())
    assert windows == [{Cause.START_UP: 4}, *[{Cause.STEP: 6, Cause.OTHER: 1}] * 2]
    assert sum_spent(windows) == ledger.read()


# Nested spans as a tree: each node is (cause, time before, children, time after).
TREES = st.recursive(
    st.tuples(st.sampled_from(Cause), st.integers(0, 9), st.just(()), st.integers(0, 9)),
    lambda inner: st.tuples(st.sampled_from(Cause), st.integers(0, 9), st.lists(inner, max_size=3), st.integers(0, 9)),
    max_leaves=8,
)


@given(st.lists(TREES, max_size=4), st.booleans())
def test_every_moment_is_booked_once_and_a_span_interrupts_the_one_around_it(trees, loop):
    clock = ManualClock()
    ledger = TimeLedger(clock)
    expected = dict.fromkeys(Cause, 0)

    def spend(tree):
        cause, before, children, after = tree
        expected[cause] += before + after
        with ledger.spend(cause):
            clock.move(before)
            for child in children:
                spend(child)
            assert measure_elapsed(ledger.read()) == clock.now
            clock.move(after)

    if loop:
        ledger.begin_loop()
    for tree in trees:
        spend(tree)
        clock.move(1)
        expected[Cause.OTHER if loop else Cause.START_UP] += 1
    assert ledger.read() == expected
    assert measure_elapsed(ledger.read()) == clock.now


def run_steps(steps, durations, clock):
    for duration in durations:
        clock.move(duration)
        steps.end_step()


def test_figures_of_known_durations():
    times = measure_durations([1.0, 2.0, 3.0, 4.0], left_out=2)
    assert (times.steps, times.left_out, times.min_s, times.max_s, times.mean_s) == (4, 2, 1.0, 4.0, 2.5)
    assert (times.p50_s, times.p95_s, times.std_s) == pytest.approx((2.5, 3.85, 1.25**0.5))
    assert times.variation == pytest.approx(1.25**0.5 / 2.5)
    assert measure_durations([]) is None
    one = measure_durations([2.0])
    assert (one.mean_s, one.std_s, one.variation) == (2.0, None, None)


def test_steps_are_timed_without_gap_and_the_warm_up_and_what_is_not_like_the_others_are_left_out():
    clock = ManualClock()
    steps = StepClock(warm_up=1, clock=clock)
    clock.move(100)
    steps.begin()
    run_steps(steps, [9.0], clock)
    assert steps.read() is None
    run_steps(steps, [1.0, 3.0], clock)
    assert steps.take_window() == ([1.0, 3.0], 1)
    clock.move(30.0)
    steps.leave_out()
    run_steps(steps, [1.0, 2.0], clock)
    assert steps.take_window() == ([2.0], 1)
    assert steps.take_window() == ([], 0)
    assert (list(steps.durations_s), steps.read().left_out) == ([1.0, 3.0, 2.0], 2)


@pytest.mark.parametrize(
    ("train_waits", "transfer_waits", "slowest"),
    [(0.02, 0.9, "train"), (0.3, 0.02, "transfer"), (0.3, 0.9, "prepare")],
)
def test_the_slowest_stage_is_found_by_following_the_waiting(train_waits, transfer_waits, slowest):
    flow = make_flow(train_waits=train_waits, transfer_waits=transfer_waits)
    assert find_slowest(flow) == slowest
    # Of stages in series it is the busier one.
    busy_reader = Flow(flow.elapsed_s, (WorkFacts("read", 20, 8.0), *flow.stages[1:]), flow.handoffs)
    assert find_slowest(busy_reader) == ("read" if slowest == "prepare" else slowest)
    assert find_slowest(Flow(1.0, (WorkFacts("prepare", 1, 0.9),), ())) == "train"


def test_what_is_new_between_two_readings_and_adds_up_to_the_whole():
    before, after = make_flow(elapsed_s=10.0, train_waits=0.0), make_flow(elapsed_s=30.0, train_waits=0.4)
    window = subtract_flow(after, before)
    assert window.elapsed_s == 20.0
    assert window.handoffs[1].taker_wait_s == pytest.approx(12.0)
    # Ready for 18 s of 30 s in all, of which for all of the first 10 s.
    assert window.handoffs[1].readiness == pytest.approx(8 / 20)
    assert window.stages[1].busy_s == pytest.approx(9.0)
    total = add_flows([before, window])
    assert (total.elapsed_s, total.stages[1].items) == (30.0, after.stages[1].items)
    assert total.handoffs[1].taker_wait_s == pytest.approx(after.handoffs[1].taker_wait_s)
    assert total.handoffs[1].readiness == pytest.approx(after.handoffs[1].readiness)
    assert add_flows([]) is None
    # A pipeline that was opened anew counts from its start.
    assert subtract_flow(before, after) is before
    assert subtract_flow(after, None) is after


def make_facts(clips):
    """A batch of so many clips of a second, with a second of padding."""
    return SimpleNamespace(clips=clips, samples=clips * 22050, padded_samples=(clips + 1) * 22050)


def close(meter, elapsed_s=8.0, losses=()):
    return meter.close(make_flow(elapsed_s), step=2, epoch=0, losses=losses, learning_rate=1e-4)


def test_a_row_holds_what_happened_since_the_one_before():
    clock = ManualClock()
    steps, ledger = StepClock(warm_up=0, clock=clock), TimeLedger(clock)
    meter = IntervalMeter(steps, ledger)
    clock.move(5)
    ledger.begin_loop()
    steps.begin()
    for is_retrace in (True, False):
        with ledger.spend(Cause.DATA_STALL):
            clock.move(1)
        with ledger.spend(Cause.STEP):
            clock.move(3)
        meter.count_batch(make_facts(4), is_retrace=is_retrace)
        steps.end_step()
    first = close(meter, losses=[5.0, 4.0])
    assert (first.step, first.loss, first.step_s) == (2, 4.5, 4.0)
    assert first.spent == {Cause.START_UP: 5, Cause.DATA_STALL: 2, Cause.STEP: 6}
    assert (first.batches, first.clips, first.clips_per_s, first.audio_seconds_per_s) == (2, 8, 1.0, 1.0)
    assert (first.retraces, first.data_stall) == (1, 0.25)
    clock.move(2)
    second = close(meter, 10.0)
    assert (second.loss, second.step_s, second.clips, second.retraces, second.clips_per_s) == (None, None, 0, 0, None)
    assert second.spent == {Cause.OTHER: 2}
    assert second.flow.elapsed_s == 2.0


@pytest.mark.parametrize(("traced", "rate"), [([False, True], 2.0), ([True, True], None)])
def test_rates_leave_out_the_clips_of_a_step_whose_time_they_leave_out(traced, rate):
    clock = ManualClock()
    ledger = TimeLedger(clock)
    meter = IntervalMeter(StepClock(clock=clock), ledger)
    for has_traced in traced:
        with ledger.spend(Cause.TRACE if has_traced else Cause.STEP):
            clock.move(20 if has_traced else 2)
        with ledger.spend(Cause.OTHER):
            clock.move(0.0 if has_traced else 0.5)
        meter.count_batch(make_facts(5), has_traced=has_traced)
    row = close(meter)
    assert (row.clips, row.clips_per_s, row.audio_seconds_per_s) == (10, rate, rate)
    assert (row.batches, row.traced_batches) == (2, sum(traced))


@pytest.mark.parametrize(("steps", "traced_s", "left_s"), [(9, 0, None), (10, 11, None), (10, 10, 160.0)])
def test_time_left_is_told_when_enough_steps_tell_and_not_from_tracing(steps, traced_s, left_s):
    clock = ManualClock()
    meter = ProgressMeter(end_step=100, clock=clock)
    clock.move(60)
    first = meter.measure(10, next_checkpoint=50, traced_s=500.0)
    assert (first.measure_until(100), first.measure_until(50), first.share) == (None, None, 0.1)
    clock.move(2 * steps)
    second = meter.measure(10 + steps, next_checkpoint=50, traced_s=traced_s)
    assert (second.measure_until(100), second.measure_until(50)) == (left_s, 60.0 if left_s else None)
    assert second.measure_until(None) is None


def test_what_preparers_of_a_cluster_waited_is_subtracted_one_by_one():
    def make(seconds, items, waited_s):
        preparers = tuple(HandoffFacts(f"Preparer {n} on a", items * n, waited_s * n, 0.0, 0.5) for n in (1, 2))
        return replace(make_flow(seconds), preparers=preparers)

    first, second = subtract_flow(make(20.0, 10, 3.0), make(10.0, 4, 1.0)).preparers
    assert (first.items, first.giver_wait_s) == (6, 2.0)
    assert (second.items, second.giver_wait_s) == (12, 4.0)
    gone = subtract_flow(make(20.0, 10, 3.0), make_flow(10.0))
    assert [each.items for each in gone.preparers] == [10, 20], "one that came meanwhile"
