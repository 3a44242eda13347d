"""`--mode auto`: which mode follows from which costs, when nothing has to be measured, and the process that measures."""

import os
import signal
from dataclasses import asdict, replace
from unittest.mock import patch

import psutil
import pytest

from myxtts.config import XTTSConfig
from myxtts.data.task_processes import ProcessTask
from myxtts.devices.machine import Machine
from myxtts.devices.nvml import Card, CardScan, PhysicalId
from myxtts.devices.plan import Mode
from myxtts.errors import ConfigError, DevicePlanError
from myxtts.training import mode as auto_mode
from myxtts.training.mode import (
    MODES,
    Circumstances,
    MeasuringError,
    StageCosts,
    choose_mode,
)
from myxtts.training.run_folder import open_run

NO_CODES = Circumstances(kept_obstacle="There are none.")
SINGLE, DUAL, ISOLATED = MODES


def make_costs(prepare_ms, transfer_ms, train_ms, **more_ms):
    """Costs of a machine on which two devices overlap without loss."""
    values = {"prepare": prepare_ms, "transfer": transfer_ms, "train": train_ms, "single": prepare_ms + train_ms}
    values |= {"dual": max(prepare_ms, transfer_ms, train_ms), **more_ms}
    return StageCosts(**{f"{name}_s": value / 1000 for name, value in values.items()})


@pytest.mark.parametrize(
    ("costs", "mode", "kept_share", "expected_ms"),
    [
        (make_costs(30, 1, 40), SINGLE, 0, 70),
        (make_costs(30, 1, 40, single=55), SINGLE, 0, 55),
        (make_costs(30, 1, 40), DUAL, 0, 40),
        (make_costs(50, 1, 40), DUAL, 0, 50),
        (make_costs(30, 60, 40), DUAL, 0, 60),
        # Packing is the preparing side's work, unpacking the transfer's.
        (make_costs(50, 1, 40, pack=5, unpack=2), ISOLATED, 0, 55),
        (make_costs(10, 39, 40, pack=5, unpack=2), ISOLATED, 0, 41),
        # Half of the 31 ms beside training was not hidden: codes that are kept leave less to hide.
        (make_costs(30, 1, 40, dual=55.5), DUAL, 0, 55.5),
        (make_costs(30, 1, 40, dual=55.5, codes=20), DUAL, 1, 40 + 0.5 * 11),
        (make_costs(30, 1, 40, codes=20), SINGLE, 3 / 4, 70 - 20 * 3 / 4),
        (make_costs(50, 1, 40, codes=20), DUAL, 1, 40),
        # Never less than the training itself.
        (make_costs(30, 1, 40, single=45, codes=30), SINGLE, 1, 40),
    ],
)
def test_a_batch_takes_what_the_stages_make_of_it(costs, mode, kept_share, expected_ms):
    assert costs.predict(mode, kept_share) * 1000 == pytest.approx(expected_ms)


SHARED = {"half": 21, "exchange": 3}
"""Half of the rows take more than half of the time: every device makes the whole update."""


@pytest.mark.parametrize(
    ("costs", "mode", "cards", "accumulation", "expected_ms"),
    [
        # The first one prepares. Half of the rows cross, and all gradients.
        (make_costs(5, 2, 40, **SHARED), SINGLE, 2, 1, 5 + 21 + 1 + 3),
        # 2 ms of a step do not depend on the rows, and each of four sends half as much again as each of two.
        (make_costs(5, 0, 40, **SHARED), SINGLE, 4, 1, 5 + (2 + 38 / 4) + 1.5 * 3),
        (make_costs(5, 0, 40, **SHARED), SINGLE, 2, 8, 5 + 21 + 3 / 8),
        # What one device that does both was seen to hide of preparing stays hidden.
        (make_costs(5, 0, 40, **SHARED, single=42), SINGLE, 2, 1, 2 + 21 + 3),
        # One more prepares meanwhile.
        (make_costs(5, 0, 40, **SHARED), DUAL, 2, 1, 21 + 3),
        (make_costs(30, 0, 40, **SHARED), DUAL, 2, 1, 30),
        (make_costs(30, 0, 40, **SHARED, pack=4), ISOLATED, 2, 1, 34),
        # "Devices" that are the same cores: nothing of what is done beside something is hidden.
        (make_costs(5, 0, 40, **SHARED, dual=45), SINGLE, 2, 1, 5 + 2 * 21 + 3),
        # Never better than an even share, whatever a hiccup made of the measurement.
        (make_costs(5, 0, 40, half=10, exchange=3), SINGLE, 2, 1, 5 + 20 + 3),
        (make_costs(5, 0, 40, half=50, exchange=3), SINGLE, 2, 1, 5 + 40 + 3),
    ],
)
def test_several_that_train_have_a_part_of_the_rows_each_and_exchange(costs, mode, cards, accumulation, expected_ms):
    assert costs.predict(mode, 0.0, cards, accumulation) * 1000 == pytest.approx(expected_ms)


