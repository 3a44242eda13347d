"""A run whose mode was chosen by measuring is the run that it would have been anyway."""

import json
import os
import sys
from signal import SIGTERM

import pytest

from tests.support.tiny_run import LiveRun, TinyRun, at_step, leaves_nothing, run_tiny, start_tiny, tiny_words

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


LARGE_MODEL = {
    "costs": {"prepare_s": 0.02, "transfer_s": 0.001, "train_s": 2, "single_s": 2.02, "dual_s": 2, "exchange_s": 0.2},
    "obstacles": {},
    "around": {"epochs": 3, "kept_obstacle": "--cache is off."},
}
"""What would be measured on two cards where preparing is a hundredth of a step."""
TRAIN_AS_MEASURED = """
import json, sys
from myxtts.cli.main import main
from myxtts.training import mode
found = json.loads(sys.argv[1])
mode.measure_modes = lambda config, plans: found
sys.exit(main(["train", *sys.argv[2:]]))
"""


LONG_ENOUGH = (
    *("--grad-accum", "2", "--max-steps", "24"),
    *("--validation-interval", "100", "--checkpoint-interval", "100"),
)
"""For some steps after the warm-up of either start."""


@pytest.mark.soak
def test_both_devices_train_where_that_was_measured_to_be_fastest_and_go_on_so(base_flags, tmp_path):
    """Two cards are two rehearsed devices here, and the figures are given; all else is as on a machine with cards."""
    folder, flags = tmp_path / "auto", (*base_flags, *LONG_ENOUGH)
    # Two processes do not round as one does: with --deterministic this mode is not taken.
    settings = {"training.deterministic": "false"}
    words = tiny_words(folder, *flags, mode="auto", **settings)
    with leaves_nothing(folder):
        live = LiveRun(folder, [sys.executable, "-c", TRAIN_AS_MEASURED, json.dumps(LARGE_MODEL), *words])
        live.strike(at_step(folder, 2), SIGTERM)
        run = live.finish(os.EX_TEMPFAIL)
    assert MEASURES in run.text
    assert "Auto    data-parallel\n" in run.text
    assert "Mode    data-parallel: 2 workers, one for each of the rehearsed GPUs 1,0" in run.text
    assert "--mode auto" in next(line for line in run.text.splitlines() if "Resume  " in line)
    assert run.record["choice"]["layout"] == "data-parallel"
    again = run_tiny(folder, *flags, mode="auto", **settings)
    assert MEASURES not in again.text
    assert "Auto    data-parallel\n" in again.text
    assert "Mode    data-parallel: 2 workers" in again.text
    # Half of two batches of 2.02 s, and the exchange.
    assert "Auto mode    predicted 2.22 s a step, reached " in again.text
    assert again.losses == TinyRun.at(folder / "worker-1").losses
    assert len(again.losses) == 24
    assert {clips for _, clips, _, _ in again.counts} <= {8, 7, 6, 5}, "of both workers together"
