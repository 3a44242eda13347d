import errno
import gc
import os
import signal
import subprocess
import sys
import textwrap

import psutil
import pytest

from myxtts.data.loaders import MOST_LEASES, SlotMemory
from myxtts.errors import MachineError, ReadingError
from tests.data.reading import make_engine
from tests.data.test_loading import WIDTH, describe
from tests.support.shared_files import ROOT, find_shared


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


PROGRAM = """
import os, sys
from tests.data.reading import make_engine
from tests.data.test_loading import WIDTH, describe
engine = make_engine("2 workers")
loads = [engine.start([describe(path)] * 3, WIDTH) for path in sys.argv[1:]]
engine.finish(loads[0])
print(os.getpid(), flush=True)
sys.stdin.read()
raise RuntimeError("on purpose")
"""


@pytest.mark.parametrize("end", ["kill -9", "exception"])
def test_a_run_that_ends_without_closing_leaves_no_process(end, files):
    names = [file.path for file in files[:5]]
    with subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(PROGRAM), *names],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, cwd=ROOT,
    ) as program:  # fmt: skip
        assert program.stdin is not None
        assert program.stdout is not None
        program.stdout.readline()
        children = psutil.Process(program.pid).children()
        if end == "kill -9":
            os.kill(program.pid, signal.SIGKILL)
        program.stdin.close()
        program.wait(60)
    assert len(children) == 2
    _, alive = psutil.wait_procs(children, timeout=30)
    assert alive == []


@pytest.fixture
def memory():
    memory = SlotMemory(3, 5000)
    yield memory
    memory.close()


def test_a_slot_comes_back_when_nobody_refers_to_it(memory):
    slot = memory.acquire()
    batch = memory.hand_out(slot, 5, 1000)
    part = batch[1:3, :10].T
    del batch
    assert memory.acquire() != slot
    del part
    assert memory.acquire() == slot


def test_who_keeps_many_gets_copies_and_never_takes_a_slot_from_the_readers(memory):
    kept = []
    for number in range(10):
        slot = memory.acquire()
        memory.view(slot, 5, 1000)[:] = number
        kept.append(memory.hand_out(slot, 5, 1000))
    assert [batch[0, 0] for batch in kept] == list(range(10))
    assert len({memory.acquire() for _ in range(3)}) == 3
    assert sum(batch.base is not None for batch in kept) == MOST_LEASES


def test_what_is_kept_outlives_the_memory_and_then_all_of_it_goes():
    before = psutil.Process().num_fds()
    memory = SlotMemory(2, 5000)
    slot = memory.acquire()
    memory.view(slot, 1, 5000)[:] = 7
    batch = memory.hand_out(slot, 1, 5000)
    memory.close()
    assert batch[0, -1] == 7
    del batch
    gc.collect()
    assert psutil.Process().num_fds() == before


def test_a_machine_without_memory_says_so(memory, monkeypatch):
    def refuse(*arguments):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "posix_fallocate", refuse)
    with pytest.raises(MachineError, match=r"batch 1 of 5 .* Lower --buffer-size"):
        memory.acquire()
