"""`--mode auto`: which mode follows from which costs, when nothing has to be measured, and the process that measures."""

import json
import os
import signal
from dataclasses import replace

import psutil
import pytest

from myxtts.config import XTTSConfig
from myxtts.data.workers import Task
from myxtts.devices.machine import Machine
from myxtts.devices.nvml import Card, CardScan, PhysicalId
from myxtts.devices.plan import Mode
from myxtts.errors import ConfigError, DevicePlanError
from myxtts.training import mode as auto_mode
from myxtts.training.mode import (
    Candidate,
    Circumstances,
    Layout,
    MeasuringError,
    StageCosts,
    choose_mode,
    format_choice,
)
from myxtts.training.run_folder import open_run

NO_CODES = Circumstances(kept_obstacle="There are none.")
ONE_PROCESS = replace(NO_CODES, obstacles={Layout.DATA_PARALLEL: "one process"})


def make_costs(prepare_ms, transfer_ms, train_ms, **more_ms):
    """Costs of a machine on which two devices overlap without loss."""
    values = {
        "prepare": prepare_ms,
        "transfer": transfer_ms,
        "train": train_ms,
        "single": prepare_ms + train_ms,
        "dual": max(prepare_ms, transfer_ms, train_ms),
        **more_ms,
    }
    shares = {name: values.pop(name) for name in ("half_share", "pace", "crowding") if name in values}
    return StageCosts(**{f"{name}_s": value / 1000 for name, value in values.items()}, **shares)


@pytest.mark.parametrize(
    ("costs", "candidate", "epochs", "expected_ms"),
    [
        (make_costs(30, 1, 40), Candidate(Layout.SINGLE), 1, 70),
        (make_costs(30, 1, 40), Candidate(Layout.DUAL), 1, 40),
        (make_costs(50, 1, 40), Candidate(Layout.DUAL), 1, 50),
        (make_costs(30, 60, 40), Candidate(Layout.DUAL), 1, 60),
        # Packing is the preparing side's work, unpacking the transfer's.
        (make_costs(50, 1, 40, pack=5, unpack=2), Candidate(Layout.ISOLATED), 1, 55),
        (make_costs(10, 39, 40, pack=5, unpack=2), Candidate(Layout.ISOLATED), 1, 41),
        (make_costs(30, 1, 40, exchange=8), Candidate(Layout.DATA_PARALLEL), 1, 35 + 8),
        # Half a batch does not fill a device; the slower of two devices sets the pace; devices may share their cores.
        (make_costs(30, 1, 40, half_share=0.8), Candidate(Layout.DATA_PARALLEL), 1, 15 + 32),
        (make_costs(30, 1, 40, pace=1.5, exchange=8), Candidate(Layout.DATA_PARALLEL), 1, 35 * 1.5 + 8),
        (make_costs(30, 1, 40, pace=0.5), Candidate(Layout.DATA_PARALLEL), 1, 35),
        (make_costs(30, 1, 40, crowding=0.4), Candidate(Layout.DATA_PARALLEL), 1, 35 * 1.4),
        # Half of the 31 ms beside training was not hidden: codes that are kept leave less to hide.
        (make_costs(30, 1, 40, dual=55.5), Candidate(Layout.DUAL), 1, 55.5),
        (make_costs(30, 1, 40, dual=55.5, codes=20), Candidate(Layout.DUAL, True), 10**9, 40 + 0.5 * 11),
        # Both devices find what either has put on the disk.
        (make_costs(30, 1, 40, codes=20), Candidate(Layout.DATA_PARALLEL, True), 4, (70 - 20 * 3 / 4) / 2),
        # Codes of the first epoch are made in any case.
        (make_costs(30, 1, 40, codes=20), Candidate(Layout.SINGLE, True), 1, 70),
        (make_costs(30, 1, 40, codes=20), Candidate(Layout.SINGLE, True), 4, 70 - 20 * 3 / 4),
        (make_costs(50, 1, 40, codes=20), Candidate(Layout.DUAL, True), 10**9, 40),
        # Never less than the training itself.
        (make_costs(30, 1, 40, single=45, codes=30), Candidate(Layout.SINGLE, True), 10**9, 40),
    ],
)
def test_a_batch_takes_what_the_stages_make_of_it(costs, candidate, epochs, expected_ms):
    around = Circumstances(epochs=epochs)
    assert auto_mode.predict_batch_s(costs, candidate, around) * 1000 == pytest.approx(expected_ms, rel=1e-6)


