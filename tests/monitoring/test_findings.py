import pytest

from myxtts.monitoring.clock import Cause, Flow, measure_durations
from myxtts.monitoring.findings import (
    MachineFacts,
    RunFacts,
    Settings,
    find_limit,
    find_timing_variation,
    measure_speed_up,
)
from myxtts.pipeline.threads import WorkFacts
from tests.monitoring.runs import SETTINGS, make_flow

JITTER = measure_durations([1.0, 3.0] * 20)
LONG = measure_durations([1.0, 1.1] * 100)
STEADY = measure_durations([1.0, 1.1] * 20)
TWO_CARDS = MachineFacts((0, 1), 16)


def make_facts(mode="isolated", settings=None, **changes):
    values = {
        "spent": {Cause.START_UP: 500.0, Cause.STEP: 100.0},
        "flow": make_flow(),
        "times": STEADY,
        "padding_waste": 0.1,
        "retraces": 0,
    }
    return RunFacts(mode=mode, settings=Settings(settings or SETTINGS, TWO_CARDS), **(values | changes))


def change(section, **values):
    return SETTINGS | {section: SETTINGS[section] | values}


@pytest.mark.parametrize(
    ("flow", "who", "flag"),
    [
        (make_flow(train_waits=0.4, transfer_waits=0.9), "waits for stage 'prepare'", "--cache auto"),
        (make_flow(train_waits=0.4, transfer_waits=0.0), "waits for stage 'transfer'", None),
        (make_flow(train_waits=0.0), "nobody waits", "--max-clip-seconds 9"),
        (None, "nobody waits", "--max-clip-seconds 9"),
    ],
)
def test_high_variation_names_the_stage_and_one_setting(flow, who, flag):
    finding = find_timing_variation(JITTER, flow, "isolated", Settings(SETTINGS))
    assert finding.title == "High timing variation"
    assert "50.0%" in finding.evidence
    assert who in finding.evidence
    assert finding.flag == flag


@pytest.mark.parametrize("times", [None, STEADY, measure_durations([1.0, 3.0])])
def test_even_steps_and_too_few_of_them_are_no_finding(times):
    assert find_timing_variation(times, make_flow(), "isolated", Settings(SETTINGS)) is None


@pytest.mark.parametrize(
    ("times", "trace_s"),
    [(None, 0.0), (measure_durations([1.0] * 9), 0.0), (STEADY, 101.0)],
)
def test_a_run_that_mostly_traced_is_too_short_to_judge(times, trace_s):
    spent = {Cause.START_UP: 500.0, Cause.TRACE: trace_s, Cause.STEP: 40.0, Cause.DATA_STALL: 60.0}
    limit = find_limit(make_facts(times=times, spent=spent))
    assert str(limit).startswith(f"This run is too short to judge: {times.steps if times else 0} steps were timed")
    assert str(limit).endswith("Try first: a longer run")
    longer = find_limit(make_facts(spent={**spent, Cause.TRACE: 99.0}))
    assert "waits for batches 60.0%" in longer.evidence


def test_a_run_whose_model_hardly_waits_is_limited_by_the_training():
    limit = find_limit(make_facts(spent={Cause.START_UP: 500.0, Cause.STEP: 95.0, Cause.DATA_STALL: 5.0}))
    assert "training itself" in limit.title
    assert "95.0%" in limit.evidence
    assert limit.flag == "--mixed-precision"


@pytest.mark.parametrize(
    ("flow", "mode", "stage", "flag"),
    [
        (make_flow(train_waits=0.4, transfer_waits=0.9), "isolated", "prepare", "--cache auto"),
        (make_flow(train_waits=0.4, transfer_waits=0.0), "isolated", "transfer", None),
        (make_flow(train_waits=0.4, transfer_waits=0.0), "dual", "transfer", "--prefetch-buffer-size 8"),
        (
            Flow(10.0, (WorkFacts("read", 5, 4.0), WorkFacts("prepare", 5, 3.0)), ()),
            "single",
            "read",
            "--num-workers 4",
        ),
    ],
)
def test_a_data_stall_is_blamed_on_the_stage_that_causes_it(flow, mode, stage, flag):
    limit = find_limit(make_facts(mode=mode, flow=flow, spent={Cause.STEP: 60.0, Cause.DATA_STALL: 40.0}))
    assert limit.title == f"Stage {stage!r} limits the run"
    assert "40.0%" in limit.evidence
    assert limit.flag == flag


