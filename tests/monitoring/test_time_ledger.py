import pytest
from hypothesis import given
from hypothesis import strategies as st

from myxtts.monitoring.time_ledger import (
    Cause,
    TimeLedger,
    measure_elapsed,
    measure_goodput,
    measure_training,
    sum_spent,
)
from tests.monitoring.clocks import ManualClock


def only(spent):
    return {cause: seconds for cause, seconds in spent.items() if seconds}


def test_every_moment_is_booked_once():
    clock = ManualClock()
    ledger = TimeLedger(clock)
    clock.move(5)
    ledger.begin_loop()
    with ledger.spend(Cause.DATA_STALL):
        clock.move(2)
    with ledger.spend(Cause.STEP):
        clock.move(10)
    clock.move(1)
    assert only(ledger.read()) == {Cause.START_UP: 5, Cause.DATA_STALL: 2, Cause.STEP: 10, Cause.OTHER: 1}


def test_a_span_interrupts_the_one_around_it():
    clock = ManualClock()
    ledger = TimeLedger(clock)
    ledger.begin_loop()
    with ledger.spend(Cause.VALIDATION):
        clock.move(1)
        with ledger.spend(Cause.DATA_STALL):
            clock.move(2)
        clock.move(4)
    assert only(ledger.read()) == {Cause.VALIDATION: 5, Cause.DATA_STALL: 2}


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


def test_windows_add_up_to_the_whole():
    clock = ManualClock()
    ledger = TimeLedger(clock)
    clock.move(4)
    first = ledger.take_window()
    ledger.begin_loop()
    with ledger.spend(Cause.STEP):
        clock.move(6)
    second = ledger.take_window()
    assert (first, second) == ({Cause.START_UP: 4}, {Cause.STEP: 6})
    assert sum_spent([first, second]) == ledger.read()


# Nested spans as a tree: each node is (cause, time before, children, time after).
TREES = st.recursive(
    st.tuples(st.sampled_from(Cause), st.integers(0, 9), st.just(()), st.integers(0, 9)),
    lambda inner: st.tuples(st.sampled_from(Cause), st.integers(0, 9), st.lists(inner, max_size=3), st.integers(0, 9)),
    max_leaves=8,
)


@given(st.lists(TREES, max_size=4), st.booleans())
def test_the_parts_always_add_up_to_the_time_elapsed(trees, loop):
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


def test_goodput_is_the_share_of_steps_and_unknown_before_any_time_passed():
    assert measure_goodput({}) is None
    assert measure_goodput({Cause.STEP: 3.0, Cause.START_UP: 1.0}) == 0.75
    assert measure_goodput({Cause.START_UP: 1.0}) == 0.0


def test_training_time_leaves_out_what_happens_beside_the_steps():
    assert measure_training(dict.fromkeys(Cause, 1.0)) == 4.0
