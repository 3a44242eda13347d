"""A run whose mode was chosen by measuring is the run that it would have been anyway."""

import json
from signal import SIGTERM

import pytest

from tests.training.runs import finish, read_story, start, train
from tests.training.strikes import at_step, leaves_nothing, strike

MEASURES = "measuring some batches to choose the mode"


@pytest.mark.soak
def test_measuring_changes_nothing_and_is_done_once(unbroken, flags, tmp_path):
    folder = tmp_path / "auto"
    with leaves_nothing(folder):
        moment = at_step(folder, 2)
        run = start(folder, *flags, "--mode", "auto")
        strike(run, moment, SIGTERM)
        said = finish(run, folder)
    assert said.code == 0, said.text[-6000:]
    assert MEASURES in said.text
    assert "<- taken" in said.text
    choice = json.loads((folder / "run.json").read_text(encoding="utf-8"))["choice"]
    assert f"Auto    {choice['layout']}\n" in said.text
    assert min(choice["costs"][f"{stage}_s"] for stage in ("prepare", "transfer", "train", "single", "dual")) > 0
    again = train(folder, *flags, "--mode", "auto")
    assert MEASURES not in again
    assert f"Auto    {choice['layout']}\n" in again
    assert "Auto mode    predicted " in again
    assert read_story(folder) == read_story(unbroken)
