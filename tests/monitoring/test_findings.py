"""What limits a run, and advice that can be followed as it stands and always changes something."""

from functools import cache
from itertools import product

import pytest

from myxtts.cli.main import make_parser
from myxtts.config import XTTSConfig, resolve_config
from myxtts.config.sources import GivenValue
from myxtts.devices.plan import PlanRequest
from myxtts.devices.planning import choose_mode
from myxtts.monitoring.clock import Cause, Flow, measure_durations
from myxtts.monitoring.findings import (
    MachineFacts,
    RunFacts,
    Settings,
    advise_faster,
    advise_fewer_launches,
    advise_smaller_batch,
    advise_steadier,
    find_limit,
    find_timing_variation,
    settle_sections,
)
from myxtts.pipeline.threads import WorkFacts
from tests.monitoring.runs import SETTINGS, make_flow

JITTER = measure_durations([1.0, 3.0] * 20)
LONG = measure_durations([1.0, 1.1] * 100)
STEADY = measure_durations([1.0, 1.1] * 20)
TWO_CARDS = MachineFacts((0, 1), 16)
IN_SERIES = Flow(10.0, (WorkFacts("read", 5, 4.0), WorkFacts("prepare", 5, 3.0)), ())


def make_facts(mode="isolated", settings=None, **changes):
    values = {"spent": {Cause.START_UP: 500.0, Cause.STEP: 100.0}, "flow": make_flow(), "times": STEADY}
    values |= {"padding_waste": 0.1, "retraces": 0}
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


@pytest.mark.parametrize(("times", "trace_s"), [(None, 0.0), (measure_durations([1.0] * 9), 0.0), (STEADY, 101.0)])
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
        (IN_SERIES, "single", "read", "--num-workers 4"),
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
        ({Cause.VALIDATION: 30.0, Cause.CHECKPOINT: 20.0}, {"times": LONG}, "Validation", "--validation-interval 100"),
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


@pytest.mark.parametrize(("steps", "is_blamed"), [(99, False), (100, True)])
def test_validation_is_blamed_only_where_it_came_as_often_as_it_was_set(steps, is_blamed):
    times = measure_durations([1.0] * 40, steps - 40)
    said = str(find_limit(make_facts(spent={Cause.STEP: 50.0, Cause.VALIDATION: 50.0}, times=times)))
    begin = "Validation limits the run" if is_blamed else "This run is too short to judge: validation took 50.0%"
    assert said.startswith(begin)
    assert ("--validation-interval" in said) == is_blamed
    assert is_blamed or "every 50 updates and at the end, and 99 were made. Try first: a longer run" in said


def test_before_anything_was_trained_there_is_no_verdict_and_where_nothing_is_left_to_try_it_says_so():
    assert find_limit(make_facts(spent={Cause.START_UP: 5.0})) is None
    settings = {"data": {"mixed_precision": "mixed_float16", "enable_xla": True, "batch_size": 8}, "training": {}}
    assert str(find_limit(make_facts(settings=settings))).endswith("No setting would change that.")


STAGES = ("read", "prepare", "transfer", "train")
CARDS = [(), (0,), (0, 1), (3, 1)]
PROCESSORS = [1, 2, 6, 64]
CONFIGS = {
    "defaults": {},
    "rehearsal": {"training": {"rehearsal": True}},
    "rehearsal, dual": {"training": {"rehearsal": True, "mode": "dual"}},
    "rehearsal, isolated": {"training": {"rehearsal": True, "mode": "isolated"}},
    "single asked for": {"training": {"mode": "single"}},
    "two cards": {"data": {"data_gpu": 1, "model_gpu": 3}},
    "isolated": {"data": {"data_gpu": 0, "model_gpu": 1, "enable_memory_isolation": True}},
    "split": {"data": {"data_gpu": 0, "model_gpu": 0, "data_gpu_memory": 4096, "model_gpu_memory": 8192}},
    "parallel": {"training": {"model_gpus": "0,1"}},
    "large batch": {"data": {"batch_size": 32}},
    "large batch, isolated": {"data": {"batch_size": 32}, "training": {"rehearsal": True, "mode": "isolated"}},
    "nothing kept": {"data": {"cache": "off"}},
    "nothing kept, dual": {"data": {"cache": "off", "data_gpu": 0, "model_gpu": 1, "batch_size": 32}},
    "nothing kept, by auto": {"data": {"cache": "off"}, "training": {"mode": "auto"}},
    "codec": {"data": {"cache": "off"}, "training": {"stage": "codec"}},
    "augmented": {"data": {"cache": "off", "augment_gain_db": 3.0}},
    "read here": {"data": {"num_workers": 0}},
    "one reader": {"data": {"num_workers": 1}},
    "many readers": {"data": {"num_workers": 100}},
    "deepest buffers": {"data": {"pipeline_buffer_size": 65536, "prefetch_buffer_size": 4096}},
    "one ahead": {"data": {"pipeline_buffer_size": 1, "prefetch_buffer_size": 1, "data_gpu": 0, "model_gpu": 1}},
    "half precision": {"data": {"mixed_precision": True}},
    "half precision, XLA": {"data": {"mixed_precision": True, "enable_xla": True}},
    "no fixed shapes": {"data": {"mixed_precision": True, "pad_to_fixed_length": False}},
    "accumulation": {
        "data": {"mixed_precision": True, "enable_xla": True, "batch_size": 3},
        "training": {"gradient_accumulation_steps": 84},
    },
    "one clip": {"data": {"batch_size": 1}},
    "short clips": {"data": {"min_clip_seconds": 2.9, "max_clip_seconds": 3.0}},
}


