"""The processes that judges run in. The only place of this room that starts any."""

from __future__ import annotations

import json
import os
import select
import subprocess
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from myxtts.evaluation.errors import JudgeFailedError, JudgeRequestError
from myxtts.processes import end_child, read_end

START_SECONDS = 300.0
ANSWER_SECONDS = 300.0
STOP_SECONDS = 10.0
_TOLD_BYTES = 2000
_READ_BYTES = 1 << 16


class JudgeProcess:
    """A started `judge_worker`, by the Python that has the judge's package."""

    def __init__(self, python: str | Path, name: str):
        self.name = name
        worker = Path(__file__).with_name("judge_worker.py")
        self._log = tempfile.TemporaryFile()  # noqa: SIM115  closed by `close`
        self._unread = b""
        try:
            self._process = subprocess.Popen(
                [str(python), str(worker), name],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=self._log,
                bufsize=0,
                # Ctrl-C is ours to answer: the judge ends when we close its input.
                start_new_session=True,
            )
        except OSError as error:
            self._log.close()
            raise JudgeRequestError(
                f"The judge {name} must be run by a Python, but {python} cannot be started: {error.strerror}. Give one with "
                "--judge-python."
            ) from None

    def read_greeting(self) -> dict[str, Any]:
        """The first line: `ready`, or what is `missing`."""
        return self._read(START_SECONDS)

    def ask(self, question: Mapping[str, Any]) -> dict[str, Any]:
        """The answer to a question. Raises `JudgeFailedError` where there is none."""
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(json.dumps(question).encode() + b"\n")
        except BrokenPipeError:
            raise self._explain("is no longer there") from None
        return self._read(ANSWER_SECONDS)

    def close(self) -> None:
        """Ends the process."""
        end_child(self._process, STOP_SECONDS)
        self._log.close()

    def _read(self, seconds: float) -> dict[str, Any]:
        assert self._process.stdout is not None
        descriptor, deadline = self._process.stdout.fileno(), time.monotonic() + seconds
        while b"\n" not in self._unread:
            ready, _, _ = select.select([descriptor], [], [], max(0.0, deadline - time.monotonic()))
            if not ready:
                self._process.kill()
                raise self._explain(f"gave no answer within {seconds:g} s")
            fresh = os.read(descriptor, _READ_BYTES)
            if not fresh:
                raise self._explain("ended without an answer")
            self._unread += fresh
        line, _, self._unread = self._unread.partition(b"\n")
        answer: dict[str, Any] = json.loads(line)
        return answer

    def _explain(self, what: str) -> JudgeFailedError:
        told = read_end(self._log.fileno(), _TOLD_BYTES)
        last = f" Its last words: {told}" if told else ""
        return JudgeFailedError(f"The judge {self.name} {what}.{last}")


def run_command(words: Sequence[str]) -> str:
    """What a command prints. Raises `JudgeFailedError` where it fails."""
    try:
        result = subprocess.run(
            words, capture_output=True, text=True, errors="replace", stdin=subprocess.DEVNULL, timeout=ANSWER_SECONDS
        )
    except subprocess.TimeoutExpired:
        raise JudgeFailedError(f"`{words[0]}` gave no answer within {ANSWER_SECONDS:g} s.") from None
    except OSError as error:
        raise JudgeFailedError(f"`{words[0]}` cannot be run: {error.strerror}.") from None
    if result.returncode:
        told = result.stderr.strip()[-_TOLD_BYTES:]
        raise JudgeFailedError(f"`{words[0]}` ended with code {result.returncode}. Its last words: {told}")
    return result.stdout
