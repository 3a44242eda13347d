"""`run.log`: what was said, the error that ended a run, and nothing of what came after."""

import logging

import pytest

from myxtts.errors import RunFinishedError, RunFolderError
from myxtts.training.run_log import keep_run_log
from myxtts.training.stopping import StopNow


@pytest.fixture
def logger():
    logger = logging.getLogger("myxtts.some.part")
    package = logging.getLogger("myxtts")
    level = package.level
    package.setLevel(logging.INFO)
    yield logger
    package.setLevel(level)


def test_what_is_logged_within_is_kept_and_what_comes_after_is_not(tmp_path, logger):
    with keep_run_log(tmp_path):
        logger.info("step %d", 7)
    logger.info("afterwards")
    with keep_run_log(tmp_path):
        logger.warning("resumed")
    lines = (tmp_path / "run.log").read_text().splitlines()
    assert [line.partition(",")[2][4:] for line in lines] == ["INFO step 7", "WARNING resumed"]


def test_the_error_that_ends_a_run_is_kept_with_its_traceback_and_goes_on(tmp_path, logger, caplog):
    def fail():
        raise ValueError("not this way")

    with pytest.raises(ValueError, match="not this way"), keep_run_log(tmp_path):
        fail()
    log = (tmp_path / "run.log").read_text()
    assert "ERROR ValueError: not this way" in log
    assert "in fail" in log
    assert caplog.records == [], "shown by the program alone"


@pytest.mark.parametrize("end", [RunFinishedError("finished", "run", 8), StopNow()], ids=["finished", "stopped"])
def test_a_run_that_was_finished_before_or_asked_to_stop_has_not_failed(tmp_path, logger, end):
    with pytest.raises(type(end)), keep_run_log(tmp_path):
        raise end
    assert "ERROR" not in (tmp_path / "run.log").read_text()


def test_a_full_disk_does_not_end_a_run_for_a_line_of_log(tmp_path, logger, capsys):
    (tmp_path / "run.log").symlink_to("/dev/full")
    with keep_run_log(tmp_path):
        logger.info("lost")
    assert capsys.readouterr().err == ""


def test_a_log_that_cannot_be_opened_is_an_error(tmp_path):
    (tmp_path / "run.log").mkdir()
    with pytest.raises(RunFolderError, match=r"run\.log: cannot be written"), keep_run_log(tmp_path):
        pass