def test_a_step_has_all_its_batches_and_codes_of_the_first_epoch_are_made_in_any_case():
    choice = choose_mode(make_costs(30, 1, 40, codes=20), Circumstances(accumulation=4, epochs=4), ["a", "b"])
    predicted = {(each.layout, each.keeps_codes): each.step_s * 1000 for each in choice.predictions}
    assert predicted[DUAL, False] == pytest.approx(160)
    assert predicted[SINGLE, True] == pytest.approx(4 * (70 - 20 * 3 / 4))


@pytest.mark.parametrize(
    ("costs", "obstacles", "layout", "words"),
    [
        (make_costs(30, 1, 40), {}, DUAL, "40 ms a step instead of 70 ms on one"),
        (make_costs(0.4, 1, 40), {}, SINGLE, "Preparing takes 1% of the time of training"),
        (make_costs(10, 80, 40), {}, SINGLE, "would not pay: 80 ms a step, 50 ms on one"),
        # Sharing cores: overlapping costs more than it hides.
        (make_costs(30, 1, 40, dual=72), {}, SINGLE, "would not pay"),
        (make_costs(30, 1, 40), {DUAL: "no room"}, ISOLATED, "overlap on two devices"),
        (make_costs(30, 1, 40), {DUAL: "no room", ISOLATED: "no room"}, SINGLE, "Two devices cannot be had: no room."),
        (make_costs(0.4, 1, 40), {SINGLE: "no room"}, DUAL, "40 ms a step. One device cannot do everything: no room."),
    ],
)
def test_the_simplest_of_the_fastest_modes_is_chosen(costs, obstacles, layout, words):
    choice = choose_mode(costs, replace(NO_CODES, obstacles=obstacles), ["a", "b"])
    assert choice.layout is layout
    assert words in choice.reason
    # Two devices are not worth their trouble for less than what measurements differ by.
    assert all(each.obstacle or choice.step_s <= 1.03 * each.step_s for each in choice.predictions)


@pytest.mark.parametrize(
    ("costs", "cards", "accumulation", "chosen", "words"),
    [
        # Preparing is little: both train.
        (
            make_costs(0.4, 1, 40, **SHARED), {SINGLE: 2}, 1, "single, 2 train",
            "Several devices train: 25 ms a step; where one does: single 40 ms, dual 40 ms, isolated 40 ms. 2 that train: 21 ms on "
            "1/2 of the rows + 3.50 ms for rows and gradients to cross + 0.40 ms to prepare = 25 ms a step.",
        ),
        # It takes as long as training: one prepares.
        (make_costs(40, 1, 40, **SHARED), {SINGLE: 2}, 1, "dual", "on one. 2 that train: 21 ms on 1/2 of the rows + 3.50 ms for rows and gradients to cross + 40 ms to prepare"),
        # Gradients take long to cross, unless there are many batches to an update.
        (make_costs(0.4, 1, 40, half=21, exchange=30), {SINGLE: 2}, 1, "single", "30 ms for rows and gradients to cross + 0.40 ms to prepare = 52 ms"),
        (make_costs(0.4, 1, 40, half=21, exchange=30), {SINGLE: 2}, 8, "single, 2 train", "= 205 ms a step."),
        # The same cores under another name.
        (make_costs(5, 0, 40, **SHARED, dual=45), {SINGLE: 2}, 1, "single", "= 50 ms a step."),
        # Of three, one prepares for two.
        (make_costs(20, 1, 40, **SHARED), {SINGLE: 3, DUAL: 2, ISOLATED: 2}, 1, "dual, 2 train", "cross + 0.00 ms until a batch is prepared = 24 ms"),
        # Of two that are as fast the simpler one, and its sum is told.
        (make_costs(0.4, 1, 40, **SHARED), {SINGLE: 2, DUAL: 2, ISOLATED: 2}, 1, "single, 2 train", "0.40 ms to prepare = 25 ms a step."),
        (make_costs(0.4, 1, 40, **SHARED), {SINGLE: 3, DUAL: 2, ISOLATED: 2}, 1, "single, 3 train", "15 ms on 1/3 of the rows"),
    ],
)  # fmt: skip
def test_a_second_device_may_prepare_or_train(costs, cards, accumulation, chosen, words):
    choice = choose_mode(costs, replace(NO_CODES, cards=cards, accumulation=accumulation), ["a", "b"])
    assert (str(choice.layout), choice.cards) == (chosen.partition(",")[0], int(chosen[-7]) if "train" in chosen else 1)
    assert words in choice.reason
    told = " ".join(auto_mode.format_choice(choice).split())
    assert told.startswith(f"Auto {chosen} Reason ")
    assert "train on half of it 21 ms; gradients of two, per update, about" in told
    for mode, number in cards.items():
        assert f"{mode}, {number} train " in told


