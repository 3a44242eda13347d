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
from myxtts.training.auto_mode import plan_run
from myxtts.training.measuring_process import MeasuringError
from myxtts.training.mode_choice import choose_mode, format_choice, load_choice
from myxtts.training.mode_prediction import (
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
    return StageCosts(**{f"{name}_s": value / 1000 for name, value in values.items()})


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
        # Half of the 31 ms beside training was not hidden: codes that are kept leave less to hide.
        (make_costs(30, 1, 40, dual=55.5), Candidate(Layout.DUAL), 1, 55.5),
        (make_costs(30, 1, 40, dual=55.5, codes=20), Candidate(Layout.DUAL, True), 10**9, 40 + 0.5 * 11),
        # The same cores for both: a second "device" halves nothing.
        (make_costs(30, 0, 40, dual=70), Candidate(Layout.DATA_PARALLEL), 1, 70),
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
    assert predict_batch_s(costs, candidate, epochs) * 1000 == pytest.approx(expected_ms, rel=1e-6)


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
        (make_costs(30, 1, 40), NO_CODES, Layout.DUAL, "40 ms a step instead of 70 ms on one"),
        (make_costs(0.4, 1, 40), NO_CODES, Layout.SINGLE, "Preparing takes 1% of the time of training"),
        (make_costs(10, 80, 40), NO_CODES, Layout.SINGLE, "would not pay: 80 ms a step, 50 ms on one"),
        # Sharing cores: overlapping costs more than it hides.
        (make_costs(30, 1, 40, dual=72), NO_CODES, Layout.SINGLE, "would not pay"),
        (
            make_costs(30, 1, 40),
            replace(NO_CODES, obstacles={Layout.DUAL: "no room"}),
            Layout.ISOLATED,
            "overlap on two devices",
        ),
        (
            make_costs(30, 1, 40),
            replace(NO_CODES, obstacles={Layout.DUAL: "no room", Layout.ISOLATED: "no room"}),
            Layout.SINGLE,
            "Two devices cannot be had: no room.",
        ),
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


def test_codes_that_are_kept_turn_the_choice() -> None:
    costs = make_costs(30, 1, 40, codes=29.5)
    assert choose_mode(costs, NO_CODES, ["a", "b"]).layout is Layout.DUAL
    kept = choose_mode(costs, Circumstances(epochs=100, online_obstacle="codes are kept"), ["a", "b"])
    assert (kept.layout, kept.keeps_codes) == (Layout.SINGLE, True)


def test_a_faster_mode_that_is_not_built_is_named_with_its_figure() -> None:
    choice = choose_mode(make_costs(0.4, 1, 40, exchange=4), NO_CODES, ["a", "b"])
    assert choice.layout is Layout.SINGLE
    assert "(data-parallel) would be faster, at best 24 ms a step: it is had with --model-gpus" in choice.reason
    slow_link = choose_mode(make_costs(0.4, 1, 40, exchange=30), NO_CODES, ["a", "b"])
    assert "data-parallel" not in slow_link.reason


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
    return XTTSConfig(
        model={"size": "tiny"}, data=data, training={"mode": "auto", "checkpoint_dir": str(folder), "max_steps": 10}
    )


def answer(costs: StageCosts, **changes: Any) -> Any:
    """A measurement that finds these costs."""
    calls = []

    def measure(config: XTTSConfig, plans: Any) -> dict[str, Any]:
        calls.append([str(plan.mode) for plan in plans])
        found = {"costs": vars(costs), "epochs": 5, "obstacles": {}, "cache": {"policy": "off", "reason": "Tested."}}
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
