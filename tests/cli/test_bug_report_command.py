"""`myxtts bug-report`: what is in the file, and what is not."""

import json

import pytest

from myxtts.cli.runs import run_bug_report
from myxtts.errors import CommandLineError
from myxtts.monitoring.metrics import MetricsLog
from tests.monitoring.runs import make_rows
from tests.support.processes import clean_environ, run_python

TEXT = "Nobody may read this sentence."
BROKEN_TEXT = "a line of secrets without a bar"
LOG = f"""2026-01-01 10:00:00,000 INFO Data: 3 clips
2026-01-01 10:00:01,000 ERROR WorkFailedError: the first one
Traceback (most recent call last):
  File "old.py", line 1
2026-01-01 10:00:02,000 WARNING clip_1.wav is replaced: {TEXT}
2026-01-01 10:00:03,000 ERROR ValueError: the last one, at {TEXT!r}
Traceback (most recent call last):
  File "/users_folder/anna/x.py", line 7, in train
ValueError: the last one
"""


@pytest.fixture
def run(tmp_path):
    """The folder of a run that has failed, with things in it that are nobody's business."""
    folder, corpus = tmp_path / "run", tmp_path / "corpus"
    corpus.mkdir()
    (corpus / "metadata.csv").write_text(f"clip_1|{TEXT}\nclip_2|Another private sentence.\n", encoding="utf-8")
    with MetricsLog(folder / "metrics.jsonl") as log:
        for row in make_rows(100):
            log.write(row)
    record = {
        "format": "myxtts run", "version": 1, "status": "unfinished", "stage": "gpt", "ending": None,
        "config": {"data": {"train_data": str(corpus), "batch_size": 8}}, "environment": {"tensorflow": "2.21.0"},
        "starts": [{"time": "2026-01-01T10:00:00", "step": 0, "end_step": 9, "command": ["myxtts", "train", "--api-key", "abcdefgh"]}],
    }  # fmt: skip
    (folder / "run.json").write_text(json.dumps(record), encoding="utf-8")
    (folder / "run.log").write_text(LOG, encoding="utf-8")
    drops = {
        "lines": 5, "kept": 1, "kept_seconds": 2.0,
        "dropped": {
            "too_short": [{"file": "wavs/clip_3.wav", "where": "metadata.csv:3", "detail": "0.2 s"}],
            "unknown_characters": [{"file": "wavs/clip_4.wav", "where": "metadata.csv:4", "detail": f"in {TEXT}"}],
            "malformed_line": [{"file": BROKEN_TEXT, "where": "metadata.csv:5", "detail": BROKEN_TEXT}],
        },
        "replaced": [{"reason": "corrupt", "file": "wavs/clip_2.wav", "where": "step 4", "detail": "cut off"}],
    }  # fmt: skip
    (folder / "drop_report.json").write_text(json.dumps(drops), encoding="utf-8")
    return folder


def write_report(*words, **environ):
    result = run_python(["-m", "myxtts.cli.main", "bug-report", *map(str, words)], clean_environ(**environ))
    assert result.returncode == 0, result.stderr
    return result.stdout


def test_the_file_has_what_a_maintainer_asks_for_and_nothing_private(run, tmp_path):
    out = tmp_path / "report.md"
    home = tmp_path / "anna"
    said = write_report(
        run, "--out", out, HOME=str(home), LOGNAME="anna", TF_XLA_FLAGS=f"--dump={home}/x", HF_TOKEN="abc-def-ghi",
        OMP_NUM_THREADS="3",
    )  # fmt: skip
    assert "Nothing was sent anywhere" in said
    assert "Left out: audio" in said
    assert max(map(len, said.splitlines()[1:])) <= 80
    text = out.read_text(encoding="utf-8")
    for wanted in (
        "## Last error\n\n```\n2026-01-01 10:00:03,000 ERROR ValueError: the last one", "in train", "/users_folder/<user>/x.py",
        "- started 2026-01-01T10:00:00 at step 0: `myxtts train --api-key <secret>`", "data.batch_size: 8", "Step time    ",
        "logical cores", "- TensorFlow: 2.", "nvidia-ml-py", "- TF_XLA_FLAGS=--dump=~/x", "- OMP_NUM_THREADS=3",
        "- 1 of 5 clips can be used", "- too_short (1): clip_3.wav (0.2 s)", "- unknown_characters (1): clip_4.wav\n",
        "- malformed_line (1): (a name that is none)", "- corrupt, while training (1): clip_2.wav (cut off)",
        '{"kind": "summary"', "<text of a clip>",
    ):  # fmt: skip
        assert wanted in text, wanted
    for private in (TEXT, "private sentence", BROKEN_TEXT, "abc-def-ghi", "abcdefgh", str(home), "anna"):
        assert private not in text, private
    assert "the first one" not in text.partition("## Run")[0], "only the last error stands at the top"


def test_a_machine_without_a_run_and_without_tensorflow_is_reported(tmp_path):
    code = """
import sys
sys.modules["tensorflow"] = sys.modules["keras"] = None  # what cannot be imported
from myxtts.monitoring import machine_facts
machine_facts.read_tensorflow_build = lambda: None
from myxtts.cli.main import main
sys.exit(main(["bug-report", "--out", sys.argv[1]]))
"""
    out = tmp_path / "report.md"
    result = run_python(["-c", code, str(out)], clean_environ())
    assert result.returncode == 0, result.stderr
    text = out.read_text(encoding="utf-8")
    assert "TensorFlow: not installed" in text
    assert "No run was given" in text


def test_what_is_no_folder_is_refused(tmp_path):
    with pytest.raises(CommandLineError, match="is no folder"):
        run_bug_report([str(tmp_path / "nowhere")], "myxtts bug-report")
