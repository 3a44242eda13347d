"""Some processes that stand and fall together, with what they say on one screen. The only owner of processes in this room."""

from __future__ import annotations

import os
import selectors
import signal
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from types import FrameType

GRACE_S = 60.0
"""For the others to end by themselves after one has: a worker that has lost another one closes what it has open."""
KILL_S = 20.0
"""From asking a process to end to killing it."""
_LOOK_S = 0.2
_READ_BYTES = 1 << 16


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

    SIGINT and SIGTERM are given on to all of them, once each; they have sessions of their own, so a terminal's Ctrl-C does not reach
    them by itself.

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
        return [member.process.wait() for member in self._members]

    def _start(self, index: int, command: Command, selector: selectors.BaseSelector) -> None:
        process = subprocess.Popen(
            list(command.words),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            env=dict(command.environ),
            start_new_session=True,
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
            if ending_at is None and self._has_failed():
                ending_at = now + self._grace_s
            if ending_at is not None and now >= ending_at and killing_at is None:
                killing_at = now + self._kill_s
                self._send(signal.SIGTERM)
            if killing_at is not None and now >= killing_at:
                return

    def _has_failed(self) -> bool:
        return any(member.process.poll() for member in self._members)

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
        before = {number: signal.signal(number, self._note) for number in (signal.SIGINT, signal.SIGTERM)}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)

    def _note(self, number: int, frame: FrameType | None) -> None:
        # Ctrl-C twice: whoever does not end when asked is killed.
        self._has_repeated = self._asked is not None and number == signal.SIGINT
        self._asked = signal.Signals(number)
