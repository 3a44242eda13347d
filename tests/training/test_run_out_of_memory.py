"""A model device whose memory is too small, played where TensorFlow would say so."""

import numpy as np
import pytest

from tests.training.runs import Fault, make_words, read_losses, train_all

WITHOUT_DROPOUT = {"model.dropout": 0.0}
"""Parts of a batch have dropout masks of their own."""


@pytest.fixture(scope="module")
def runs(share, flags):
    """An undisturbed run, one out of memory in its gradients, one in its sixth update, one that must stop then."""

    def make(folder):
        names = ("whole", "gradients", "update", "stopped")
        words = [make_words(folder / name, *flags, "--mode", "single", **WITHOUT_DROPOUT) for name in names]
        words[3] += ["--on-oom", "stop"]
        faults = {1: Fault("compute", 5), 2: Fault("apply", 6), 3: Fault("compute", 1)}
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
