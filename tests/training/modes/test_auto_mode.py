"""`--mode auto`: which mode follows from which costs, and when nothing has to be measured."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from myxtts.config import XTTSConfig
from myxtts.devices.machine import Machine
from myxtts.devices.nvml import Card, CardScan, PhysicalId
from myxtts.devices.plan import Mode
from myxtts.errors import ConfigError, DevicePlanError
from myxtts.training.modes.auto_mode import Obstacle, fix_cache, plan_run
from myxtts.training.modes.choice import choose_mode, format_choice, load_choice
from myxtts.training.modes.measuring_process import MeasuringError
from myxtts.training.modes.prediction import (
    Candidate,
    Circumstances,
    Layout,
    StageCosts,
    predict_all,
    predict_batch_s,
)
from myxtts.training.run_folder import open_run
from myxtts.training.run_record import read_record

NO_CODES = Circumstances(kept_obstacle="There are none.")
ONE_PROCESS = replace(NO_CODES, obstacles={Layout.DATA_PARALLEL: "one process"})


def make_costs(prepare_ms: float, transfer_ms: float, train_ms: float, **more_ms: float) -> StageCosts:
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
def test_a_batch_takes_what_the_stages_make_of_it(
    costs: StageCosts, candidate: Candidate, epochs: int, expected_ms: float
) -> None:
    around = Circumstances(epochs=epochs)
    assert predict_batch_s(costs, candidate, around) * 1000 == pytest.approx(expected_ms, rel=1e-6)


@pytest.mark.parametrize(("epochs", "found"), [(1, 0), (2, 0), (4, 1 / 2), (100, 0.98)])
def test_codes_in_memory_are_made_by_each_of_two_processes(epochs: int, found: float) -> None:
    around = Circumstances(epochs=epochs, policy="memory")
    costs = make_costs(30, 1, 40, codes=20)
    parallel_s = predict_batch_s(costs, Candidate(Layout.DATA_PARALLEL, True), around)
    assert parallel_s * 1000 == pytest.approx((70 - 20 * found) / 2)
    # One process has made them all after the first epoch.
    single_s = predict_batch_s(costs, Candidate(Layout.SINGLE, True), around)
    assert single_s * 1000 == pytest.approx(70 - 20 * (1 - 1 / epochs))


def test_a_step_has_all_its_batches_and_one_exchange() -> None:
    around = replace(NO_CODES, accumulation=4)
    by_layout = {
        each.candidate.layout: each.step_s * 1000 for each in predict_all(make_costs(30, 1, 40, exchange=8), around)
    }
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
def test_the_simplest_of_the_fastest_modes_is_chosen(
    costs: StageCosts, around: Circumstances, layout: Layout, words: str
) -> None:
    choice = choose_mode(costs, around, ["a", "b"])
    assert choice.layout is layout
    assert words in choice.reason
    # Two devices are not worth their trouble for less than what measurements differ by.
    taken = next(each for each in choice.predictions if each.candidate.layout is layout)
    assert all(each.obstacle or taken.step_s <= 1.03 * each.step_s for each in choice.predictions)


@pytest.mark.parametrize(
    ("epochs", "layout", "keeps_codes"),
    [
        # Nearly nothing is left to prepare: one device, and the second stays free.
        (100, Layout.SINGLE, True),
        # Made once, used once more: not enough.
        (2, Layout.DUAL, False),
    ],
)
def test_keeping_codes_competes_with_a_second_device(epochs: int, layout: Layout, keeps_codes: bool) -> None:
    around = Circumstances(
        epochs=epochs, obstacles=ONE_PROCESS.obstacles, policy="memory", place="about 3 MB in memory"
    )
    choice = choose_mode(make_costs(30, 1, 40, codes=29.5), around, ["a", "b"])
    assert (choice.layout, choice.keeps_codes) == (layout, keeps_codes)
    assert choice.cache == ("memory" if keeps_codes else "off")
    said = (
        "are made in the first epoch and kept: about 3 MB"
        if keeps_codes
        else "are not kept: about 3 MB in memory would"
    )
    assert choice.codes.startswith(said)


def test_a_cache_that_is_asked_for_is_not_weighed_away() -> None:
    around = Circumstances(epochs=2, obstacles=ONE_PROCESS.obstacles, online_obstacle="--cache is disk")
    choice = choose_mode(make_costs(30, 1, 40, codes=29.5), around, ["a", "b"])
    assert (choice.layout, choice.keeps_codes, choice.cache) == (Layout.DUAL, True, "disk")


def test_a_faster_mode_that_this_program_cannot_start_is_named_with_its_figure() -> None:
    around = replace(ONE_PROCESS, parallel_remedy="ask somebody else")
    choice = choose_mode(make_costs(0.4, 1, 40, exchange=4), around, ["a", "b"])
    assert choice.layout is Layout.SINGLE
    assert choice.reason.endswith("(data-parallel) would be faster, about 24 ms a step: ask somebody else.")
    assert choice.is_parallel_faster
    slow_link = choose_mode(make_costs(0.4, 1, 40, exchange=30), around, ["a", "b"])
    assert "data-parallel" not in slow_link.reason
    assert not slow_link.is_parallel_faster
    refused = choose_mode(make_costs(0.4, 1, 40, exchange=4), ONE_PROCESS, ["a", "b"])
    assert "data-parallel" not in refused.reason


def test_the_page_fits_a_terminal_and_the_record_comes_back_from_json() -> None:
    choice = choose_mode(
        make_costs(30, 1, 40, codes=20),
        Circumstances(
            epochs=9, obstacles={Layout.ISOLATED: "/GPU:0 (data device) needs about 9.0 GB, its limit is 8.0 GB"}
        ),
        ["a", "b"],
    )
    page = format_choice(choice)
    assert max(map(len, page.splitlines())) <= 80
    assert page.startswith("Auto    ")
    assert "<- taken" in page
    assert load_choice(json.loads(json.dumps(choice.dump()))) == choice


def make_card(id: int) -> Card:
    return Card(PhysicalId(id), "RTX 3090", f"GPU-{id}", f"0000:0{id}", 24576, 24000)


def make_machine(cards: int) -> Machine:
    return Machine(CardScan(tuple(make_card(id) for id in range(cards)), (), None), 16000)


def make_config(folder: Path, **data: Any) -> XTTSConfig:
    training = {"mode": "auto", "checkpoint_dir": str(folder), "max_steps": 10, "codec": "codec"}
    return XTTSConfig(model={"size": "tiny"}, data=data, training=training)


def find_no_obstacle() -> None:
    """For a program that can start workers."""


def answer(costs: StageCosts, **changes: Any) -> Any:
    """A measurement that finds these costs."""
    calls = []

    def measure(config: XTTSConfig, plans: Any) -> dict[str, Any]:
        calls.append([str(plan.mode) for plan in plans])
        cache = {"policy": "off", "reason": "Tested.", "size_bytes": 3 << 20, "folder": "kept here"}
        found = {"costs": vars(costs), "epochs": 5, "obstacles": {}, "cache": cache}
        return {**found, **changes}

    measure.calls = calls  # type: ignore[attr-defined]
    return measure


def refuse_to_measure(config: XTTSConfig, plans: Any) -> Any:
    raise AssertionError("there is nothing to measure")


@pytest.mark.parametrize(("cards", "reason"), [(0, "There is no GPU"), (1, "There is one GPU")])
def test_without_two_devices_there_is_nothing_to_measure(tmp_path: Path, cards: int, reason: str) -> None:
    planned = plan_run(make_config(tmp_path), machine=make_machine(cards), measure=refuse_to_measure)
    assert planned.plan.mode is Mode.SINGLE
    assert planned.choice is not None
    assert reason in planned.choice.reason
    assert planned.choice.step_s is None


def test_isolation_that_is_asked_for_is_not_measured_away(tmp_path: Path) -> None:
    config = make_config(tmp_path, enable_memory_isolation=True)
    assert plan_run(config, machine=make_machine(2), measure=refuse_to_measure).plan.mode is Mode.ISOLATED


def test_a_mode_that_is_given_is_taken(tmp_path: Path) -> None:
    config = make_config(tmp_path).replace(training={"mode": "dual"})
    planned = plan_run(config, machine=make_machine(2), measure=refuse_to_measure)
    assert (planned.plan.mode, planned.choice) == (Mode.DUAL, None)


@pytest.mark.parametrize(("prepare_ms", "mode"), [(30, Mode.DUAL), (0.4, Mode.SINGLE)])
def test_two_cards_are_planned_as_measured(tmp_path: Path, prepare_ms: float, mode: Mode) -> None:
    measure = answer(make_costs(prepare_ms, 1, 40))
    planned = plan_run(make_config(tmp_path, data_gpu=0, model_gpu=1), machine=make_machine(3), measure=measure)
    assert measure.calls == [["dual", "isolated"]]
    assert planned.plan.mode is mode
    assert planned.plan.model.physical_id == 1
    assert planned.choice is not None
    assert planned.choice.devices == ("GPU-0", "GPU-1")


@pytest.mark.parametrize("ids", [{}, {"data_gpu": 0, "model_gpu": 1}, {"data_gpu": 2, "model_gpu": 0}])
def test_both_cards_train_where_that_is_fastest(tmp_path: Path, ids: dict[str, int]) -> None:
    planned = plan_run(
        make_config(tmp_path, **ids),
        machine=make_machine(3),
        measure=answer(make_costs(0.4, 1, 40, exchange=4)),
        find_launch_obstacle=find_no_obstacle,
    )
    assert planned.choice is not None
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
def test_what_two_workers_cannot_do_is_weighed_out_and_said(
    tmp_path: Path, changes: dict[str, Any], found: dict[str, Any], obstacle: str
) -> None:
    planned = plan_run(
        make_config(tmp_path).replace(**changes),
        machine=make_machine(2),
        measure=answer(make_costs(0.4, 1, 40, exchange=4), **found),
        find_launch_obstacle=lambda: pytest.fail("how it was started does not matter any more"),
    )
    assert planned.choice is not None
    assert (planned.choice.layout, planned.workers) == (Layout.SINGLE, ())
    (row,) = [line for line in format_choice(planned.choice).splitlines() if line.startswith("data-parallel")]
    assert obstacle in row
    assert "would be faster" not in planned.choice.reason, "there is no other way to have it either"


def test_a_program_of_one_process_says_who_could_train_on_both(tmp_path: Path) -> None:
    measure = answer(make_costs(0.4, 1, 40, exchange=4))
    planned = plan_run(make_config(tmp_path), machine=make_machine(2), measure=measure)
    assert planned.choice is not None
    assert (planned.choice.layout, planned.workers) == (Layout.SINGLE, ())
    assert "`myxtts train` does it with --mode auto" in planned.choice.reason


def test_a_program_that_could_start_workers_otherwise_names_the_flag_and_not_itself(tmp_path: Path) -> None:
    planned = plan_run(
        make_config(tmp_path),
        machine=make_machine(2),
        measure=answer(make_costs(0.4, 1, 40, exchange=4)),
        find_launch_obstacle=lambda: Obstacle("no network", "add --open-ports"),
    )
    assert planned.choice is not None
    assert planned.choice.reason.endswith("would be faster, about 24 ms a step: add --open-ports.")
    assert "--mode auto" not in planned.choice.reason
    (row,) = [line for line in format_choice(planned.choice).splitlines() if line.startswith("data-parallel")]
    assert row.endswith("no network")


def test_one_device_that_has_no_room_for_everything_is_not_chosen() -> None:
    around = replace(ONE_PROCESS, obstacles={**ONE_PROCESS.obstacles, Layout.SINGLE: "GPU 0 needs about 30 GB"})
    choice = choose_mode(make_costs(0.4, 1, 40), around, ["a", "b"])
    assert choice.layout is Layout.DUAL
    assert choice.reason.endswith("40 ms a step. One device cannot do everything: GPU 0 needs about 30 GB.")


def test_where_nothing_can_be_had_every_reason_is_named() -> None:
    around = replace(NO_CODES, obstacles={layout: f"no room for {layout}" for layout in Layout})
    with pytest.raises(DevicePlanError, match="a mode that can be had") as caught:
        choose_mode(make_costs(30, 1, 40), around, ["a", "b"])
    for layout in Layout:
        assert f"\n  {layout}: no room for {layout}" in str(caught.value)
    assert "smaller --batch-size" in str(caught.value)


@pytest.mark.parametrize(
    ("policy", "asked", "keeps_codes", "words"),
    [
        ("disk", "auto", True, "kept: about 3.0 MB on the disk, in kept here."),
        ("memory", "auto", True, "kept: about 3.0 MB in the memory of each process that prepares."),
        ("off", "auto", False, "are not kept. Tested."),
        ("off", "off", False, "are not kept. Tested."),
    ],
)
def test_a_run_keeps_codes_as_was_chosen(
    tmp_path: Path, policy: str, asked: str, keeps_codes: bool, words: str
) -> None:
    config = make_config(tmp_path, cache=asked)
    cache = {"policy": policy, "reason": "Tested.", "size_bytes": 3 << 20, "folder": "kept here"}
    measure = answer(make_costs(60, 1, 40, codes=59), cache=cache, epochs=50)
    planned = plan_run(config, machine=make_machine(2), measure=measure)
    assert planned.choice is not None
    assert planned.choice.keeps_codes is keeps_codes
    assert words in planned.choice.codes
    assert fix_cache(config, planned.choice).data.cache == policy
    assert fix_cache(config, None) is config
    # What is given when the run goes on wins over what was chosen then.
    other = make_config(tmp_path, cache="memory")
    assert fix_cache(other, planned.choice).data.cache == "memory"


def test_memory_that_does_not_fit_is_an_obstacle(tmp_path: Path) -> None:
    measure = answer(make_costs(30, 1, 40), obstacles={"dual": "/GPU:1 needs too much"})
    planned = plan_run(make_config(tmp_path), machine=make_machine(2), measure=measure)
    assert planned.plan.mode is Mode.ISOLATED


def test_a_run_that_goes_on_keeps_its_mode_until_the_devices_change(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    config = make_config(folder)
    first = plan_run(config, machine=make_machine(2), measure=answer(make_costs(30, 1, 40)))
    assert first.choice is not None
    with open_run(config, command=["train"]) as run:
        run.note_choice(first.choice.dump())
    record = read_record(folder)
    assert record is not None
    assert load_choice(record.choice or {}) == first.choice
    again = plan_run(config, machine=make_machine(2), measure=refuse_to_measure)
    assert (again.plan, again.choice) == (first.plan, first.choice)
    told: list[str] = []
    other = plan_run(config, machine=make_machine(3), tell=told.append, measure=answer(make_costs(0.4, 1, 40)))
    assert other.plan.mode is Mode.SINGLE
    assert "chosen anew" in told[0]
    anew = config.replace(training={"resume": "reset"})
    assert plan_run(anew, machine=make_machine(2), measure=answer(make_costs(0.4, 1, 40))).plan.mode is Mode.SINGLE
    # A mode that is given from now on is not overruled by what was chosen then.
    given = config.replace(training={"mode": "isolated"})
    assert plan_run(given, machine=make_machine(2), measure=refuse_to_measure).choice is None


def test_a_decoder_does_not_take_over_the_mode_of_the_gpt_it_is_for(tmp_path: Path) -> None:
    config = make_config(tmp_path)
    first = plan_run(config, machine=make_machine(2), measure=answer(make_costs(30, 1, 40)))
    assert first.choice is not None
    with open_run(config, command=["train"]) as run:
        run.note_choice(first.choice.dump())
    decoder = config.replace(training={"stage": "decoder"})
    with pytest.raises(DevicePlanError, match="--stage is decoder"):
        plan_run(decoder, machine=make_machine(2), measure=refuse_to_measure)


def test_a_choice_that_was_recorded_before_faster_ways_were_is_kept() -> None:
    choice = choose_mode(make_costs(30, 1, 40), NO_CODES, ["a", "b"])
    values = choice.dump()
    del values["is_parallel_faster"]
    assert load_choice(json.loads(json.dumps(values))) == choice


def test_a_run_that_trained_on_both_devices_goes_on_so(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    config = make_config(folder)
    machine = make_machine(2)
    measure = answer(make_costs(0.4, 1, 40, exchange=4))
    first = plan_run(config, machine=machine, measure=measure, find_launch_obstacle=find_no_obstacle)
    assert first.choice is not None
    with open_run(config.replace(training={"mode": "single"}), command=["train"]) as run:
        run.note_choice(first.choice.dump())
    again = plan_run(config, machine=machine, measure=refuse_to_measure, find_launch_obstacle=find_no_obstacle)
    assert again == first
    assert again.workers
    told: list[str] = []
    anew = plan_run(config, machine=machine, tell=told.append, measure=measure)
    assert anew.workers == ()
    assert "the run's mode was data-parallel, which cannot be had now (takes a process for each device" in told[0]


def test_ids_that_are_not_there_are_refused_as_without_auto(tmp_path: Path) -> None:
    with pytest.raises(DevicePlanError, match="Insufficient GPUs for Multi-GPU Mode"):
        plan_run(make_config(tmp_path, data_gpu=0, model_gpu=5), machine=make_machine(2), measure=refuse_to_measure)


def test_a_measurement_that_fails_leads_to_the_flag(tmp_path: Path) -> None:
    def fail(config: XTTSConfig, plans: Any) -> Any:
        raise MeasuringError("Measuring died.")

    with pytest.raises(MeasuringError, match=r"Measuring died\.\nGive --mode single, dual or isolated instead"):
        plan_run(make_config(tmp_path), machine=make_machine(2), measure=fail)


def test_one_card_for_both_roles_is_no_choice() -> None:
    with pytest.raises(ConfigError, match="a split card has one mode"):
        XTTSConfig(data={"data_gpu": 0, "model_gpu": 0}, training={"mode": "auto"})


def test_a_decoder_cannot_be_measured(tmp_path: Path) -> None:
    config = make_config(tmp_path).replace(training={"stage": "decoder"})
    with pytest.raises(DevicePlanError, match="--stage is decoder"):
        plan_run(config, machine=make_machine(2), measure=refuse_to_measure)