@pytest.mark.parametrize(
    ("spent", "changes", "title", "flag"),
    [
        ({Cause.CHECKPOINT: 30.0}, {"times": LONG}, "Saving checkpoints", "--checkpoint-interval 200"),
        ({Cause.VALIDATION: 30.0}, {"times": LONG}, "Validation", "--validation-interval 100"),
        ({Cause.TRACE: 400.0}, {"retraces": 12, "times": None}, "Tracing anew", None),
        ({Cause.TRANSFER: 30.0}, {"mode": "dual"}, "Moving batches", "--prefetch-buffer-size 8"),
        ({Cause.TRANSFER: 30.0}, {}, "Moving batches", None),
        ({Cause.RECOVERY: 30.0}, {}, "Recovering", "--batch-size 4 --grad-accum 4"),
        ({Cause.TRACE: 40.0}, {"retraces": 12, "settings": change("data", pad_to_fixed_length=False)}, "Tracing anew", "--enable-static-shapes"),
        ({}, {"padding_waste": 0.5}, "Padding", "--batch-size 4 --grad-accum 4"),
    ],
)  # fmt: skip
def test_whatever_takes_most_of_the_time_is_named(spent, changes, title, flag):
    limit = find_limit(make_facts(spent={Cause.STEP: 70.0, Cause.START_UP: 900.0} | spent, **changes))
    assert limit.title.startswith(title)
    assert limit.flag == flag


def test_the_dearest_finding_is_named():
    spent = {Cause.STEP: 50.0, Cause.CHECKPOINT: 20.0, Cause.VALIDATION: 30.0}
    assert find_limit(make_facts(spent=spent, times=LONG)).title.startswith("Validation")


@pytest.mark.parametrize(("steps", "is_blamed"), [(99, False), (100, True)])
def test_validation_is_blamed_only_where_it_came_as_often_as_it_was_set(steps, is_blamed):
    facts = make_facts(
        spent={Cause.STEP: 50.0, Cause.VALIDATION: 50.0}, times=measure_durations([1.0] * 40, steps - 40)
    )
    said = str(find_limit(facts))
    assert said.startswith(
        "Validation limits the run" if is_blamed else "This run is too short to judge: validation took 50.0%"
    )
    assert ("--validation-interval" in said) == is_blamed
    assert is_blamed or "every 50 updates and at the end, and 99 were made. Try first: a longer run" in said


def test_before_anything_was_trained_there_is_no_verdict_and_where_nothing_is_left_to_try_it_says_so():
    assert find_limit(make_facts(spent={Cause.START_UP: 5.0})) is None
    settings = {"data": {"mixed_precision": "mixed_float16", "enable_xla": True, "batch_size": 8}, "training": {}}
    assert str(find_limit(make_facts(settings=settings))).endswith("No setting would change that.")


def test_speed_up_has_a_bound_and_what_was_reached():
    # 20 batches: preparing takes 5 s of 10 s, so 0.25 s each; training 0.45 s each; a batch every 0.5 s.
    speed_up = measure_speed_up(make_flow(), {Cause.STEP: 9.0, Cause.DATA_STALL: 1.0, Cause.START_UP: 99.0}, batches=20)
    assert speed_up.bound == pytest.approx(1 + 0.25 / 0.45)
    assert speed_up.reached == pytest.approx((0.25 + 0.45) / 0.5)


@pytest.mark.parametrize(
    ("flow", "step_s", "batches"),
    [(None, 9.0, 20), (make_flow(busy=0.0), 9.0, 20), (make_flow(), 0.0, 20), (make_flow(), 9.0, 0)],
)
def test_speed_up_is_unknown_unless_both_sides_were_measured(flow, step_s, batches):
    assert measure_speed_up(flow, {Cause.STEP: step_s}, batches) is None
