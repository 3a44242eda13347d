"""A run whose mode was chosen by measuring is the run that it would have been anyway."""

from signal import SIGTERM

import pytest

from tests.support.tiny_run import at_step, leaves_nothing, run_tiny, start_tiny

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
