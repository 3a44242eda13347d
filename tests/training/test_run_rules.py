"""What a folder with a run in it means for the next start, and what odd corpora and numbers do to a run."""

import json
import shutil

import numpy as np
import pytest

from myxtts.checkpoints.model_directory import read_model_directory, write_model_directory
from myxtts.checkpoints.tensor import read_array
from tests.training.runs import Said, make_words, read_losses, read_story, train_all

# Ten runs; tests/training/test_resume_rules.py and test_run_folder.py have the rules without a run.
pytestmark = pytest.mark.soak

NAMES = (
    *("missing", "finished", "unnoted", "changed", "longer", "longer alike", "reset", "large batch", "all dropped"),
    "not finite",
)
LONGER = ("--grad-accum", "2", "--max-steps", "9", "--validation-interval", "3", "--mode", "single")


@pytest.fixture(scope="module")
def said(share, unbroken, flags, base_flags):
    """What each of these runs said; all of them in one process."""

    def make(folder):
        folder.mkdir()
        words = {
            "missing": make_words(folder / "missing", *flags, "--mode", "single", "--resume"),
            "finished": make_words(unbroken, *flags, "--mode", "single"),
            "unnoted": make_words(take_ending_back(shutil.copytree(unbroken, folder / "unnoted")), *flags, "--mode", "single"),
            "changed": make_words(unbroken, *flags, "--mode", "single", **{"training.learning_rate": 0.5}),
            "longer": make_words(
                shutil.copytree(unbroken, folder / "longer"),
                *base_flags, *LONGER, **{"data.num_workers": 1, "data.pipeline_buffer_size": 1},
            ),
            "longer alike": make_words(shutil.copytree(unbroken, folder / "alike"), *base_flags, *LONGER),
            "reset": make_words(folder / "longer", *base_flags, "--mode", "single", "--max-steps", "1", "--reset-training"),
            "large batch": make_words(
                folder / "large", *base_flags, "--mode", "single", "--epochs", "2", **{"data.batch_size": 64}
            ),
            "all dropped": make_words(folder / "dropped", *base_flags, "--mode", "single", "--min-clip-seconds", "5"),
            "not finite": make_words(
                folder / "not_finite",
                *("--train-data", base_flags[1], "--mode", "single", "--init-from", spoil_weights(unbroken, folder)),
                *("--max-steps", "9", "--grad-accum", "1", "--checkpoint-interval", "1", "--prompt-from", "speaker"),
                **dict.fromkeys(("model.gpt_layers", "model.gpt_width", "model.gpt_heads", "model.dvae_width")),
                **{"model.audio_codes": None, "training.warmup_steps": None},
            ),
        }  # fmt: skip
        told = train_all(folder, *(words[name] for name in NAMES))
        (folder / "said.json").write_text(json.dumps(dict(zip(NAMES, told, strict=True))), encoding="utf-8")

    told = json.loads((share("rules", make) / "said.json").read_text(encoding="utf-8"))
    return {name: Said(*said) for name, said in told.items()}


@pytest.fixture
def folder(share, said):
    return share("rules", lambda folder: None)


def take_ending_back(folder):
    """Makes of a finished run one that was killed between its last checkpoint and the note of its end."""
    record = json.loads((folder / "run.json").read_text(encoding="utf-8"))
    (folder / "run.json").write_text(json.dumps({**record, "status": "unfinished", "ending": None}), encoding="utf-8")
    (folder / "report.html").unlink()
    return folder


def spoil_weights(run, folder):
    """A model in which a token stands for no numbers; returns where it is."""
    model = read_model_directory(run / "step-00000008")
    arrays = {name: np.array(read_array(tensor)) for name, tensor in model.model.items()}
    arrays["gpt.text_embedding.weight"][-1] = np.nan
    write_model_directory(
        folder / "spoilt", config=model.config, model=arrays, dvae=model.dvae, vocabulary=model.vocabulary
    )
    return folder / "spoilt"


def test_resume_without_a_run_is_an_error(said, folder):
    assert said["missing"].code == 2
    assert "there is no run to resume" in said["missing"].text
    assert not (folder / "missing").exists()


def test_a_finished_run_says_so(said):
    assert said["finished"].code == 0
    assert "is finished: 8 updates are done" in said["finished"].text


def test_a_run_killed_after_its_last_checkpoint_is_brought_to_its_end(said, folder, unbroken):
    assert said["unnoted"].code == 0, said["unnoted"].text[-6000:]
    assert "All 8 updates" in said["unnoted"].text
    assert "all updates are done (8 updates)" in said["unnoted"].text
    assert (folder / "unnoted" / "report.html").is_file()
    assert json.loads((folder / "unnoted" / "run.json").read_text(encoding="utf-8"))["status"] == "finished"
    assert read_story(folder / "unnoted") == read_story(unbroken)


def test_settings_that_change_the_result_are_refused_with_the_difference(said, unbroken):
    assert said["changed"].code == 2
    assert "training.learning_rate was 0.003, now 0.5" in said["changed"].text
    assert "--lr 0.003" in said["changed"].text
    assert len(read_losses(unbroken)) == 8


def test_a_run_can_be_made_longer_and_read_in_another_way(said, folder, unbroken):
    assert said["longer"].code == 0, said["longer"].text[-6000:]
    assert "goes on at step 8 of 9" in said["longer"].text
    aside = folder / "longer" / "previous-run-1"
    assert read_losses(aside)[:8] == read_losses(unbroken)
    assert [step for step, _ in read_losses(aside)] == list(range(1, 10))
    assert said["longer alike"].code == 0, said["longer alike"].text[-6000:]
    assert read_losses(aside)[8] == read_losses(folder / "alike")[8], "the step beyond is the same however it is read"


def test_reset_starts_anew_and_keeps_the_old_run(said, folder):
    assert said["reset"].code == 0, said["reset"].text[-6000:]
    assert [step for step, _ in read_losses(folder / "longer")] == [1]
    assert (folder / "longer" / "previous-run-1" / "step-00000008" / "manifest.json").is_file()


def test_a_batch_larger_than_the_corpus_is_an_epoch(said, folder):
    assert said["large batch"].code == 0, said["large batch"].text[-6000:]
    assert "1 updates per epoch" in said["large batch"].text
    assert (
        "--batch-size 64 is more than the 23 clips there are to train on: a batch holds 23" in said["large batch"].text
    )
    story = read_story(folder / "large")
    assert [step for step, _ in story["losses"]] == [1, 2]
    assert [clips for _, clips, _, _ in story["counts"]] == [22, 22], "all but the damaged one"


def test_a_corpus_of_which_nothing_is_left_says_why(said):
    assert said["all dropped"].code != 0
    assert "Traceback" not in said["all dropped"].text
    assert "0 of 25 clips can be used" in said["all dropped"].text
    assert "too_short is below 5 s (--min-clip-seconds)" in said["all dropped"].text


def test_a_model_with_weights_that_are_no_numbers_is_not_trained_from(said, folder):
    assert said["not finite"].code == 2, said["not finite"].text[-6000:]
    assert (
        "gpt.text_embedding.weight holds nan, which no weight is. Give another checkpoint." in said["not finite"].text
    )
    assert not list((folder / "not_finite").glob("step-*"))
