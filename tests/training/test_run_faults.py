"""Runs in which something goes wrong: what they say, what they leave, and how they go on."""

import json
import shutil
from functools import partial

import numpy as np
import pytest

from myxtts.monitoring.memory import LEAK_EVENT
from myxtts.monitoring.metrics import TrainRow
from tests.support.faults import EVERY, NO_NUMBERS, Fault
from tests.support.tiny_run import PATIENCE_S, TinyRun, leaves_nothing, run_tiny, start_tiny

WITHOUT_DROPOUT = {"model.dropout": 0.0}
"""Parts of a batch have dropout masks of their own."""
OUT_OF_MEMORY = "runs out of memory"
SHORT = ("--grad-accum", "2", "--max-steps", "4", "--validation-interval", "2", "--checkpoint-interval", "2")


@pytest.fixture(scope="module")
def short_flags(base_flags):
    return (*base_flags, *SHORT)


@pytest.fixture(scope="module")
def whole(share, short_flags):
    """What would have been without a fault."""
    return TinyRun.at(share("whole", lambda folder: run_tiny(folder, *short_flags, **WITHOUT_DROPOUT)))


@pytest.fixture
def spoil(short_flags, tmp_path):
    """Makes the same run with a fault."""

    def spoil(*fault, **options):
        return run_tiny(tmp_path / "run", *short_flags, fault=Fault(*fault), **{**WITHOUT_DROPOUT, **options})

    return spoil


@pytest.fixture
def longer(unbroken, tmp_path, base_flags):
    """A run that goes on with one update more than it has."""
    folder = shutil.copytree(unbroken.folder, tmp_path / "run")
    flags = ("--grad-accum", "2", "--max-steps", "9", "--validation-interval", "3")
    return partial(run_tiny, folder, *base_flags, *flags)


def test_gradients_that_do_not_fit_are_computed_in_halves(whole, spoil):
    run = spoil("computing gradients", OUT_OF_MEMORY, 5)
    assert run.losses[:2] == whole.losses[:2]
    assert run.losses != whole.losses, "another order of additions"
    np.testing.assert_allclose(run.losses, whole.losses, rtol=1e-4)
    assert "Out of memory in step 2 (micro-batch 1 of 2, 4 clips padded to" in run.text
    assert run.text.count("cut into 2 parts") == 1, "what did not fit once is not tried again"


def test_an_update_that_does_not_fit_is_done_again_from_the_last_checkpoint(whole, spoil):
    run = spoil("updating", OUT_OF_MEMORY, 4)
    assert [step for step, _ in run.losses] == [1, 2, 3, 4], "each step is told once"
    assert run.losses[:2] == whole.losses[:2]
    np.testing.assert_allclose(run.losses, whole.losses, rtol=1e-4)
    assert "Out of memory inside the update of step 3" in run.text
    assert "Going on from the checkpoint of step 2" in run.text


@pytest.mark.parametrize(
    ("fault", "flag", "words"),
    [
        (("computing gradients", 1), ("--on-oom", "stop"), ["Out of memory in step 0", "--batch-size", "--on-oom retry"]),
        (("computing gradients", EVERY), (), ["Out of memory in step 0", "in 4 parts", "--batch-size"]),
        (
            ("updating", 1),
            (),
            [
                "Out of memory inside the update of step 0", "from step 0, as there is no checkpoint yet",
                "half the --batch-size and twice the --grad-accum",
            ],
        ),
    ],
)  # fmt: skip
def test_a_run_that_cannot_go_on_says_what_can_be_changed(short_flags, tmp_path, fault, flag, words):
    run = run_tiny(tmp_path / "run", *short_flags, *flag, fault=Fault(fault[0], OUT_OF_MEMORY, fault[1]), expect=1)
    assert all(word in run.text for word in words), run.text
    assert "Traceback" not in run.text
    assert run.checkpoints == []