@pytest.mark.parametrize(("epochs", "found"), [(1, 0), (2, 0), (4, 1 / 2), (100, 0.98)])
def test_codes_in_memory_are_made_by_each_of_two_processes(epochs, found):
    around, costs = Circumstances(epochs=epochs, policy="memory"), make_costs(30, 1, 40, codes=20)
    for layout, expected_ms in (
        (Layout.DATA_PARALLEL, (70 - 20 * found) / 2),
        (Layout.SINGLE, 70 - 20 * (1 - 1 / epochs)),
    ):
        batch_s = auto_mode.predict_batch_s(costs, Candidate(layout, True), around)
        assert batch_s * 1000 == pytest.approx(expected_ms)


def test_a_step_has_all_its_batches_and_one_exchange():
    predicted = auto_mode.predict_all(make_costs(30, 1, 40, exchange=8), replace(NO_CODES, accumulation=4))
    by_layout = {each.candidate.layout: each.step_s * 1000 for each in predicted}
    assert by_layout[Layout.DUAL] == pytest.approx(160)
    assert by_layout[Layout.DATA_PARALLEL] == pytest.approx(4 * 35 + 8)


@pytest.mark.parametrize(
    ("costs", "around", "layout", "words"),
    [
        (make_costs(30, 1, 40), ONE_PROCESS, Layout.DUAL, "40 ms a step instead of 70 ms on one"),
        (make_costs(0.4, 1, 40), ONE_PROCESS, Layout.SINGLE, "Preparing takes 1% of the time of training"),
        (make_costs(10, 80, 40), ONE_PROCESS, Layout.SINGLE, "would not pay: 80 ms a step, 50 ms on one"),
        # Sharing cores: overlapping costs more than it hides.
        (make_costs(30, 1, 40, dual=72), ONE_PROCESS, Layout.SINGLE, "would not pay"),
        (
            make_costs(30, 1, 40),
            replace(NO_CODES, obstacles={**ONE_PROCESS.obstacles, Layout.DUAL: "no room"}),
            Layout.ISOLATED,
            "overlap on two devices",
        ),
        (
            make_costs(30, 1, 40),
            replace(NO_CODES, obstacles=dict.fromkeys(list(Layout)[1:], "no room")),
            Layout.SINGLE,
            "Two devices cannot be had: no room.",
        ),
        (
            make_costs(0.4, 1, 40),
            replace(NO_CODES, obstacles={**ONE_PROCESS.obstacles, Layout.SINGLE: "GPU 0 needs about 30 GB"}),
            Layout.DUAL,
            "40 ms a step. One device cannot do everything: GPU 0 needs about 30 GB.",
        ),
        # A large model: preparing is a hundredth.
        (
            make_costs(0.4, 1, 40, exchange=4),
            NO_CODES,
            Layout.DATA_PARALLEL,
            "Both devices prepare and train, each half the clips of every batch: 24 ms a step instead of 40 ms on one.",
        ),
        # Gradients that take too long, a second card that is too slow, batches too small to share.
        (make_costs(0.4, 1, 40, exchange=30), NO_CODES, Layout.SINGLE, "would not pay: 40 ms a step, 40 ms on one"),
        (make_costs(20, 1, 40, exchange=4, pace=2), NO_CODES, Layout.DUAL, "overlap"),
        (make_costs(20, 1, 40, exchange=4, half_share=0.9), NO_CODES, Layout.DUAL, "overlap"),
        # Preparing takes longer than training: overlapping hides the shorter one, sharing does not hide the exchange.
        (make_costs(45, 1, 40, exchange=4), NO_CODES, Layout.DUAL, "45 ms a step instead of 85 ms on one"),
    ],
)
def test_the_simplest_of_the_fastest_modes_is_chosen(costs, around, layout, words):
    choice = choose_mode(costs, around, ["a", "b"])
    assert choice.layout is layout
    assert words in choice.reason
    # Two devices are not worth their trouble for less than what measurements differ by.
    taken = next(each for each in choice.predictions if each.candidate.layout is layout)
    assert all(each.obstacle or taken.step_s <= 1.03 * each.step_s for each in choice.predictions)


@pytest.mark.parametrize(
    ("epochs", "asked", "layout", "cache", "said"),
    [
        # Nearly nothing is left to prepare: one device, and the second stays free.
        (100, None, Layout.SINGLE, "memory", "are made in the first epoch and kept: about 3 MB"),
        # Made once, used once more: not enough.
        (2, None, Layout.DUAL, "off", "are not kept: about 3 MB in memory would"),
        (2, "--cache is memory", Layout.DUAL, "memory", "are made in the first epoch and kept"),
    ],
)
def test_keeping_codes_competes_with_a_second_device_unless_it_is_asked_for(epochs, asked, layout, cache, said):
    place = {"policy": "memory", "place": "about 3 MB in memory", "online_obstacle": asked}
    around = Circumstances(epochs=epochs, obstacles=ONE_PROCESS.obstacles, **place)
    choice = choose_mode(make_costs(30, 1, 40, codes=29.5), around, ["a", "b"])
    assert (choice.layout, choice.keeps_codes, choice.cache) == (layout, cache == "memory", cache)
    assert choice.codes.startswith(said)


