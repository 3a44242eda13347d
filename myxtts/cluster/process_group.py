"""Some processes that stand and fall together, with what they say on one screen. The only owner of processes in this room."""

from __future__ import annotations

import ctypes
import os
import selectors
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from types import FrameType

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
