"""A run whose mode was chosen by measuring is the run that it would have been anyway."""

import re
from dataclasses import asdict
from signal import SIGTERM

import pytest

from myxtts.devices.plan import Mode
from myxtts.training.mode import REHEARSED, ModeChoice
from myxtts.training.run_folder import open_run
from tests.support.tiny_run import (
    TRAIN_MAIN,
    LiveRun,
    at_step,
    leaves_nothing,
    run_tiny,
    start_tiny,
    tiny_config,
    tiny_words,
)

MEASURES = "measuring some batches to choose the mode"


@pytest.mark.soak
def test_measuring_changes_nothing_and_is_done_once(unbroken, flags, tmp_path):
    folder = tmp_path / "auto"
    with leaves_nothing(folder):
        live = start_tiny(folder, *flags, mode="auto")
        live.strike(at_step(folder, 2), SIGTERM)
        run = live.finish(0)
    assert MEASURES in run.text
    assert "<- taken" in run.text
    choice = run.record["choice"]
    assert f"Auto    {choice['layout']}\n" in run.text
    assert min(choice["costs"][f"{stage}_s"] for stage in ("prepare", "transfer", "train", "single", "dual")) > 0
    again = run_tiny(folder, *flags, mode="auto")
    assert MEASURES not in again.text
    assert f"Auto    {choice['layout']}\n" in again.text
    assert "Auto mode    predicted " in again.text
    assert again.story == unbroken.story


@pytest.mark.soak
def test_both_devices_training_is_weighed_where_losses_may_depend_on_it(base_flags, tmp_path):
    words = tiny_words(tmp_path / "auto", *base_flags, "--max-steps", "1", "--print-plan", mode="auto")
    words.remove("--deterministic")
    told = LiveRun(tmp_path / "auto", [*TRAIN_MAIN, *words]).finish(0).text
    costs = re.search(
        r"train on half of it ([\d.]+) ms; gradients of two, per update, about ([\d.]+) ms", " ".join(told.split())
    )
    assert costs is not None, told
    assert min(map(float, costs.groups())) > 0
    assert re.search(r"2 that train: .* ms on 1/2 of the rows", " ".join(told.split()))
    assert re.search(r"^single, 2 train +[\d.]+ ms(  <- taken)?$", told, re.MULTILINE)


@pytest.mark.soak
def test_a_choice_to_have_both_train_is_trained_so(base_flags, tmp_path):
    """What is chosen here depends on the machine, so it is a choice that the run has made before."""
    flags = (*base_flags, "--max-steps", "2")
    config = tiny_config(tmp_path / "run", *flags, mode="auto")
    with open_run(config, command=["train"]) as run:
        run.note_choice(asdict(ModeChoice(Mode.SINGLE, False, 0.1, "Tested.", REHEARSED, cards=2)))
    chosen = start_tiny(tmp_path / "run", *flags, mode="auto").finish(0)
    assert MEASURES not in chosen.text
    assert "Auto    single, 2 train\n" in chosen.text
    assert "Model will be placed on /CPU:2 and /CPU:1" in chosen.text
    assert chosen.story == start_tiny(tmp_path / "given", *flags, "--model-gpus", "1,0").finish(0).story
