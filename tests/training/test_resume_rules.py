"""Every setting has a rule for resuming, and what is refused, of a run that goes on or of several workers, names the ways out."""

import logging

import pytest

from myxtts.config import XTTSConfig
from myxtts.config.config import setting_keys
from myxtts.config.sources import dump_sections
from myxtts.devices.machine import read_machine
from myxtts.devices.plan import PlanRequest
from myxtts.devices.planning import plan_devices
from myxtts.errors import ClusterError, RunChangedError
from myxtts.training.resume_rules import (
    _RULES,
    RULES,
    compare_configs,
    describe_idle_workers,
    list_shared_settings,
    refuse_changes,
    refuse_plan,
    refuse_settings,
    report_moved_end,
)

FOLDER = "runs/voice"


def make_sections(**sections):
    return dump_sections(XTTSConfig(model={"size": "tiny"}).replace(**sections))


def refuse(old, new, has_checkpoint=True):
    refuse_changes(compare_configs(old, new), FOLDER, has_checkpoint=has_checkpoint)


def test_every_setting_has_one_rule():
    assert sorted(RULES) == sorted(setting_keys()), "classify new settings in resume_rules.py"
    assert sum(map(len, _RULES.values())) == len(RULES), "a setting stands under two rules"


def test_a_run_from_before_prompts_came_from_the_speaker_goes_on_only_as_it_was():
    old, codec = make_sections(), make_sections(training={"stage": "codec"})
    del old["data"]["prompt_from"], codec["data"]["prompt_from"]
    with pytest.raises(RunChangedError, match=r"data\.prompt_from was clip, now shared[^$]*--prompt-from clip"):
        refuse(old, make_sections())
    refuse(old, make_sections(data={"prompt_from": "clip"}))
    refuse(codec, make_sections(training={"stage": "codec"}))


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("training.mode", "dual"), ("training.epochs", 7), ("training.max_steps", 7), ("training.on_oom", "stop"),
        ("training.log_interval", 3), ("training.watchdog_seconds", 60.0), ("training.tensorboard_log_dir", "logs"),
        ("training.keep_last", 9), ("training.keep_best", 9), ("training.best_metric", "train_loss"),
        ("training.checkpoint_interval", 9), ("training.validation_interval", 9), ("training.early_stopping", 3),
        ("training.checkpoint_dir", "moved"), ("training.resume", "require"), ("training.rehearsal", True),
        ("training.deterministic", True), ("data.data_gpu_memory", 4096), ("data.num_workers", 3),
        ("data.prefetch_buffer_size", 7), ("data.pipeline_buffer_size", 5), ("data.cache", "off"), ("data.strict", True),
        ("data.train_data", "/elsewhere"),
    ],
)  # fmt: skip
def test_how_long_and_by_what_means_may_change(key, value):
    refuse(make_sections(), change(key, value))


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("model.dropout", 0.2), ("model.gpt_layers", 2), ("data.batch_size", 3), ("data.mixed_precision", "mixed_bfloat16"),
        ("data.augment_gain_db", 3.0), ("data.max_clip_seconds", 9.0), ("training.seed", 1), ("training.learning_rate", 1e-5),
        ("training.lr_schedule", "constant"), ("training.gradient_accumulation_steps", 2), ("training.init_from", "xtts-v2"),
        ("training.codec_steps", 5),
    ],
)  # fmt: skip
def test_what_would_change_the_result_may_not_change_once_something_is_saved(key, value):
    with pytest.raises(RunChangedError) as caught:
        refuse(make_sections(), change(key, value))
    assert key in caught.value.keys
    refuse(make_sections(), change(key, value), has_checkpoint=False)


def change(key, value):
    section, _, name = key.partition(".")
    return make_sections(**{section: {name: value}})


