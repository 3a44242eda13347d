import pytest
from hypothesis import given
from hypothesis import strategies as st

from myxtts.monitoring.clock import Cause, TimeLedger, measure_elapsed, measure_goodput, measure_training, sum_spent
from tests.support.clocks import ManualClock


def only(spent):
    return {cause: seconds for cause, seconds in spent.items() if seconds}


def test_a_step_that_turns_out_to_have_traced_is_booked_as_tracing():
    clock = ManualClock()
    ledger = TimeLedger(clock)
    with ledger.spend(Cause.STEP) as span:
        clock.move(7)
        span.cause = Cause.TRACE
    assert only(ledger.read()) == {Cause.TRACE: 7}


def test_time_counts_while_a_span_is_open_and_when_it_ends_by_an_error():
    clock = ManualClock()
    ledger = TimeLedger(clock)
    with pytest.raises(KeyError), ledger.spend(Cause.CHECKPOINT):  # noqa: PT012
        clock.move(3)
        assert ledger.read()[Cause.CHECKPOINT] == 3
        raise KeyError
    clock.move(1)
    assert only(ledger.read()) == {Cause.CHECKPOINT: 3, Cause.START_UP: 1}


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


def test_goodput_and_training_time():
    assert measure_goodput({}) is None
    assert measure_goodput({Cause.STEP: 3.0, Cause.START_UP: 1.0}) == 0.75
    assert measure_training(dict.fromkeys(Cause, 1.0)) == 4.0
