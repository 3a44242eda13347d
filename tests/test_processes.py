"""Child processes of ours: messages, environment, and their end."""

import contextlib
import json
import os
import socket
import subprocess
import sys
import sysconfig
from pathlib import Path

import psutil
import pytest

from myxtts.processes import MESSAGE_BYTES, ChildConnection, MessageError, PeerGone, make_importable
from tests.support.processes import ROOT, clean_environ


@pytest.fixture
def ends():
    """One end as the trainer uses it, and the bare socket of the other."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with ours, theirs:
        yield ChildConnection(ours, blocking=False), theirs


def test_messages_arrive_one_by_one_and_whole_and_one_that_is_too_long_is_refused(ends):
    trainer, theirs = ends
    producer = ChildConnection(theirs, blocking=True)
    text = "x" * (MESSAGE_BYTES - len(json.dumps({"t": ""}, separators=(",", ":"))))
    messages = [{"event": "a", "text": "سلام \udc80 \n"}, {"event": "b", "list": [1, 2.5, None]}, {}, {"t": text}]
    for message in messages:
        producer.send(message)
    assert [trainer.receive() for _ in messages] == messages
    with pytest.raises(MessageError, match=f"at most {MESSAGE_BYTES} bytes; this one has {MESSAGE_BYTES + 1}"):
        producer.send({"t": text + "x"})
    assert trainer.receive() is None, "nothing of it was sent"


def test_what_was_sent_before_the_death_is_still_read():
    # With orders it never read in its queue, as a killed process leaves them: the kernel then reports a reset first.
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with ours:
        trainer = ChildConnection(ours, blocking=False)
        trainer.send({"order": "never read"})
        theirs.send(b'{"event":"last word"}')
        theirs.close()
        assert trainer.receive() == {"event": "last word"}
        with pytest.raises(PeerGone):
            trainer.receive()


def test_a_peer_that_never_reads_is_an_error_and_not_a_hang(ends):
    trainer, _ = ends

    def send_many():
        for _ in range(10_000):
            trainer.send({"order": "x" * 1000})

    with pytest.raises(MessageError, match="stopped reading"):
        send_many()


def test_a_package_goes_before_the_user_s_own_path_unless_it_is_an_installed_one(tmp_path):
    environment = make_importable({"PYTHONPATH": "/mine", "HOME": "/h"}, tmp_path)
    assert environment == {"PYTHONPATH": f"{tmp_path}{os.pathsep}/mine", "HOME": "/h"}
    assert make_importable({}, tmp_path) == {"PYTHONPATH": str(tmp_path)}
    installed = Path(sysconfig.get_path("purelib"))
    assert make_importable({"PYTHONPATH": "/mine"}, installed) == {"PYTHONPATH": "/mine"}
    assert make_importable({}, installed) == {}


PARENT = """
import time
from myxtts.data.task_processes import ProcessTask, TaskProcess
worker = TaskProcess(ProcessTask("tests.pipeline.tasks:hang_aloud"))
while "here" not in worker.child.read_output():
    time.sleep(0.02)
worker.child.write_stacks()
assert "_hang_natively" in worker.child.read_output()
print(worker.child.pid, flush=True)
time.sleep(600)
"""


def test_a_child_that_hangs_tells_where_and_ends_with_its_parent():
    environ = clean_environ(PYTHONPATH=str(ROOT))
    with subprocess.Popen([sys.executable, "-c", PARENT], stdout=subprocess.PIPE, text=True, env=environ) as parent:
        pid = int(parent.stdout.readline())
        child = psutil.Process(pid)
        parent.kill()
        with contextlib.suppress(psutil.NoSuchProcess):
            child.wait(timeout=60)
    assert not psutil.pid_exists(pid) or child.status() == psutil.STATUS_ZOMBIE