@pytest.mark.soak
def test_a_validation_that_does_not_fit_is_made_in_halves_and_changes_no_training(whole, spoil):
    run = spoil("evaluating", OUT_OF_MEMORY)
    assert run.losses == whole.losses
    np.testing.assert_allclose(run.validations, whole.validations, rtol=1e-5)
    assert "Out of memory in the validation after 2 updates" in run.text
    assert run.record["status"] == "finished"


def test_a_validation_that_cannot_be_made_leaves_a_saved_run_that_makes_it_up(whole, spoil, short_flags):
    run = spoil("evaluating", OUT_OF_MEMORY, EVERY, expect=1)
    assert "validation after 2 updates" in run.text
    assert "--model-gpu-memory" in run.text
    assert run.checkpoints == [2]
    # The sample that belongs to it does not fit, either, and is left out.
    again = run_tiny(run.folder, *short_flags, fault=Fault("making a sample", OUT_OF_MEMORY), **WITHOUT_DROPOUT)
    assert "the sample of step 2" in again.text
    assert again.story == whole.story


def test_a_step_that_is_not_finite_is_told_with_its_clips(short_flags, tmp_path):
    fault = Fault("computing gradients", NO_NUMBERS, 3)
    run = run_tiny(tmp_path / "run", *short_flags, fault=fault, expect=1)
    told = json.loads((run.folder / "not-finite-step-00000001.json").read_text(encoding="utf-8"))
    assert "in 2 batches, and their voice prompts" in run.text
    assert 1 <= len(told["clips"]) <= 8
    assert len(told["prompts"]) == len(told["clips"])
    assert all(name.endswith(".wav") for name in told["clips"])
    assert run.checkpoints == []


@pytest.mark.soak
def test_shapes_that_are_not_fixed_are_counted_as_they_are_traced_again(base_flags, tmp_path):
    run = run_tiny(tmp_path / "run", *base_flags, "--max-steps", "4", "--disable-static-shapes")
    assert sum(row.retraces for row in run.list_rows(TrainRow)) > 0


@pytest.mark.parametrize(
    ("seam", "signal", "code", "doing"),
    [
        ("choosing the mode", "SIGINT", 130, " while the mode was chosen,"),
        ("importing", "SIGTERM", 0, " while TensorFlow was imported,"),
        ("setting up devices", "SIGINT", 130, ""),
        ("scanning", "SIGTERM", 0, ""),
    ],
)
def test_a_signal_before_the_first_update_ends_a_run_at_once_and_says_how_to_go_on(
    base_flags, longer, tmp_path, seam, signal, code, doing
):
    new = run_tiny(tmp_path / "new", *base_flags, fault=Fault(seam, signal), expect=code)
    assert f"Stopped by {signal}{doing} before anything was trained in this session." in new.text
    assert "Start it again with the same command." in new.text
    assert "Resume" not in new.text
    assert (tmp_path / "new").exists() == (seam == "scanning")
    begun = longer(fault=Fault(seam, signal), expect=code)
    assert f"Nothing is lost of the run in {begun.folder}: 8 updates of it are done." in begun.text
    assert "--resume" in begun.resume_words
    if seam == "choosing the mode":
        reset = longer("--reset-training", fault=Fault(seam, signal), expect=code)
        assert "Resume" not in reset.text, "it was to be kept aside"


def test_a_signal_between_micro_batches_saves_the_last_whole_update(spoil):
    run = spoil("computing gradients", "SIGTERM", 3)
    assert "stopped by SIGTERM (1 updates)" in run.text
    assert run.checkpoints == [1]


def test_a_signal_between_codec_and_gpt_ends_the_run_before_the_gpt_is_built(codec_run, tmp_path):
    flags = ("--train-data", codec_run / "corpus", "--codec-steps", "2", "--max-steps", "1")
    run = run_tiny(tmp_path / "run", *flags, fault=Fault("reading a codec", "SIGTERM"))
    assert "2 updates of its codec are done" in run.text
    assert "Model: " not in run.text
    assert "--resume" in run.resume_words