def test_what_several_cannot_do_is_told_and_not_chosen():
    around = replace(NO_CODES, cards={SINGLE: 2}, obstacles={"single, 2 train": "no room"})
    choice = choose_mode(make_costs(0.4, 1, 40, **SHARED), around, ["a", "b"])
    assert (choice.layout, choice.cards) == (SINGLE, 1)
    assert auto_mode.format_choice(choice).endswith("no room")
    assert "that train" not in choice.reason


@pytest.mark.parametrize(
    ("around", "layout", "cache", "said"),
    [
        # Nearly nothing is left to prepare: one device, and the second stays free.
        ({"epochs": 100}, SINGLE, "memory", "are made in the first epoch and kept: about 3 MB"),
        # Made once, used once more: not enough, unless it was asked for.
        ({"epochs": 2}, DUAL, "off", "are not kept: about 3 MB would"),
        ({"epochs": 2, "online_obstacle": "--cache is memory"}, DUAL, "memory", "are made in the first epoch"),
    ],
)
def test_keeping_codes_competes_with_a_second_device(around, layout, cache, said):
    around = Circumstances(policy="memory", place="about 3 MB", **around)
    choice = choose_mode(make_costs(30, 1, 40, codes=29.5), around, ["a", "b"])
    assert (choice.layout, choice.keeps_codes, choice.cache) == (layout, cache != "off", cache)
    assert choice.codes.startswith(said)


def test_where_nothing_can_be_had_every_reason_is_named():
    around = replace(NO_CODES, obstacles={mode: f"no room for {mode}" for mode in MODES})
    with pytest.raises(DevicePlanError, match="a mode that can be had") as caught:
        choose_mode(make_costs(30, 1, 40), around, ["a", "b"])
    for mode in MODES:
        assert f"\n  {mode}: no room for {mode}" in str(caught.value)
    assert "smaller --batch-size" in str(caught.value)


def make_config(folder, **sections):
    training = {"mode": "auto", "checkpoint_dir": str(folder), "max_steps": 10, "codec": "codec"}
    config = XTTSConfig(model={"size": "tiny"}, training=training)
    return config.replace(**sections) if sections else config


def plan(config, costs=None, *, cards=2, names=(), around=None, obstacles=None, plans=None, **given):
    """The plan of a machine with so many cards, on which these costs are measured; nothing may be measured without them."""

    def measure(config, measured):
        assert costs is not None, "there is nothing to measure"
        assert [str(plan.mode) for plan in measured[:2]] == ["dual", "isolated"]
        assert plans is None or [tuple(role.physical_id for role in plan.trainers) for plan in measured[2:]] == plans
        facts = around or {"kept_obstacle": "Tested."}
        return {"costs": vars(costs), "obstacles": obstacles or {}, "around": {"epochs": 50, **facts}}

    names = names or ["RTX 3090"] * cards
    made = [Card(PhysicalId(id), name, f"GPU-{id}", f"0000:0{id}", 24576, 24000) for id, name in enumerate(names)]
    with patch.object(auto_mode, "measure_modes", measure):
        return auto_mode.plan_run(config, machine=Machine(CardScan(tuple(made), (), None), 16000), **given)


