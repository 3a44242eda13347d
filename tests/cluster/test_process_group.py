"""Processes that stand and fall together."""

import os
import signal
import sys

import pytest

from myxtts.cluster.process_group import Command, ProcessGroup

WAIT = "import signal, sys, time\nprint('ready', flush=True)\ntime.sleep(600)\n"
POLITE = (
    "import os, signal, sys, time\nsignal.signal(signal.SIGINT, lambda *_: (os.write(1, b'saved\\n'), os._exit(0)))\n"
    "print('ready', flush=True)\ntime.sleep(600)\n"
)
DEAF = (
    "import signal, time\nsignal.signal(signal.SIGTERM, signal.SIG_IGN)\nprint('ready', flush=True)\ntime.sleep(600)\n"
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


def test_one_that_is_done_lets_the_others_work_on():
    codes, said = run(["pass", "import time; time.sleep(0.5); print('done')"], grace_s=0.05, kill_s=0.05)
    assert codes == [0, 0]
    assert said == [(1, "done")]


def test_an_interrupt_reaches_all_of_them():
    ready = []

    def interrupt(index, line):
        ready.extend([index] if line == "ready" else [])
        if line == "ready" and len(ready) == 2:
            os.kill(os.getpid(), signal.SIGINT)

    codes, said = run([POLITE, POLITE], interrupt)
    assert codes == [0, 0]
    assert [line for _, line in said].count("saved") == 2


def test_a_second_interrupt_kills():
    def interrupt(index, line):
        if line == "ready":
            os.kill(os.getpid(), signal.SIGTERM)
            os.kill(os.getpid(), signal.SIGINT)

    codes, _ = run([DEAF], interrupt)
    assert codes == [-signal.SIGKILL]


def test_handlers_are_given_back():
    before = signal.getsignal(signal.SIGINT)
    run(["pass"])
    assert signal.getsignal(signal.SIGINT) is before
