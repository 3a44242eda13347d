"""A model device whose memory is too small, played where TensorFlow would say so."""

import json

import numpy as np
import pytest

from tests.training.runs import Fault, make_words, read_losses, read_validations, train_all

# Whole runs; tests/training/test_updates.py has the parts of it in a second each.
pytestmark = pytest.mark.soak

WITHOUT_DROPOUT = {"model.dropout": 0.0}
"""Parts of a batch have dropout masks of their own."""


@pytest.fixture(scope="module")
def runs(share, flags):
    """An undisturbed run, and runs out of memory: in gradients, in the sixth update, where it must stop then, in a
    validation, and in the first update of all."""

    def make(folder):
        names = ("whole", "gradients", "update", "stopped", "validation", "first")
        words = [make_words(folder / name, *flags, "--mode", "single", **WITHOUT_DROPOUT) for name in names]
        words[3] += ["--on-oom", "stop"]
        faults = {
            1: Fault("compute", 5),
            2: Fault("apply", 6),
            3: Fault("compute", 1),
            4: Fault("evaluate", 1),
            5: Fault("apply", 1),
        }
        train_all(folder, *words, faults=faults)

    return share("out_of_memory", make)


def read_said(runs, number):
    return (runs / f"run-{number}.said").read_text(encoding="utf-8")


def test_gradients_that_do_not_fit_are_computed_in_halves(runs):
    whole, halved = read_losses(runs / "whole"), read_losses(runs / "gradients")
    assert halved[:2] == whole[:2]
    assert halved != whole, "another order of additions"
    np.testing.assert_allclose(halved, whole, rtol=1e-4)
    said = read_said(runs, 1)
    assert "Out of memory in step 2 (micro-batch 1 of 2, 4 clips padded to" in said
    assert "cut into 2 parts" in said


def test_an_update_that_does_not_fit_is_done_again_from_the_last_checkpoint(runs):
    whole, again = read_losses(runs / "whole"), read_losses(runs / "update")
    assert [step for step, _ in again] == list(range(1, 9)), "each step is told once"
    assert again[:4] == whole[:4]
    np.testing.assert_allclose(again, whole, rtol=1e-4)
    said = read_said(runs, 2)
    assert "Out of memory inside the update of step 5" in said
    assert "Going on from the checkpoint of step 4" in said


def test_a_run_that_must_stop_does(runs):
    said = read_said(runs, 3)
    assert "Out of memory in step 0" in said
    assert "--batch-size" in said
    assert "Traceback" not in said
    assert not list((runs / "stopped").glob("step-*"))


def test_a_validation_that_does_not_fit_is_made_in_halves_and_changes_no_training(runs):
    assert read_losses(runs / "validation") == read_losses(runs / "whole")
    validations = read_validations(runs / "validation")
    np.testing.assert_allclose(validations, read_validations(runs / "whole"), rtol=1e-5)
    assert [step for step, _ in validations] == [3, 6, 8]
    assert "Out of memory in the validation after 3 updates" in read_said(runs, 4)
    assert json.loads((runs / "validation" / "run.json").read_text(encoding="utf-8"))["status"] == "finished"


def test_a_first_update_that_does_not_fit_says_what_can_still_be_changed(runs):
    said = read_said(runs, 5)
    assert "Traceback" not in said
    assert "Out of memory inside the update of step 0" in said
    assert "from step 0, as there is no checkpoint yet" in said
    assert "half the --batch-size and twice the --grad-accum" in said