def test_a_faster_mode_that_this_program_cannot_start_is_named_with_its_figure():
    around = replace(ONE_PROCESS, parallel_remedy="ask somebody else")
    choice = choose_mode(make_costs(0.4, 1, 40, exchange=4), around, ["a", "b"])
    assert choice.layout is Layout.SINGLE
    assert choice.reason.endswith("(data-parallel) would be faster, about 24 ms a step: ask somebody else.")
    assert choice.is_parallel_faster
    slow_link = choose_mode(make_costs(0.4, 1, 40, exchange=30), around, ["a", "b"])
    refused = choose_mode(make_costs(0.4, 1, 40, exchange=4), ONE_PROCESS, ["a", "b"])
    assert not slow_link.is_parallel_faster
    assert all("data-parallel" not in each.reason for each in (slow_link, refused))


def test_the_page_fits_a_terminal_and_the_record_comes_back_from_json():
    obstacle = {Layout.ISOLATED: "/GPU:0 (data device) needs about 9.0 GB, its limit is 8.0 GB"}
    choice = choose_mode(make_costs(30, 1, 40, codes=20), Circumstances(epochs=9, obstacles=obstacle), ["a", "b"])
    page = format_choice(choice)
    assert max(map(len, page.splitlines())) <= 80
    assert page.startswith("Auto    ")
    assert "<- taken" in page
    assert auto_mode.load_choice(json.loads(json.dumps(choice.dump()))) == choice


def test_where_nothing_can_be_had_every_reason_is_named():
    around = replace(NO_CODES, obstacles={layout: f"no room for {layout}" for layout in Layout})
    with pytest.raises(DevicePlanError, match="a mode that can be had") as caught:
        choose_mode(make_costs(30, 1, 40), around, ["a", "b"])
    assert all(f"\n  {layout}: no room for {layout}" in str(caught.value) for layout in Layout)
    assert "smaller --batch-size" in str(caught.value)


def make_config(folder, **sections):
    training = {"mode": "auto", "checkpoint_dir": str(folder), "max_steps": 10, "codec": "codec"}
    config = XTTSConfig(model={"size": "tiny"}, training=training)
    return config.replace(**sections) if sections else config


SHARES = make_costs(0.4, 1, 40, exchange=4)
"""Both devices training would be fastest."""
CACHE = {"policy": "off", "reason": "Tested.", "size_bytes": 3 << 20, "folder": "kept here"}


def plan(config, costs=None, *, cards=2, found=None, **given):
    """The plan of a machine with so many cards, on which these costs are measured; nothing may be measured without them."""

    def measure(config, plans):
        assert costs is not None, "there is nothing to measure"
        assert [str(plan.mode) for plan in plans] == ["dual", "isolated"]
        return {"costs": vars(costs), "epochs": 5, "obstacles": {}, "cache": CACHE, **(found or {})}

    made = [Card(PhysicalId(id), "RTX 3090", f"GPU-{id}", f"0000:0{id}", 24576, 24000) for id in range(cards)]
    return auto_mode.plan_run(config, machine=Machine(CardScan(tuple(made), (), None), 16000), measure=measure, **given)


def find_row(planned):
    (row,) = [line for line in format_choice(planned.choice).splitlines() if line.startswith("data-parallel")]
    return row


@pytest.mark.parametrize(("cards", "reason"), [(0, "There is no GPU"), (1, "There is one GPU")])
def test_without_two_devices_there_is_nothing_to_measure(tmp_path, cards, reason):
    planned = plan(make_config(tmp_path), cards=cards)
    assert (planned.plan.mode, planned.choice.step_s) == (Mode.SINGLE, None)
    assert reason in planned.choice.reason


