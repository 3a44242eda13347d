import os
import signal
import subprocess
import sys
import textwrap

import psutil
import pytest

from myxtts.data.errors import WorkerError
from tests.data.reading import make_engine
from tests.data.test_loading import WIDTH, check_rows, describe
from tests.support.shared_files import ROOT, find_shared


@pytest.fixture(scope="module")
def files():
    folder = find_shared("data", "ljspeech_mini", "wavs")
    return [describe(path) for path in sorted(folder.iterdir())[:12]]


@pytest.mark.usefixtures("leaves_nothing")
def test_both_processes_get_work(files):
    with make_engine("2 workers") as engine:
        children = psutil.Process().children()
        before = [child.cpu_times().user for child in children]
        for _ in range(60):
            load = engine.start(files, WIDTH)
            engine.finish(load)
            engine.take(load)
        assert all(child.cpu_times().user > used for child, used in zip(children, before, strict=True))


@pytest.mark.usefixtures("leaves_nothing")
@pytest.mark.parametrize("moment", ["at once", "after a load"])
def test_killed_processes_are_replaced(moment, files):
    with make_engine("2 workers") as engine:
        if moment == "after a load":
            load = engine.start(files, WIDTH)
            engine.finish(load)
            engine.cancel(load)
        old = psutil.Process().children()
        for child in old:
            child.kill()
        load = engine.start(files, WIDTH)
        engine.finish(load)
        assert load.failures == {}
        check_rows(engine.take(load), files)
        assert not set(old) & set(psutil.Process().children())


@pytest.mark.usefixtures("leaves_nothing")
def test_processes_that_die_whatever_they_do_are_an_error_and_no_clip_is_blamed(files, tmp_path, monkeypatch):
    (tmp_path / "sitecustomize.py").write_text("import os\nos.kill(os.getpid(), 9)\n")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    with make_engine("1 worker") as engine:
        load = engine.start(files, WIDTH)
        with pytest.raises(WorkerError, match="20 reader processes in a row died of signal 9"):
            engine.finish(load)
        assert load.failures == {}


@pytest.mark.usefixtures("leaves_nothing")
def test_a_fault_of_ours_in_a_process_comes_with_its_traceback(files, tmp_path, monkeypatch):
    (tmp_path / "sitecustomize.py").write_text(
        "import myxtts.data.clip_loading as m\nm.load_clip = lambda file, row: 1 // 0\n"
    )
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    with make_engine("1 worker") as engine:
        load = engine.start(files, WIDTH)
        with pytest.raises(WorkerError, match="ZeroDivisionError"):
            engine.finish(load)


PROGRAM = """
import os, sys
from tests.data.reading import make_engine
from tests.data.test_loading import WIDTH, describe
engine = make_engine(sys.argv[1])
loads = [engine.start([describe(path)] * 3, WIDTH) for path in sys.argv[2:]]
engine.finish(loads[0])
print(os.getpid(), flush=True)
sys.stdin.read()
raise RuntimeError("on purpose")
"""


@pytest.mark.parametrize(
    ("kind", "end"), [("2 workers", "kill -9"), ("2 workers", "exception"), ("tensorflow", "exception")]
)
def test_a_run_that_ends_without_closing_leaves_no_process(kind, end, files):
    names = [file.path for file in files[:5]]
    with subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(PROGRAM), kind, *names],
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
    assert len(children) == (2 if kind == "2 workers" else 0)
    _, alive = psutil.wait_procs(children, timeout=30)
    assert alive == []
