"""Several workers on this machine: their processes and a network of their own."""

from __future__ import annotations

import ctypes
import fcntl
import os
import selectors
import signal
import socket
import struct
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType

from myxtts.errors import ClusterError

GRACE_S = 60.0
"""For the others to end by themselves after one has: a worker that has lost another one closes what it has open."""
STOPPED = (os.EX_TEMPFAIL, 128 + signal.SIGINT)
"""Exit codes of processes that were asked to stop and did. The others were asked too, and one of them may still be saving."""
KILL_S = 20.0
"""From asking a process to end to killing it."""
_LOOK_S = 0.2
_READ_BYTES = 1 << 16
_SET_DEATH_SIGNAL = 1
"""PR_SET_PDEATHSIG of Linux. It follows the thread that started the process, so that must be one that stays."""


@dataclass(frozen=True)
class Command:
    """A process to start."""

    words: Sequence[str]
    environ: Mapping[str, str]


@dataclass(eq=False)
class _Member:
    index: int
    process: subprocess.Popen[bytes]
    unfinished: bytearray = field(default_factory=bytearray)
    """The beginning of a line."""


class ProcessGroup:
    """Starts processes, gives out what they say line by line, and ends all when one ends badly.

    SIGINT and SIGTERM are given on to all of them, once each, and SIGHUP as SIGTERM; they have sessions of their own, so a terminal's
    Ctrl-C does not reach them by itself. If this process is killed, the kernel sends them SIGTERM (Linux).

    Args:
        commands: one for each process.
        tell: is given a process's number and a line of it.
    """

    def __init__(
        self,
        commands: Sequence[Command],
        tell: Callable[[int, str], None],
        *,
        grace_s: float = GRACE_S,
        kill_s: float = KILL_S,
    ):
        self._commands = commands
        self._tell = tell
        self._grace_s = grace_s
        self._kill_s = kill_s
        self.failed: list[int] = []
        """The numbers of the processes that ended badly, in the order in which they did."""
        self._members: list[_Member] = []
        self._asked: signal.Signals | None = None
        self._has_repeated = False

    def run(self) -> list[int]:
        """The exit codes of all processes, negative for signals. None of them is left when it returns or raises."""
        with selectors.DefaultSelector() as selector, self._forwarding():
            try:
                for index, command in enumerate(self._commands):
                    self._start(index, command, selector)
                self._watch(selector)
            finally:
                self._kill()
        self._note_failures()
        return [member.process.wait() for member in self._members]

    def _start(self, index: int, command: Command, selector: selectors.BaseSelector) -> None:
        process = subprocess.Popen(
            list(command.words),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            env=dict(command.environ),
            start_new_session=True,
            # Between fork and exec nothing is safe but a system call, and it makes no more than that.
            preexec_fn=_make_death_signal(os.getpid()),
        )
        member = _Member(index, process)
        self._members.append(member)
        assert process.stdout is not None
        os.set_blocking(process.stdout.fileno(), False)
        selector.register(process.stdout, selectors.EVENT_READ, member)

    def _watch(self, selector: selectors.BaseSelector) -> None:
        ending_at: float | None = None
        killing_at: float | None = None
        given: set[signal.Signals] = set()
        while selector.get_map():
            for key, _ in selector.select(_LOOK_S):
                self._read(key.data, selector)
            now = time.monotonic()
            if self._asked is not None and self._asked not in given:
                given.add(self._asked)
                self._send(self._asked)
            if self._has_repeated:
                return
            self._note_failures()
            if ending_at is None and self._has_broken():
                ending_at = now + self._grace_s
            if ending_at is not None and now >= ending_at and killing_at is None:
                killing_at = now + self._kill_s
                self._send(signal.SIGTERM)
            if killing_at is not None and now >= killing_at:
                return

    def _has_broken(self) -> bool:
        return any(self._members[index].process.returncode not in STOPPED for index in self.failed)

    def _note_failures(self) -> None:
        codes = {member.index: member.process.poll() or 0 for member in self._members}
        # Of those that are found at the same look, one that was killed is the cause, and one that gave up because of it is not.
        self.failed += sorted(
            (index for index in codes if codes[index] and index not in self.failed), key=codes.__getitem__
        )

    def _read(self, member: _Member, selector: selectors.BaseSelector) -> None:
        assert member.process.stdout is not None
        data = os.read(member.process.stdout.fileno(), _READ_BYTES)
        member.unfinished += data
        *lines, rest = bytes(member.unfinished).split(b"\n")
        member.unfinished = bytearray(rest)
        if not data:
            selector.unregister(member.process.stdout)
            member.process.stdout.close()
            lines += [rest] if rest else []
        for line in lines:
            self._tell(member.index, line.decode("utf-8", "replace"))

    def _send(self, number: signal.Signals) -> None:
        for member in self._members:
            if member.process.poll() is None:
                member.process.send_signal(number)

    def _kill(self) -> None:
        for member in self._members:
            if member.process.poll() is None:
                member.process.kill()
                member.process.wait()
            if member.process.stdout is not None:
                member.process.stdout.close()

    @contextmanager
    def _forwarding(self) -> Iterator[None]:
        numbers = [signal.SIGINT, signal.SIGTERM]
        # Whoever started this with `nohup` wants it to outlive the terminal.
        numbers += [] if signal.getsignal(signal.SIGHUP) is signal.SIG_IGN else [signal.SIGHUP]
        before = {number: signal.signal(number, self._note) for number in numbers}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)

    def _note(self, number: int, frame: FrameType | None) -> None:
        # Ctrl-C twice: whoever does not end when asked is killed.
        self._has_repeated = self._asked is not None and number == signal.SIGINT
        self._asked = signal.SIGTERM if number == signal.SIGHUP else signal.Signals(number)


