"""Processes that stand and fall together."""

import os
import signal
import subprocess
import sys
from contextlib import contextmanager

import pytest

from myxtts.cluster.launch import Command, ProcessGroup
from tests.support.processes import ROOT
from tests.support.tiny_run import wait_for

WAIT = "print('ready', flush=True)\nimport time\ntime.sleep(600)\n"
ANSWER = "import os, signal\nsignal.signal(signal.{}, lambda *_: (os.write(1, b'told\\n'), os._exit(0)))\n" + WAIT
DEAF = (
    "import signal\nsignal.signal(signal.SIGTERM, signal.SIG_IGN)\nsignal.signal(signal.SIGINT, signal.SIG_IGN)\n"
    + WAIT
)


def make_command(code):
    return Command([sys.executable, "-c", code], os.environ)


def run(codes, on_line=lambda index, line: None, **limits):
    said = []

    def tell(index, line):
        said.append((index, line))
        on_line(index, line)

    return ProcessGroup([make_command(code) for code in codes], tell, **limits).run(), said


def test_lines_come_with_the_number_of_who_said_them():
    codes, said = run(["print('one\\ntwo', end='')", "import sys; sys.stderr.write('err\\n')"])
    assert codes == [0, 0]
    assert sorted(said) == [(0, "one"), (0, "two"), (1, "err")]


@pytest.mark.parametrize("other", [WAIT, DEAF])
def test_when_one_fails_all_end(other):
    failing = "import sys, time; time.sleep(0.2); sys.exit(3)"
    codes, _ = run([other, failing], grace_s=0.1, kill_s=0.5)
    assert codes[1] == 3
    assert codes[0] in (-signal.SIGTERM, -signal.SIGKILL)


@pytest.mark.parametrize("code", [0, os.EX_TEMPFAIL, 130])
def test_one_that_is_done_or_was_asked_to_stop_lets_the_others_work_on(code):
    ends = f"import sys; sys.exit({code})"
    codes, said = run([ends, "import time; time.sleep(0.5); print('done')"], grace_s=0.05, kill_s=0.05)
    assert codes == [code, 0]
    assert said == [(1, "done")]


def test_an_interrupt_reaches_all_of_them_and_handlers_are_given_back():
    before, ready = signal.getsignal(signal.SIGINT), []

    def interrupt(index, line):
        ready.extend([index] if line == "ready" else [])
        if line == "ready" and len(ready) == 2:
            os.kill(os.getpid(), signal.SIGINT)

    codes, said = run([ANSWER.format("SIGINT")] * 2, interrupt)
    assert codes == [0, 0]
    assert [line for _, line in said].count("told") == 2
    assert signal.getsignal(signal.SIGINT) is before


def test_a_second_interrupt_kills():
    def interrupt(index, line):
        if line == "ready":
            os.kill(os.getpid(), signal.SIGTERM)
            os.kill(os.getpid(), signal.SIGINT)

    codes, _ = run([DEAF], interrupt)
    assert codes == [-signal.SIGKILL]


@contextmanager
def answering_hangups(answer):
    """As this process would answer by itself."""
    before = signal.signal(signal.SIGHUP, answer)
    try:
        yield
        assert signal.getsignal(signal.SIGHUP) is answer
    finally:
        signal.signal(signal.SIGHUP, before)


def test_a_terminal_that_is_closed_asks_them_to_end():
    with answering_hangups(lambda *_: pytest.fail("it must be noted and given on")):
        codes, said = run(
            [ANSWER.format("SIGTERM")], lambda index, line: line == "ready" and os.kill(os.getpid(), signal.SIGHUP)
        )
    assert codes == [0]
    assert said[-1] == (0, "told")


def test_whoever_was_started_to_outlive_its_terminal_does():
    with answering_hangups(signal.SIG_IGN):
        codes, _ = run(["print('ready', flush=True)"], lambda index, line: os.kill(os.getpid(), signal.SIGHUP))
    assert codes == [0]


LAUNCHER = """
import os, signal, sys
from myxtts.cluster.launch import Command, ProcessGroup
command = Command([sys.executable, "-c", sys.argv[1]], os.environ)
ProcessGroup([command], lambda index, line: os.kill(os.getpid(), signal.SIGKILL)).run()
"""


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux tells processes of their parent's death")
def test_nobody_outlives_a_launcher_that_is_killed(tmp_path):
    note = tmp_path / "note"
    orphan = ANSWER.format("SIGTERM").replace("os.write(1, b'told\\n')", f"open({str(note)!r}, 'w').close()")
    done = subprocess.run([sys.executable, "-c", LAUNCHER, orphan], cwd=ROOT, timeout=60)
    assert done.returncode == -signal.SIGKILL
    wait_for(note.exists, lambda: True, "the process was not told that its launcher died")


def test_failures_are_listed_in_the_order_in_which_they_came(tmp_path):
    first = f"import os, sys\nopen('{tmp_path}/new', 'w').write(str(os.getpid()))\nos.rename('{tmp_path}/new', '{tmp_path}/id')\nsys.exit(4)"
    # It ends when the other one has been seen to have ended.
    second = (
        f"import os, sys, time\nwhile not os.path.exists('{tmp_path}/id'): time.sleep(0.01)\n"
        f"while os.path.exists('/proc/' + open('{tmp_path}/id').read()): time.sleep(0.01)\nsys.exit(3)"
    )
    group = ProcessGroup([make_command(second), make_command(first)], lambda index, line: None)
    assert group.run() == [3, 4]
    assert group.failed == [1, 0]