def list_advice(settings, mode):
    """All that could be said about a run."""
    advice = [give(stage, mode, settings) for give in (advise_faster, advise_steadier) for stage in STAGES]
    return [each for each in (*advice, advise_smaller_batch(settings)) if each is not None]


def advise(give, name, stage, around):
    """What is said about a stage of one of the configurations."""
    config = XTTSConfig(**CONFIGS[name])
    return give(stage, find_mode(config), Settings.of_config(config, around))


def find_mode(config):
    """That of the run; `auto` has found that one device is best."""
    return "single" if config.training.mode == "auto" else str(choose_mode(PlanRequest.from_config(config)))


def follow(config, advice):
    """What one has after giving these flags, too. Fails where they are refused."""
    given = {
        f"{section}.{name}": GivenValue(value, "file")
        for section, values in config.given_values().items()
        for name, value in values.items()
    }
    return resolve_config(flags=given | parse_flags(advice), environ={})


@cache
def test_a_card_that_xla_cannot_compile_for_is_not_sent_to_it():
    data = {"enable_xla": False, "mixed_precision": "mixed_float16", "batch_size": 4}
    for serves_xla, advice in ((True, "--enable-xla"), (None, "--enable-xla"), (False, None)):
        settings = Settings(
            {"data": data, "training": {"rehearsal": False}}, MachineFacts((0,), 8, serves_xla=serves_xla)
        )
        assert advise_faster("train", "single", settings) == advice
        assert ("--enable-xla" in advise_fewer_launches(settings, is_compiled=False)[0]) == bool(advice)


def parse_flags(flags):
    """As the program takes them; the same advice is given in many situations."""
    return dict(make_parser("train", "train").parse_all(flags.split()).given)


@pytest.mark.parametrize("name", CONFIGS)
def test_advice_can_be_followed_on_this_machine_and_changes_what_is_in_force(name):
    config = XTTSConfig(**CONFIGS[name])
    for cards, processors in product(CARDS, PROCESSORS):
        around = MachineFacts(cards, processors)
        mode = find_mode(config)
        for advice in list_advice(Settings.of_config(config, around), mode):
            followed = follow(config, advice)
            before, after = settle_sections(config, around), settle_sections(followed, around)
            changed = {
                f"{section}.{key}": after[section][key]
                for section, values in before.items()
                for key, value in values.items()
                if after[section][key] != value
            }
            flags = [word for word in advice.split() if word.startswith("--")]
            assert len(changed) >= len(flags), f"{advice} names a value in force ({cards}, {processors})"
            for key in ("data.data_gpu", "data.model_gpu"):
                assert changed.get(key) in (None, *cards), f"{advice} names a card that is not there"
            assert changed.get("data.num_workers", 0) <= processors
            if "data.prefetch_buffer_size" in changed and "data.batch_size" not in changed:
                assert mode == "dual", f"{advice} is read by no other mode"
            if "data.mixed_precision" in changed:
                assert cards
                assert not config.training.rehearsal


@pytest.mark.parametrize(
    ("name", "cards", "processors", "stage", "advice"),
    [
        ("one reader", (), 6, "read", "--num-workers 2"),
        ("read here", (), 1, "read", None),
        ("defaults", (), 64, "read", "--num-workers 16"),
        ("many readers", (), 64, "read", None),
        ("defaults", (0,), 6, "prepare", None),
        ("defaults", (3, 1), 6, "prepare", "--data-gpu 1 --model-gpu 3"),
        ("single asked for", (0, 1), 6, "prepare", "--mode dual --data-gpu 1 --model-gpu 0"),
        ("rehearsal", (0, 1), 6, "prepare", None),
        ("parallel", (0, 1), 6, "prepare", None),
        ("nothing kept", (0, 1), 6, "prepare", "--cache auto"),
        # The `off` may be its own answer: it weighs keeping codes, and a second card, by measuring.
        ("nothing kept, by auto", (0, 1), 6, "prepare", None),
        ("codec", (0,), 6, "prepare", None),
        ("augmented", (0,), 6, "prepare", None),
        ("one ahead", (0, 1), 6, "transfer", "--prefetch-buffer-size 2"),
        ("two cards", (1, 3), 6, "transfer", None),
        ("large batch, isolated", (), 6, "transfer", None),
        ("defaults", (0,), 6, "train", "--mixed-precision"),
        ("defaults", (), 6, "train", "--enable-xla"),
        ("no fixed shapes", (0,), 6, "train", "--enable-static-shapes"),
        ("accumulation", (0,), 6, "train", "--batch-size 6 --grad-accum 42"),
        ("half precision, XLA", (0,), 6, "train", None),
    ],
)
def test_what_makes_a_stage_faster_depends_on_machine_and_settings(name, cards, processors, stage, advice):
    assert advise(advise_faster, name, stage, MachineFacts(cards, processors)) == advice


@pytest.mark.parametrize(
    ("name", "stage", "advice"),
    [
        ("defaults", "read", "--buffer-size 100"),
        ("deepest buffers", "read", None),
        ("read here", "read", "--num-workers 4"),
        ("nothing kept, dual", "prepare", "--prefetch-buffer-size 4"),
        ("nothing kept", "prepare", "--cache auto"),
        ("nothing kept, by auto", "prepare", None),
        ("no fixed shapes", "train", "--enable-static-shapes"),
        ("defaults", "train", "--max-clip-seconds 8.7"),
        ("short clips", "train", None),
    ],
)
def test_what_makes_steps_steadier_depends_on_who_is_waited_for(name, stage, advice):
    assert advise(advise_steadier, name, stage, MachineFacts((), 6)) == advice


@pytest.mark.parametrize("mode", ["single", "dual"])
def test_what_is_not_known_is_not_advised_on(mode):
    assert list_advice(Settings({}), mode) == []