def test_without_two_devices_or_a_choice_there_is_nothing_to_measure(tmp_path):
    for cards, reason in enumerate(("There is no GPU", "There is one GPU")):
        planned = plan(make_config(tmp_path), cards=cards)
        assert (planned.plan.mode, planned.choice.step_s) == (Mode.SINGLE, None)
        assert reason in planned.choice.reason
    assert plan(make_config(tmp_path, data={"enable_memory_isolation": True})).plan.mode is Mode.ISOLATED
    dual = plan(make_config(tmp_path, training={"mode": "dual"}))
    assert (dual.plan.mode, dual.choice) == (Mode.DUAL, None)
    with pytest.raises(DevicePlanError, match="Insufficient GPUs for Multi-GPU Mode"):
        plan(make_config(tmp_path, data={"data_gpu": 0, "model_gpu": 5}))
    with pytest.raises(ConfigError, match="a split card has one mode"):
        XTTSConfig(data={"data_gpu": 0, "model_gpu": 0}, training={"mode": "auto"})


def test_two_cards_are_planned_as_measured(tmp_path):
    config = make_config(tmp_path, data={"data_gpu": 0, "model_gpu": 1})
    for obstacles, mode in (({}, Mode.DUAL), ({"dual": "/GPU:1 needs too much"}, Mode.ISOLATED)):
        planned = plan(config, make_costs(30, 1, 40), cards=3, obstacles=obstacles)
        assert (planned.plan.mode, planned.plan.model.physical_id) == (mode, 1)
        assert planned.choice.devices == ("GPU-0", "GPU-1")


BOTH = make_costs(0.4, 1, 40, **SHARED)


@pytest.mark.parametrize(
    ("costs", "machine", "sections", "data", "training"),
    [
        (BOTH, {"plans": [(0, 1)]}, {}, 0, (0, 1)),
        (BOTH, {"cards": 3, "plans": [(0, 1, 2), (0, 2), (0, 2)]}, {}, 0, (0, 1, 2)),
        (make_costs(20, 1, 40, **SHARED), {"cards": 3}, {}, 1, (0, 2)),
        # Those that were named, in the roles they were named for.
        (BOTH, {"cards": 3, "plans": [(2, 0)]}, {"data": {"data_gpu": 0, "model_gpu": 2}}, 2, (2, 0)),
        # Only what is like the one that is measured may train; another one may prepare for all.
        (BOTH, {"names": ["RTX 3090", "GTX 1060"], "plans": []}, {}, 0, (0,)),
        (make_costs(20, 1, 40, **SHARED), {"names": ["RTX 3090", "RTX 3090", "GTX 1060"]}, {}, 2, (0, 1)),
        # What each of them needs, and what may not depend on a measurement.
        (BOTH, {"plans": []}, {"data": {"batch_size": 1}}, 0, (0,)),
        (BOTH, {"cards": 4, "plans": [(0, 1), (0, 2), (0, 2)]}, {"data": {"batch_size": 2}}, 0, (0, 1)),
        (BOTH, {"plans": []}, {"training": {"deterministic": True}}, 0, (0,)),
        (BOTH, {"plans": []}, {"training": {"loss_mean": "batches"}}, 0, (0,)),
        (BOTH, {"obstacles": {"single, 2 train": "NCCL is not there"}}, {}, 0, (0,)),
        (BOTH, {"cards": 0, "plans": [(1, 0)]}, {"training": {"rehearsal": True}}, 1, (1, 0)),
    ],
)
def test_cards_that_all_train_are_planned_as_measured(tmp_path, costs, machine, sections, data, training):
    planned = plan(make_config(tmp_path, **sections), costs, **machine)
    assert tuple(role.physical_id for role in planned.plan.trainers) == training
    assert len(planned.plan.trainers) == len(training) == planned.choice.cards
    assert planned.plan.data.physical_id == data
    assert planned.plan.is_shared == (data == training[0])


@pytest.mark.parametrize("policy", ["disk", "memory", "off"])
def test_a_run_keeps_codes_as_was_chosen(tmp_path, policy):
    config = make_config(tmp_path)
    around = {"kept_obstacle": "Tested."} if policy == "off" else {"policy": policy, "place": "about 3 MB there"}
    choice = plan(config, make_costs(60, 1, 40, codes=59), around=around).choice
    assert choice.keeps_codes == (policy != "off")
    assert ("are not kept. Tested." if policy == "off" else "kept: about 3 MB there.") in choice.codes
    assert auto_mode.fix_cache(config, choice).data.cache == policy
    assert auto_mode.fix_cache(config, None) is config
    # What is given when the run goes on wins over what was chosen then.
    assert auto_mode.fix_cache(make_config(tmp_path, data={"cache": "memory"}), choice).data.cache == "memory"


