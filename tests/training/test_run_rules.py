"""What a folder with a run in it means for the next start, and what odd corpora and numbers do to a run."""

import json
import shutil

import pytest

from tests.support.tiny_run import TinyRun, run_tiny

# Whole runs; test_resume_rules.py and test_run_folder.py have the rules without one.
pytestmark = pytest.mark.soak

LONGER = ("--grad-accum", "2", "--max-steps", "9", "--validation-interval", "3")


@pytest.fixture
def copy(unbroken, tmp_path):
    return shutil.copytree(unbroken.folder, tmp_path / "copy")


def test_a_finished_run_says_so_and_what_would_change_its_result_is_refused(flags, copy):
    assert "is finished: 8 updates are done" in run_tiny(copy, *flags).text
    changed = run_tiny(copy, *flags, expect=2, **{"training.learning_rate": 0.5})
    assert "training.learning_rate was 0.003, now 0.5" in changed.text
    assert "--lr 0.003" in changed.text
    assert len(changed.losses) == 8


def test_a_run_killed_after_its_last_checkpoint_is_brought_to_its_end(flags, copy, unbroken):
    record = {**unbroken.record, "status": "unfinished", "ending": None}
    (copy / "run.json").write_text(json.dumps(record), encoding="utf-8")
    (copy / "report.html").unlink()
    run = run_tiny(copy, *flags)
    assert "All 8 updates" in run.text
    assert "all updates are done (8 updates)" in run.text
    assert (copy / "report.html").is_file()
    assert run.record["status"] == "finished"
    assert run.story == unbroken.story


def test_a_run_can_be_made_longer_and_read_in_another_way_and_reset(base_flags, copy, unbroken, tmp_path):
    alike = run_tiny(shutil.copytree(copy, tmp_path / "alike"), *base_flags, *LONGER)
    other = run_tiny(copy, *base_flags, *LONGER, **{"data.num_workers": 1, "data.pipeline_buffer_size": 1})
    assert "goes on at step 8 of 9" in other.text
    assert other.losses[:8] == unbroken.losses
    assert other.losses == alike.losses, "the step beyond is the same however it is read"
    anew = run_tiny(copy, *base_flags, "--max-steps", "1", "--reset-training")
    assert [step for step, _ in anew.losses] == [1]
    aside = TinyRun.at(copy / "previous-run-1")
    assert aside.losses == alike.losses
    assert 8 in aside.checkpoints


def test_a_corpus_of_which_nothing_is_left_says_why(base_flags, tmp_path):
    run = run_tiny(tmp_path / "dropped", *base_flags, "--min-clip-seconds", "5", expect=None)
    assert run.code != 0
    assert "Traceback" not in run.text
    assert "0 of 25 clips can be used" in run.text
    assert "too_short is below 5 s (--min-clip-seconds)" in run.text
