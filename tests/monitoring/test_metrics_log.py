import json
import math
import os
import re
import signal
import subprocess
import sys

import pytest

from myxtts.errors import MachineError, NotARunError
from myxtts.monitoring.metrics import EventRow, ValidationRow, open_metrics_log, read_metrics
from tests.monitoring.runs import make_rows, make_run_row, make_train_row
from tests.support.processes import run_code


@pytest.fixture
def path(tmp_path):
    return tmp_path / "run" / "metrics.jsonl"


def write_rows(path, rows):
    log, _ = open_metrics_log(path)
    with log:
        for row in rows:
            log.write(row)


def resume(path, step, **more):
    """The time that was lost."""
    log, lost_s = open_metrics_log(path, resumed_step=step, **more)
    log.close()
    return lost_s


def test_every_kind_of_row_comes_back_as_it_was(path):
    rows = [*make_rows(), make_train_row(10, flow=None, clips_per_s=None, learning_rate=None)]
    assert {row.kind for row in rows} == {"run", "train", "validation", "event", "summary", "machine"}
    write_rows(path, rows)
    assert read_metrics(path).rows == tuple(rows)
    assert read_metrics(path).unreadable == 0
    # A run that starts anew begins with an empty file.
    write_rows(path, [])
    assert path.read_bytes() == b""


def test_each_line_is_strict_json_even_when_a_loss_is_not_finite(path):
    write_rows(path, [make_train_row(10, losses=(1.0, math.nan, math.inf), scalars={"grad_norm": -math.inf})])

    def refuse(word):
        raise AssertionError(word)

    assert json.loads(path.read_text(), parse_constant=refuse)["losses"] == [1.0, "nan", "inf"]
    (row,) = read_metrics(path).rows
    assert math.isnan(row.losses[1])
    assert (row.losses[2], row.scalars) == (math.inf, {"grad_norm": -math.inf})
    assert math.isnan(row.loss)


@pytest.mark.parametrize(
    "number", ["Infinity", "1e999", "1e308", "9" * 5000, '"many"', "[]", "null"], ids=lambda text: text[:8]
)
def test_a_row_with_numbers_that_no_run_has_is_no_row(path, number):
    write_rows(path, [make_run_row(), make_train_row(10), make_train_row(20)])
    start, good, bad = path.read_text().splitlines()
    path.write_text("\n".join([start, re.sub(r"(?<=[:\[,])\s*-?\d[\d.e+-]*", number, bad), good, ""]))
    metrics = read_metrics(path)
    assert ([row.step for row in metrics.rows], metrics.unreadable) == ([0, 10], 1)


def test_a_row_survives_a_kill_right_after_it_was_written(path):
    code = f"""
import os, pathlib, signal
from myxtts.monitoring.metrics import MetricsLog
from myxtts.monitoring.metrics import EventRow
log = MetricsLog(pathlib.Path({str(path)!r}))
log.write(EventRow(time_s=1.0, step=3, name="checkpoint", text="saved"))
os.kill(os.getpid(), signal.SIGKILL)
"""
    ended = subprocess.run([sys.executable, "-c", code], check=False)
    assert ended.returncode == -signal.SIGKILL
    assert read_metrics(path).rows == (EventRow(time_s=1.0, step=3, name="checkpoint", text="saved"),)


def test_resume_cuts_rows_after_the_step_and_tells_the_time_they_had_cost(path):
    rows = [make_run_row(), *(make_train_row(step) for step in (10, 20))]
    # What a session lost whose start is cut is not forgotten.
    write_rows(path, [*rows, make_train_row(30), make_run_row(35, lost_s=7.0), make_train_row(40)])
    assert resume(path, 20) == 27.0
    assert read_metrics(path).rows == tuple(rows)
    before = os.stat(path).st_ino
    assert resume(path, 20) == 0.0
    assert os.stat(path).st_ino == before, "nothing was to be cut"


def test_a_validation_that_is_to_be_done_again_is_cut(path):
    rows = [make_train_row(10), ValidationRow(time_s=1.0, step=10, loss=2.0)]
    write_rows(path, rows)
    resume(path, 10)
    assert read_metrics(path).rows == tuple(rows)
    resume(path, 10, is_validated=False)
    assert read_metrics(path).rows == tuple(rows[:1])


@pytest.mark.parametrize("keep", [1, 20, -1])
def test_a_torn_last_line_is_repaired_on_resume(path, keep, caplog):
    write_rows(path, [make_train_row(10)])
    whole = path.read_bytes()
    write_rows(path, [make_train_row(10), make_train_row(20)])
    path.write_bytes(whole + path.read_bytes()[len(whole) :][:keep])
    assert read_metrics(path).unreadable == 1
    resume(path, 20)
    assert "1 unreadable lines were removed" in caplog.text
    assert path.read_bytes() == whole


def test_a_cut_that_fails_leaves_the_old_file(path, monkeypatch):
    write_rows(path, [make_train_row(10), make_train_row(20)])
    before = path.read_bytes()

    def fail(descriptor):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", fail)
    with pytest.raises(MachineError, match="disk is full"):
        resume(path, 10)
    assert path.read_bytes() == before


def test_a_full_disk_is_an_error_and_leaves_no_part_of_the_row(path):
    write_rows(path, [make_train_row(10)])
    before = path.read_bytes()
    code = f"""
import pathlib, resource, signal
from myxtts.files import WriteError
from myxtts.monitoring.metrics import MetricsLog
from tests.monitoring.runs import make_train_row
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
limit = {len(before)} + 50
resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))
log = MetricsLog(pathlib.Path({str(path)!r}))
try:
    log.write(make_train_row(20))
except WriteError as error:
    report(str(error))
"""
    assert "could not be written" in run_code(code)
    assert path.read_bytes() == before


def test_reading_what_is_no_metrics_file_says_so(tmp_path):
    with pytest.raises(NotARunError, match="there is no such file"):
        read_metrics(tmp_path / "metrics.jsonl")
    (tmp_path / "metrics.jsonl").write_text('{"kind": "dance"}\nwords\n')
    with pytest.raises(NotARunError, match="no rows"):
        read_metrics(tmp_path / "metrics.jsonl")
