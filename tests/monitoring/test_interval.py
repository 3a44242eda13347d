import pytest

from myxtts.monitoring.clock import Cause, ProgressMeter, StepClock, TimeLedger
from myxtts.monitoring.metrics import IntervalMeter
from tests.monitoring.runs import make_flow
from tests.support.clocks import ManualClock


def close(meter, elapsed_s=8.0, losses=()):
    return meter.close(
        step=2, epoch=0, losses=losses, learning_rate=1e-4, scalars={}, flow=make_flow(elapsed_s), memory=()
    )


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
        meter.count_batch(clips=4, samples=4 * 22050, padded_samples=5 * 22050, is_retrace=is_retrace)
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
        meter.count_batch(clips=5, samples=5 * 22050, padded_samples=5 * 22050, has_traced=has_traced)
    row = close(meter)
    assert (row.clips, row.clips_per_s, row.audio_seconds_per_s) == (10, rate, rate)
    assert (row.batches, row.traced_batches) == (2, sum(traced))


@pytest.mark.parametrize(("steps", "traced_s", "left_s"), [(9, 0, None), (10, 11, None), (10, 10, 160.0)])
def test_time_left_is_told_when_enough_steps_tell_and_not_from_tracing(steps, traced_s, left_s):
    clock = ManualClock()
    meter = ProgressMeter(end_step=100, clock=clock)
    clock.move(60)
    first = meter.measure(10, next_checkpoint=50, traced_s=500.0)
    assert (first.left_s, first.checkpoint_s, first.share) == (None, None, 0.1)
    clock.move(2 * steps)
    second = meter.measure(10 + steps, next_checkpoint=50, traced_s=traced_s)
    assert (second.left_s, second.checkpoint_s) == (left_s, 60.0 if left_s else None)
    assert meter.measure(100).checkpoint_s is None
