import errno
import os

import pytest

from myxtts.errors import MachineError, ReadingError
from tests.data.reading import make_engine
from tests.data.test_loading import WIDTH, describe
from tests.support.shared_files import find_shared


@pytest.fixture(scope="module")
def files():
    folder = find_shared("data", "ljspeech_mini", "wavs")
    return [describe(path) for path in sorted(folder.iterdir())[:12]]


@pytest.mark.usefixtures("leaves_nothing")
def test_processes_that_die_whatever_they_do_are_an_error_and_no_clip_is_blamed(files, tmp_path, monkeypatch):
    (tmp_path / "sitecustomize.py").write_text("import os\nos.kill(os.getpid(), 9)\n")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    with make_engine("1 worker") as engine:
        load = engine.start(files, WIDTH)
        with pytest.raises(ReadingError, match="20 worker processes in a row died of signal 9"):
            engine.finish(load)
        assert load.failures == {}


def test_a_machine_without_memory_says_so(files, monkeypatch):
    def refuse(*arguments):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "posix_fallocate", refuse)
    told = r"batch 1 of 8 .* Lower --buffer-size"
    with make_engine("1 worker") as engine, pytest.raises(MachineError, match=told):
        engine.start(files, WIDTH)
