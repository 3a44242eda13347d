"""When work counts as hanging."""

from __future__ import annotations

import threading

from myxtts.pipeline.stage import MOST_GAP_S, Stall, StallWatch, TimeLimits, Work, format_all_stacks
from tests.pipeline.clocks import ManualClock

LIMITS = TimeLimits(steady_s=10, first_s=30)


def look(clock: ManualClock, watch: StallWatch, work: Work | None, seconds: int) -> list[Stall]:
    """What is told within so many seconds, with a look in each."""
    told = []
    for _ in range(seconds):
        clock.now += 1
        told.append(watch.look(work))
    return [stall for stall in told if stall is not None]


def test_a_warning_comes_after_the_limit_and_the_end_after_twice_that() -> None:
    clock = ManualClock()
    watch, work = StallWatch(LIMITS, clock), Work("read", 3, 0.0)
    assert look(clock, watch, work, 11) == []
    assert look(clock, watch, work, 5) == [Stall(work, 10, is_final=False)]
    assert look(clock, watch, work, 30) == [Stall(work, 20, is_final=True)]


def test_the_first_of_its_kind_may_take_longer() -> None:
    clock = ManualClock()
    watch, work = StallWatch(LIMITS, clock), Work("read", 0, 0.0, is_first=True)
    assert look(clock, watch, work, 31) == []
    assert [stall.is_final for stall in look(clock, watch, work, 60)] == [False, True]


def test_something_else_begins_the_count_anew() -> None:
    clock = ManualClock()
    watch = StallWatch(LIMITS, clock)
    for number in range(20):
        assert look(clock, watch, Work("read", number, float(number)), 9) == []
    for _ in range(20):
        assert look(clock, watch, Work("read", 0, 0.0), 9) == []
        assert look(clock, watch, None, 2) == []


def test_a_machine_that_slept_made_nobody_hang() -> None:
    clock = ManualClock()
    watch, work = StallWatch(LIMITS, clock), Work("step", None, 0.0)
    assert look(clock, watch, work, 2) == []
    clock.now += 3600
    assert watch.look(work) is None
    assert LIMITS.steady_s > MOST_GAP_S
    assert len(look(clock, watch, work, 10)) == 1


def test_all_threads_are_shown_and_the_one_that_hangs_comes_first() -> None:
    begun, may_end = threading.Event(), threading.Event()

    def wait_in_a_thread_of_its_own() -> None:
        begun.set()
        may_end.wait(60)

    thread = threading.Thread(target=wait_in_a_thread_of_its_own, name="the-one")
    thread.start()
    assert begun.wait(60)
    stacks = format_all_stacks(thread.ident)
    may_end.set()
    thread.join()
    assert stacks.startswith("Thread the-one:")
    assert "wait_in_a_thread_of_its_own" in stacks
    assert threading.current_thread().name not in stacks


def test_starting_and_importing_do_not_depend_on_the_setting() -> None:
    limits, usual = TimeLimits.from_setting(8), TimeLimits()
    assert (limits.steady_s, limits.first_s, limits.import_s, limits.start_s) == (8, 24, usual.import_s, usual.start_s)
    assert limits.setup_s == limits.import_s
    assert TimeLimits.from_setting(300).setup_s == 900
    assert TimeLimits.from_setting(0).start_s == TimeLimits.from_setting(0).longest_s == float("inf")


def test_work_with_a_limit_of_its_own_keeps_to_it() -> None:
    clock = ManualClock()
    watch, work = StallWatch(LIMITS, clock), Work("waiting for a batch", None, 0.0, limit_s=50)
    assert look(clock, watch, work, 51) == []
    assert look(clock, watch, work, 60) == [Stall(work, 50, is_final=False), Stall(work, 100, is_final=True)]