def test_a_signal_while_a_finished_run_speaks_leaves_it_finished(longer):
    run = longer(fault=Fault("speaking", "SIGTERM"), **{"training.speak": "true"})
    assert run.record["status"] == "finished"
    assert "Resume" not in run.text


GO_ON = "To go on from the last checkpoint:\n  python train_main.py"


@pytest.mark.parametrize(
    ("seam", "part", "advice"),
    [
        ("setting up devices", "setting up the devices", "Start it again with the same command."),
        ("scanning", "scanning the corpus", GO_ON),
        ("computing gradients", "step", GO_ON),
    ],
)
def test_a_run_that_hangs_is_named_and_ended(longer, seam, part, advice):
    limit_s = 1 if part == "step" else 0.2
    run = longer("--watchdog-seconds", limit_s, fault=Fault(seam, "hangs"), expect=1)
    assert f"Stage '{part}' has made no progress for more than" in run.text
    assert "in _hang" in run.text, "its stack"
    assert advice in run.text


LEAKING = ("--validation-interval", 10, "--epochs", 400, "--max-steps", 200)


@pytest.mark.soak
@pytest.mark.parametrize(
    ("seam", "effect", "mode", "memory", "phase"),
    [
        ("computing gradients", "leaks 1 MiB", "single", "host memory of the trainer", "training"),
        ("evaluating", "leaks 10 MiB", "single", "host memory of the trainer", "validation"),
        ("saving", "leaks 10 MiB", "single", "host memory of the trainer", "checkpoint"),
        ("reading device memory", "grows on /CPU:1", "single", "device memory of the model", "training"),
        ("reading device memory", "grows on /CPU:1", "dual", "device memory of the preparation", "preparation"),
        ("preparing in the producer", "leaks 1 MiB", "isolated", "host memory of the producer", "preparation"),
    ],
)
def test_a_leak_is_found_and_named_by_its_phase_within_200_steps(
    base_flags, tmp_path, seam, effect, mode, memory, phase
):
    flags = (*base_flags, *LEAKING, "--checkpoint-interval", 10 if phase == "checkpoint" else 50)
    run = run_tiny(tmp_path / "run", *flags, mode=mode, fault=Fault(seam, effect, EVERY))
    found = next(event for event in run.events if event.name == LEAK_EVENT)
    assert found.step <= 200
    assert found.text.startswith(f"Memory keeps growing: {memory}, ")
    assert f"in the {phase} of the gpt stage" in found.text
    assert found.text in run.text
    assert found.text in (run.folder / "report.html").read_text(encoding="utf-8")


@pytest.mark.soak
@pytest.mark.parametrize("mode", ["single", "isolated"])
def test_a_run_without_a_leak_raises_no_alarm_in_2000_steps(base_flags, tmp_path, mode):
    often = ("--validation-interval", 100, "--checkpoint-interval", 200, "--epochs", 4000, "--max-steps", 2000)
    run = start_tiny(tmp_path / "run", *base_flags, *often, mode=mode).finish(0, patience_s=8 * PATIENCE_S)
    assert [event for event in run.events if event.name == LEAK_EVENT] == []


@pytest.mark.soak
@pytest.mark.parametrize(
    ("seam", "effect", "call", "stage"),
    [("computing gradients", "hangs deaf", 4, "step"), ("saving", "hangs", 1, "checkpoint")],
)
@pytest.mark.parametrize("mode", ["single", "isolated"])
def test_a_process_that_hangs_ends_with_the_stage_its_stack_and_the_way_on(
    base_flags, tmp_path, seam, effect, call, stage, mode
):
    flags = ("--watchdog-seconds", 8, "--checkpoint-interval", 5, "--max-steps", 20)
    with leaves_nothing(tmp_path / "run"):
        fault = Fault(seam, effect, call)
        run = start_tiny(tmp_path / "run", *base_flags, *flags, mode=mode, fault=fault).finish(1)
    assert f"Stage '{stage}' has made no progress" in run.text
    assert "tests/support/faults.py" in run.text, "its stack"
    assert GO_ON in run.text
    assert "stalled" in [event.name for event in run.events]
