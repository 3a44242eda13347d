import os
import signal
import textwrap

import psutil
import pytest

from myxtts.data.task_processes import CHUNK_ITEMS, Crashed, ProcessTask, run_task
from myxtts.errors import MachineError, ReadingError, UserError

TASKS = """
import os, signal
from myxtts.errors import MachineError, UserError

def make_double(offset=0):
    return lambda item: [2 * item + offset, os.getpid(), os.getsid(0)]

def make_fragile(deadly):
    def work(item):
        if item in deadly:
            os.kill(os.getpid(), signal.SIGSEGV)
        return item
    return work

def make_faulty():
    return lambda item: 1 // item

def make_refusing(kind):
    def work(item):
        print("chatter on stdout")
        raise {"user": UserError, "machine": MachineError}[kind](f"item {item} is refused")
    return work

def make_deadly():
    return lambda item: os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.fixture(autouse=True)
def tasks(tmp_path, monkeypatch):
    (tmp_path / "worker_tasks.py").write_text(textwrap.dedent(TASKS))
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    monkeypatch.syspath_prepend(tmp_path)


@pytest.fixture(autouse=True)
def no_process_is_left_behind():
    yield
    assert psutil.Process().children() == []


def test_every_item_is_done_once_and_elsewhere():
    items = list(range(5 * CHUNK_ITEMS + 7))
    results = dict(run_task(ProcessTask("worker_tasks:make_double", {"offset": 1}), items, 2))
    assert {position: result[0] for position, result in results.items()} == {i: 2 * i + 1 for i in items}
    assert os.getpid() not in {result[1] for result in results.values()}
    assert os.getsid(0) not in {result[2] for result in results.values()}, "Ctrl-C does not reach workers"


def test_no_workers_means_this_process():
    results = list(run_task(ProcessTask("worker_tasks:make_double"), [3, 4], 0))
    assert results == [(0, [6, os.getpid(), os.getsid(0)]), (1, [8, os.getpid(), os.getsid(0)])]


@pytest.mark.parametrize("deadly", [[0], [5, 40], [70]])
def test_an_item_that_kills_its_worker_is_named_and_the_rest_is_done(deadly):
    items = list(range(71))
    results = dict(run_task(ProcessTask("worker_tasks:make_fragile", {"deadly": deadly}), items, 2))
    assert results == {i: Crashed(signal.SIGSEGV) if i in deadly else i for i in items}


def test_workers_that_always_die_are_an_error():
    with pytest.raises(ReadingError, match="died of signal 9"):
        list(run_task(ProcessTask("worker_tasks:make_deadly"), list(range(100)), 1))


def test_a_fault_in_the_work_ends_it_with_the_worker_s_traceback():
    with pytest.raises(ReadingError, match="ZeroDivisionError"):
        list(run_task(ProcessTask("worker_tasks:make_faulty"), [1, 0], 1))


@pytest.mark.parametrize(("kind", "error"), [("user", UserError), ("machine", MachineError)])
def test_errors_on_purpose_keep_their_family_and_words(kind, error):
    with pytest.raises(error, match="item 7 is refused"):
        list(run_task(ProcessTask("worker_tasks:make_refusing", {"kind": kind}), [7], 1))


def test_what_lies_in_the_working_folder_by_chance_is_not_imported(tmp_path, monkeypatch):
    folder = tmp_path / "work"
    folder.mkdir()
    (folder / "selectors.py").write_text("raise RuntimeError('not the selectors of Python')\n")
    monkeypatch.chdir(folder)
    results = dict(run_task(ProcessTask("worker_tasks:make_double"), [4], 1))
    assert results[0][0] == 8