@pytest.mark.parametrize(("prepare_ms", "mode"), [(30, Mode.DUAL), (0.4, Mode.SINGLE)])
def test_two_cards_are_planned_as_measured_unless_a_mode_is_asked_for(tmp_path, prepare_ms, mode):
    config = make_config(tmp_path, data={"data_gpu": 0, "model_gpu": 1})
    planned = plan(config, make_costs(prepare_ms, 1, 40), cards=3)
    assert (planned.plan.mode, planned.plan.model.physical_id) == (mode, 1)
    assert planned.choice.devices == ("GPU-0", "GPU-1")
    assert plan(make_config(tmp_path, data={"enable_memory_isolation": True})).plan.mode is Mode.ISOLATED
    dual = plan(make_config(tmp_path, training={"mode": "dual"}))
    assert (dual.plan.mode, dual.choice) == (Mode.DUAL, None)


@pytest.mark.parametrize("ids", [{}, {"data_gpu": 0, "model_gpu": 1}, {"data_gpu": 2, "model_gpu": 0}])
def test_both_cards_train_where_that_is_fastest(tmp_path, ids):
    planned = plan(make_config(tmp_path, data=ids), SHARES, cards=3, find_launch_obstacle=lambda: None)
    assert planned.choice.layout is Layout.DATA_PARALLEL
    # The one that is to train first: its process keeps the run's folder.
    assert planned.workers == ((ids["model_gpu"], ids["data_gpu"]) if ids else (0, 1))
    assert planned.plan.mode is Mode.SINGLE


@pytest.mark.parametrize(
    ("changes", "found", "obstacle"),
    [
        ({"training": {"codec": None}}, {}, "needs a trained codec"),
        ({"training": {"stage": "codec"}}, {}, "a codec is trained by one process"),
        ({"training": {"loss_mean": "batches"}}, {}, "training.loss_mean is batches"),
        ({"training": {"deterministic": True}}, {}, "--deterministic"),
        ({"data": {"batch_size": 1}}, {}, "a batch of 1 cannot be shared"),
        ({}, {"obstacles": {"data-parallel": "GPU 0 needs about 30 GB"}}, "GPU 0 needs about 30 GB"),
    ],
)
def test_what_two_workers_cannot_do_is_weighed_out_and_said(tmp_path, changes, found, obstacle):
    def fail():
        pytest.fail("how it was started does not matter any more")

    planned = plan(make_config(tmp_path, **changes), SHARES, found=found, find_launch_obstacle=fail)
    assert (planned.choice.layout, planned.workers) == (Layout.SINGLE, ())
    assert obstacle in find_row(planned)
    assert "would be faster" not in planned.choice.reason, "there is no other way to have it either"


def test_a_program_that_starts_no_workers_says_how_both_could_train(tmp_path):
    planned = plan(make_config(tmp_path), SHARES)
    assert (planned.choice.layout, planned.workers) == (Layout.SINGLE, ())
    assert "`myxtts train` does it with --mode auto" in planned.choice.reason
    closed = auto_mode.Obstacle("no network", "add --open-ports")
    planned = plan(make_config(tmp_path), SHARES, find_launch_obstacle=lambda: closed)
    assert planned.choice.reason.endswith("would be faster, about 24 ms a step: add --open-ports.")
    assert "--mode auto" not in planned.choice.reason, "it names the flag and not itself"
    assert find_row(planned).endswith("no network")


@pytest.mark.parametrize(
    ("policy", "asked", "keeps_codes", "words"),
    [
        ("disk", "auto", True, "kept: about 3.0 MB on the disk, in kept here."),
        ("memory", "auto", True, "kept: about 3.0 MB in the memory of each process that prepares."),
        ("off", "auto", False, "are not kept. Tested."),
        ("off", "off", False, "are not kept. Tested."),
    ],
)
def test_a_run_keeps_codes_as_was_chosen(tmp_path, policy, asked, keeps_codes, words):
    config = make_config(tmp_path, data={"cache": asked})
    found = {"cache": {**CACHE, "policy": policy}, "epochs": 50}
    choice = plan(config, make_costs(60, 1, 40, codes=59), found=found).choice
    assert choice.keeps_codes is keeps_codes
    assert words in choice.codes
    assert auto_mode.fix_cache(config, choice).data.cache == policy
    assert auto_mode.fix_cache(config, None) is config
    # What is given when the run goes on wins over what was chosen then.
    assert auto_mode.fix_cache(make_config(tmp_path, data={"cache": "memory"}), choice).data.cache == "memory"


def test_memory_that_does_not_fit_is_an_obstacle(tmp_path):
    found = {"obstacles": {"dual": "/GPU:1 needs too much"}}
    assert plan(make_config(tmp_path), make_costs(30, 1, 40), found=found).plan.mode is Mode.ISOLATED


def keep(config, planned):
    """A run that has chosen."""
    with open_run(config, command=["train"]) as run:
        run.note_choice(planned.choice.dump())


