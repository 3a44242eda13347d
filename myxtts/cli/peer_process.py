"""A peer's Python that does our pieces of work beside us, one at a time. The only place of this room that starts a
process."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from myxtts.devices.child_processes import end_child
from myxtts.errors import MachineError

STOP_SECONDS = 30.0


class PeerError(MachineError):
    """The peer's Python did not do what it was asked."""


class Peer:
    """A started peer, as a context manager.

    Args:
        command: what to run. It must answer each line of JSON on its standard input with one on its standard output;
            an answer with `error` is a refusal.
        environment: added to ours.
    """

    def __init__(self, command: Sequence[str | Path], environment: Mapping[str, str]):
        self._command = [str(word) for word in command]
        try:
            self._process = subprocess.Popen(
                self._command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                env={**os.environ, **environment},
                text=True,
                encoding="utf-8",
            )
        except OSError as error:
            raise PeerError(
                f"The peer's Python must be a program, but {self._command[0]} cannot be run: {error.strerror}."
            ) from None

    def __enter__(self) -> Peer:
        return self

    def __exit__(self, *failure: object) -> None:
        if failure[0] is not None:
            self._process.kill()
        end_child(self._process, STOP_SECONDS)

    def ask(self, question: Mapping[str, Any]) -> dict[str, Any]:
        """The peer's answer; waits for it as long as it takes."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        try:
            self._process.stdin.write(json.dumps(question) + "\n")
            self._process.stdin.flush()
            line = self._process.stdout.readline()
        except BrokenPipeError:
            line = ""
        if not line:
            raise PeerError(
                f"The peer ended with code {self._process.wait()} when asked for {dict(question)}; what it said is above. "
                f"It was started as: {' '.join(self._command)}"
            )
        answer: dict[str, Any] = json.loads(line)
        if "error" in answer:
            raise PeerError(f"The peer cannot do this: {answer['error']}")
        return answer
