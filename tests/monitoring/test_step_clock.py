import pytest

from myxtts.monitoring.clock import StepClock, measure_durations
from tests.support.clocks import ManualClock


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


def test_waiting_is_part_of_a_step_and_what_is_not_like_the_others_is_left_out_alone():
    clock = ManualClock()
    steps = StepClock(warm_up=0, clock=clock)
    clock.move(100)
    steps.begin()
    run_steps(steps, [1.0, 3.0], clock)
    clock.move(30.0)
    steps.leave_out()
    run_steps(steps, [1.0, 2.0], clock)
    assert list(steps.durations_s) == [1.0, 3.0, 2.0]
    assert steps.read().left_out == 1


def test_windows_follow_each_other_without_gap_or_overlap_and_without_the_warm_up():
    clock = ManualClock()
    steps = StepClock(warm_up=1, clock=clock)
    run_steps(steps, [9.0], clock)
    assert steps.read() is None
    run_steps(steps, [1.0, 2.0], clock)
    assert steps.take_window() == ([1.0, 2.0], 1)
    run_steps(steps, [3.0], clock)
    assert steps.take_window() == ([3.0], 0)
    assert steps.take_window() == ([], 0)