def test_the_refusal_shows_old_and_new_values_and_the_ways_out():
    old = make_sections(data={"pad_to_fixed_length": True, "augment_noise_db": None}, training={"learning_rate": 1e-4})
    new = make_sections(
        data={"pad_to_fixed_length": False, "augment_noise_db": -60.0},
        model={"dropout": 0.25},
        training={"learning_rate": 5e-6},
    )
    with pytest.raises(RunChangedError) as caught:
        refuse(old, new)
    assert str(caught.value) == (
        "The run in runs/voice cannot go on with these settings, because they would change its result:\n"
        "  - model.dropout was 0.1, now 0.25\n"
        "  - data.pad_to_fixed_length was true, now false\n"
        "  - data.augment_noise_db was null, now -60.0\n"
        "  - training.learning_rate was 0.0001, now 5.0e-06\n"
        "Give the old values back (--set model.dropout=0.1 --enable-static-shapes --lr 0.0001; leave out --set "
        "data.augment_noise_db), "
        "or start anew with --reset-training, which keeps the old run aside, or begin another run with another --checkpoint-dir."
    )


def test_a_gpt_run_in_the_folder_of_a_codec_is_pointed_to_it():
    with pytest.raises(
        RunChangedError, match=r"training\.stage was codec, now gpt[^$]*--codec runs/voice with another"
    ):
        refuse(make_sections(training={"stage": "codec"}), make_sections())


def test_a_preset_is_compared_by_what_it_fills_in():
    with pytest.raises(RunChangedError) as caught:
        refuse(make_sections(), change("training.optimization_level", "experimental"))
    assert caught.value.keys == ("data.mixed_precision",)


@pytest.mark.parametrize(
    ("schedule", "step", "said"),
    [
        (
            "cosine",
            110,
            "from step 110 on it is another one, and the result is neither that of 110 updates nor that of 210",
        ),
        ("cosine", 5, "from step 10 on it is another one"),
        ("constant", 50, None),
    ],
    ids=["at its end", "in its warm-up", "of a constant rate"],
)
def test_another_length_says_from_which_step_on_the_rate_is_another_one(caplog, schedule, step, said):
    config = XTTSConfig(training={"learning_rate": 1e-3, "warmup_steps": 10, "lr_schedule": schedule})
    with caplog.at_level(logging.INFO, "myxtts"):
        report_moved_end(config.training, step, 110, 210)
    info, *warnings = [(record.levelname, record.getMessage()) for record in caplog.records]
    assert info == ("INFO", "The run is 210 updates long now; it was 110.")
    assert [(level, said in text) for level, text in warnings] == ([("WARNING", True)] if said else [])


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({}, "^--trainers needs a codec[^$]*\n  myxtts train --stage codec"),
        ({"stage": "codec", "codec": "x"}, "^--stage codec is trained by one process.*Leave out --trainers"),
        ({"codec": "x", "loss_mean": "batches"}, "training.loss_mean must be tokens"),
        ({"codec": "x", "mode": "auto"}, "--mode single or isolated"),
    ],
)
def test_settings_that_cannot_be_shared_are_refused(settings, words):
    with pytest.raises(ClusterError, match=words):
        refuse_settings(XTTSConfig(training=settings))


def test_gpts_and_decoders_can_be_trained_by_workers_that_see_one_card():
    for settings in ({"codec": "x"}, {"init_from": "x"}, {"stage": "decoder"}):
        refuse_settings(XTTSConfig(training=settings))
    *allowed, refused = (
        plan_devices(PlanRequest(mode=mode, rehearsal=True), read_machine()) for mode in ("single", "isolated", "dual")
    )
    for plan in allowed:
        refuse_plan(plan)
    with pytest.raises(ClusterError, match="--enable-memory-isolation"):
        refuse_plan(refused)


def test_settings_that_decide_the_result_or_the_waiting_are_compared():
    one = list_shared_settings(XTTSConfig(training={"seed": 1, "checkpoint_dir": "a", "init_from": "x"}))
    other = list_shared_settings(XTTSConfig(training={"seed": 2, "checkpoint_dir": "b", "init_from": "y"}))
    assert {key for key in one if one[key] != other[key]} == {"training.seed"}, "folders may differ"
    assert {"training.validation_interval", "training.max_steps", "data.batch_size"} <= one.keys()


def test_workers_that_have_nothing_to_do_are_counted():
    config = XTTSConfig(data={"batch_size": 3})
    assert describe_idle_workers(config, 3) is None
    assert "5 workers share batches of 3 clips, so 2 of them have nothing to do" in describe_idle_workers(config, 5)
