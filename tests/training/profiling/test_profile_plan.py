"""Which devices a measurement uses: those of the run it stands for, or of one process of it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import pytest

from myxtts.cli.main import run_command
from myxtts.config import XTTSConfig
from myxtts.devices.machine import Machine
from myxtts.devices.nvml import Card, CardScan, PhysicalId
from myxtts.devices.plan import Mode, PlanRequest
from myxtts.devices.planning import plan_devices
from myxtts.training.mode import Layout, ModeChoice, PlannedRun
from myxtts.training.profiling import plan as profile_plan
from myxtts.training.profiling.plan import ProfilePlan, plan_profile

NO_CARDS = Machine(CardScan((), (), None), 16000)
FOUR_CARDS = Machine(
    CardScan(tuple(Card(PhysicalId(id), "RTX 3090", f"GPU-{id}", f"0000:0{id}", 24576, 24000) for id in range(4)), (), None),
    16000,
)  # fmt: skip
TWO_WORKERS = {
    "TF_CONFIG": json.dumps(
        {"cluster": {"worker": ["10.0.0.1:5000", "10.0.0.2:5000"]}, "task": {"type": "worker", "index": 0}}
    )
}


def plan(
    training: Mapping[str, Any], machine: Machine = NO_CARDS, environ: Mapping[str, str] | None = None
) -> ProfilePlan:
    return plan_profile(XTTSConfig(training=training), machine, tell=lambda _: None, environ=environ or {})


@pytest.mark.parametrize("command", ["profile", "configure"])
def test_a_decoder_is_refused_before_tensorflow_is_loaded(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["--rehearsal", "--stage", "decoder", "--init-from", "somewhere"]
    assert run_command(command, words, f"myxtts {command}") == 2
    told = capsys.readouterr().err
    assert "Only the training of a codec or a GPT can be measured, but --stage is decoder." in told
    assert "Leave --stage out" in told


def test_auto_is_chosen_as_a_training_would(monkeypatch: pytest.MonkeyPatch) -> None:
    chosen = plan_devices(PlanRequest(mode="isolated", rehearsal=True), NO_CARDS)
    choice = ModeChoice(Layout.ISOLATED, True, 0.1, "Tested.", ("a", "b"), cache="memory")
    monkeypatch.setattr(profile_plan, "plan_run", lambda *_, **__: PlannedRun(chosen, choice))
    planned = plan({"mode": "auto", "rehearsal": True})
    assert planned.plan is chosen
    # It was chosen for codes that are kept there.
    assert planned.config.data.cache == "memory"
    monkeypatch.undo()
    # One device is no choice: nothing is measured.
    assert plan({"mode": "auto"}).plan.mode is Mode.SINGLE


@pytest.mark.parametrize(
    ("workers", "is_faster", "words"),
    [
        ((0, 1), False, "A training with --mode auto has both devices train (data-parallel). One rank is measured"),
        ((), True, "What is measured is single. Tested, and both devices training would be faster."),
        ((), False, None),
    ],
)
def test_what_auto_trains_with_and_what_is_measured_are_told_apart(
    monkeypatch: pytest.MonkeyPatch, workers: tuple[int, ...], is_faster: bool, words: str | None
) -> None:
    plan_one = plan_devices(PlanRequest(mode="single", rehearsal=True), NO_CARDS)
    reason = "Tested, and both devices training would be faster."
    layout = Layout.DATA_PARALLEL if workers else Layout.SINGLE
    choice = ModeChoice(layout, False, 0.1, reason, ("a", "b"), is_parallel_faster=is_faster)
    asked: list[Any] = []

    def plan_run(*_: Any, find_launch_obstacle: Any, **__: Any) -> PlannedRun:
        asked.append(find_launch_obstacle())
        return PlannedRun(plan_one, choice, workers)

    monkeypatch.setattr(profile_plan, "plan_run", plan_run)
    config = XTTSConfig(training={"mode": "auto", "rehearsal": True})
    planned = plan_profile(config, NO_CARDS, tell=lambda _: None, environ={}, find_launch_obstacle=lambda: None)
    assert asked == [None], "a training may start workers"
    assert [note.startswith(words or "") for note in planned.notes] == ([True] if words else [])


def test_of_several_training_cards_the_first_is_measured_and_that_is_said() -> None:
    planned = plan({"model_gpus": "2,3"}, FOUR_CARDS)
    assert (planned.plan.mode, planned.plan.model.physical_id) == (Mode.SINGLE, 2)
    assert planned.notes == (
        "One rank is measured, alone and with whole batches. With --model-gpus 2,3, 2 workers share every batch and exchange "
        "their gradients; neither is in these figures.",
    )
    assert plan({"model_gpus": "2,3", "rehearsal": True}).plan.mode is Mode.SINGLE


def test_a_worker_of_a_cluster_is_said_to_be_one_of_several() -> None:
    assert "With the cluster, 2 workers share every batch" in plan({}, environ=TWO_WORKERS).notes[0]
    assert plan({}).notes == ()