def keep(config, choice):
    """A run that has chosen."""
    with open_run(config, command=["train"]) as run:
        run.note_choice(choice)


def test_a_run_that_goes_on_keeps_its_mode_until_the_devices_change(tmp_path):
    config, told = make_config(tmp_path / "run"), []
    first = plan(config, make_costs(30, 1, 40))
    keep(config, asdict(first.choice))
    assert plan(config) == first
    other = plan(config, make_costs(0.4, 1, 40), cards=3, tell=told.append)
    assert other.plan.mode is Mode.SINGLE
    assert "chosen anew" in told[0]
    anew = config.replace(training={"resume": "reset"})
    assert plan(anew, make_costs(0.4, 1, 40)).plan.mode is Mode.SINGLE
    # A mode that is given from now on is not overruled by what was chosen then.
    assert plan(config.replace(training={"mode": "isolated"})).choice is None
    both = make_config(tmp_path / "both")
    several = plan(both, BOTH)
    keep(both, asdict(several.choice))
    assert plan(both) == several
    assert len(several.plan.trainers) == 2
    keep(config, {"layout": "triple"})
    assert plan(config, make_costs(30, 1, 40)).plan.mode is Mode.DUAL, "one that cannot be read is chosen anew"
    # Nor does a decoder take over the mode of the GPT it is for.
    with pytest.raises(DevicePlanError, match="--stage is decoder"):
        plan(config.replace(training={"stage": "decoder"}))


# What processes do below.
def make_environment_reader():
    return lambda names: {name: os.environ.get(name) for name in names}


def make_killed(**_):
    return lambda item: os.kill(os.getpid(), signal.SIGKILL)


def make_aborted(**_):
    return lambda item: os.abort()


def make_hanging():
    def hang_for_ever(item):
        signal.pause()

    return hang_for_ever


def hang_while_loading():
    signal.pause()


@pytest.fixture
def ask():
    """Asks a process, of which nothing is left."""
    before = set(psutil.Process().children())
    yield lambda work, item=7, limit_s=120, **limits: auto_mode.ask_process(
        ProcessTask(f"{__name__}:{work}"), item, limit_s, **limits
    )
    assert set(psutil.Process().children()) == before


def test_a_process_has_the_threads_that_any_run_has(ask, monkeypatch):
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    monkeypatch.setenv("OPENBLAS_NUM_THREADS", "3")
    threads = {"OMP_NUM_THREADS": None, "OPENBLAS_NUM_THREADS": "3"}
    assert ask("make_environment_reader", list(threads)).content == threads


def test_a_process_that_hangs_is_ended_at_its_limit_with_its_stack(ask):
    hung = ask("make_hanging", limit_s=0.2)
    assert (hung.content, hung.ending) == (None, "it was not done after 0.2 s")
    assert "hang_for_ever" in hung.output, "its stack"
    assert ask("hang_while_loading", import_s=0.5).ending == "its process had not loaded its code after 0.5 s"


@pytest.mark.parametrize(
    ("work", "said"),
    [
        ("make_nothing", "failed: its process ended with exit code 1: AttributeError"),
        ("make_killed", "failed: its process was killed by SIGKILL, which may be for want of memory"),
        ("make_aborted", "failed: its process was killed by SIGABRT: a library has broken off"),
    ],
)
def test_a_measurement_that_fails_leads_to_the_flag(tmp_path, monkeypatch, work, said):
    monkeypatch.setattr(auto_mode, "_MEASURER", f"{__name__}:{work}")
    config = make_config(tmp_path, training={"rehearsal": True})
    with pytest.raises(MeasuringError, match=f"Measuring for --mode auto {said}") as caught:
        auto_mode.plan_run(config, machine=Machine(CardScan((), (), None), 16000))
    assert str(caught.value).endswith("\nGive --mode single, dual or isolated instead of auto.")
    ending = caught.value.__cause__.ending
    assert f"failed: {ending}".startswith(said)
    assert ("memory" in ending) == ("SIGKILL" in ending)