def _make_death_signal(parent: int) -> Callable[[], None] | None:
    """What a process does before its program begins, so that it is asked to end when its parent dies."""
    if sys.platform != "linux":
        return None
    prctl = ctypes.CDLL(None).prctl

    def ask() -> None:
        prctl(_SET_DEATH_SIGNAL, signal.SIGTERM)
        # The parent may have died before it was asked for.
        if os.getppid() != parent:
            os._exit(1)

    return ask


_NEW_NETWORK, _NEW_USER = 0x40000000, 0x10000000
_READ_FLAGS, _SET_FLAGS = 0x8913, 0x8914
_IS_UP = 0x1
_INTERFACE = struct.Struct("16sH22x")


def enter_private_network() -> None:
    """Leaves the machine's network for a new one that has only loopback. Cannot be undone. For a process with one thread.

    Raises `ClusterError` where the kernel does not allow it, as in most containers.
    """
    user, group = os.getuid(), os.getgid()
    try:
        if user == 0:
            _unshare(_NEW_NETWORK)
        else:
            _unshare(_NEW_NETWORK | _NEW_USER)
            # The same user inside as outside: files belong to whom they belonged to.
            Path("/proc/self/setgroups").write_text("deny")
            Path("/proc/self/uid_map").write_text(f"{user} {user} 1")
            Path("/proc/self/gid_map").write_text(f"{group} {group} 1")
        _raise_loopback()
    except OSError as error:
        raise ClusterError(
            f"The workers cannot have a network of their own here ({error.strerror}), and on this machine's, whoever has a login here "
            "can reach TensorFlow's ports, which have no password. Where only you have one, as in a container, add --open-ports."
        ) from error


def _unshare(flags: int) -> None:
    # `os.unshare` comes with Python 3.12.
    if ctypes.CDLL(None, use_errno=True).unshare(flags) != 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))


def _raise_loopback() -> None:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as end:
        asked = fcntl.ioctl(end, _READ_FLAGS, _INTERFACE.pack(b"lo", 0))
        name, flags = _INTERFACE.unpack(asked)
        fcntl.ioctl(end, _SET_FLAGS, _INTERFACE.pack(name, flags | _IS_UP))


LOOPBACK = "127.0.0.1"


def make_cluster_file(workers: int) -> str:
    """The text of a cluster file with free ports of loopback."""
    with ExitStack() as stack:
        # All at once, so that none is given twice.
        ends = [stack.enter_context(socket.create_server((LOOPBACK, 0))) for _ in range(workers + 1)]
        control, *ports = (end.getsockname()[1] for end in ends)
    addresses = ", ".join(f"{LOOPBACK}:{port}" for port in ports)
    return f"workers: [{addresses}]\ncontrol: {LOOPBACK}:{control}\n"