def test_a_run_that_goes_on_keeps_its_mode_until_the_devices_change(tmp_path):
    config, told = make_config(tmp_path / "run"), []
    first = plan(config, make_costs(30, 1, 40))
    keep(config, first)
    assert plan(config) == first
    other = plan(config, make_costs(0.4, 1, 40), cards=3, tell=told.append)
    assert other.plan.mode is Mode.SINGLE
    assert "chosen anew" in told[0]
    anew = config.replace(training={"resume": "reset"})
    assert plan(anew, make_costs(0.4, 1, 40)).plan.mode is Mode.SINGLE
    # A mode that is given from now on is not overruled by what was chosen then.
    assert plan(config.replace(training={"mode": "isolated"})).choice is None
    # Nor does a decoder take over the mode of the GPT it is for.
    with pytest.raises(DevicePlanError, match="--stage is decoder"):
        plan(config.replace(training={"stage": "decoder"}))
    # What cannot be read is chosen anew.
    with open_run(config, command=["train"]) as run:
        run.note_choice({"layout": "triple"})
    assert plan(config, make_costs(30, 1, 40)).plan.mode is Mode.DUAL


def test_a_run_that_trained_on_both_devices_goes_on_so(tmp_path):
    config, told = make_config(tmp_path / "run"), []
    first = plan(config, SHARES, find_launch_obstacle=lambda: None)
    keep(config.replace(training={"mode": "single"}), first)
    again = plan(config, find_launch_obstacle=lambda: None)
    assert again == first
    assert again.workers
    assert plan(config, SHARES, tell=told.append).workers == ()
    assert "the run's mode was data-parallel, which cannot be had now (takes a process for each device" in told[0]


def test_ids_that_are_not_there_are_refused_as_without_auto(tmp_path):
    with pytest.raises(DevicePlanError, match="Insufficient GPUs for Multi-GPU Mode"):
        plan(make_config(tmp_path, data={"data_gpu": 0, "model_gpu": 5}))
    with pytest.raises(ConfigError, match="a split card has one mode"):
        XTTSConfig(data={"data_gpu": 0, "model_gpu": 0}, training={"mode": "auto"})


# What measuring processes do below.
def make_environment_reader():
    return lambda names: {name: os.environ.get(name) for name in names}


def make_killed():
    return lambda item: os.kill(os.getpid(), signal.SIGKILL)


def make_hanging():
    def hang_for_ever(item):
        signal.pause()

    return hang_for_ever


def hang_while_loading():
    signal.pause()


@pytest.fixture
def measure():
    """Measures in a process, of which nothing is left."""
    before = set(psutil.Process().children())
    yield lambda work, item=7, **limits: auto_mode.measure_in_process(
        Task(f"{__name__}:{work}"), item, "--mode auto", **limits
    )
    assert set(psutil.Process().children()) == before


def test_what_is_measured_is_the_answer_with_the_threads_that_any_run_has(measure, monkeypatch):
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    monkeypatch.setenv("OPENBLAS_NUM_THREADS", "3")
    threads = {"OMP_NUM_THREADS": None, "OPENBLAS_NUM_THREADS": "3"}
    assert measure("make_environment_reader", list(threads)) == threads


def test_a_measurement_that_is_killed_is_told_apart_from_one_that_fails(measure):
    with pytest.raises(
        auto_mode.MeasuringKilledError, match="died of signal 9, as a process does that runs out of memory"
    ):
        measure("make_killed")


def test_a_measurement_that_hangs_is_ended_at_its_limit_with_its_stack(measure):
    with pytest.raises(MeasuringError) as caught:
        measure("make_hanging", import_s=120, limit_s=0.2)
    said = str(caught.value)
    assert said.startswith("Measuring for --mode auto hangs: its process had not measured after 0.2 s")
    assert "hang_for_ever" in said, "its stack"
    with pytest.raises(MeasuringError, match=r"had not imported what it needs after 0\.5 s"):
        measure("hang_while_loading", import_s=0.5, limit_s=120)


def test_a_measurement_that_fails_leads_to_the_flag(tmp_path, monkeypatch):
    monkeypatch.setattr(auto_mode, "_MEASURER", f"{__name__}:make_nothing")
    machine = Machine(CardScan((), (), None), 16000)
    config = make_config(tmp_path, training={"rehearsal": True})
    with pytest.raises(MeasuringError) as caught:
        auto_mode.plan_run(config, machine=machine)
    assert str(caught.value).startswith("Measuring for --mode auto failed.\nA worker process ended with exit code 1")
    assert str(caught.value).endswith("\nGive --mode single, dual or isolated instead of auto.")
