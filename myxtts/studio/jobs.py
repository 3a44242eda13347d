"""Commands of ours that go on by themselves, each in a session of its own, and one that speaks. This room's only processes.

What is known of a command stands in two files, so a studio that was started again finds it: its record and what it says.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import secrets
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import psutil

from myxtts.devices.machine import VISIBLE_DEVICES
from myxtts.errors import MachineError
from myxtts.files import FileError, MissingFileError, open_file, open_file_atomically, read_json
from myxtts.processes import make_importable, read_end

LOG_BYTES = 8000
"""Of what a command said last, shown where it failed."""
SLOWEST_START_S = 300.0
"""Until a model speaks: TensorFlow is imported and the model compiled."""
STOP_S = 20.0
_TIED = "from myxtts.processes import die_with_parent; die_with_parent(0); from myxtts.cli.main import main; raise SystemExit(main())"
"""A command that ends with the process at the other end of its standard input, however that ends."""


class JobError(MachineError):
    """A command cannot be started: one of its name still goes on, or the machine refuses."""


@dataclass(frozen=True)
class JobRecord:
    """A command that was started: its words behind `myxtts`, and the process by number and moment of birth."""

    words: tuple[str, ...]
    pid: int
    born_s: float
    started_s: float
    is_stopped: bool = False
    """Whether it was asked to end."""
    card: str = ""
    """The one GPU that it sees; all of them without a number."""


class Jobs:
    """The commands of a workspace, by name."""

    def __init__(self, folder: Path):
        self._folder = folder
        self._children: dict[str, subprocess.Popen[bytes]] = {}

    def start(self, name: str, words: Sequence[str], folder: Path | None = None, card: str = "") -> None:
        """Starts `myxtts WORDS` in a folder, or in the workspace, with one card in sight or all. It goes on when this process ends."""
        if self.is_running(name):
            raise JobError(f"`myxtts {words[0]}` for {name} still goes on. Wait for it, or stop it.")
        self._folder.mkdir(parents=True, exist_ok=True)
        with open(self._folder / f"{name}.log", "wb") as log:
            child = subprocess.Popen(
                [sys.executable, "-P", "-m", "myxtts.cli.main", *words],
                stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.STDOUT, start_new_session=True, cwd=folder or self._folder.parent,
                env={**make_importable(os.environ), "PYTHONUNBUFFERED": "1", **show_card(card)},
            )  # fmt: skip
        self._children[name] = child
        record = JobRecord(tuple(words), child.pid, psutil.Process(child.pid).create_time(), time.time(), card=card)
        try:
            self._write(name, record)
        except BaseException:
            # Nobody would know of it after this process.
            child.terminate()
            raise

    def _write(self, name: str, record: JobRecord) -> None:
        with open_file_atomically(self._folder / f"{name}.json") as file:
            file.write(json.dumps(asdict(record), ensure_ascii=False).encode())

    def find(self, name: str) -> JobRecord | None:
        """What was started last under a name."""
        try:
            return read_json(self._folder / f"{name}.json", JobRecord)
        except MissingFileError:
            return None
        except FileError as error:
            raise JobError(f"{error} Remove it: it only says which process was started.") from None

    def is_running(self, name: str) -> bool:
        if (child := self._children.get(name)) is not None:
            # Who is not asked for would stay as a zombie.
            return child.poll() is None
        return self._find_process(name) is not None

    def read_code(self, name: str) -> int | None:
        """The exit code of a command that has ended; None where it goes on, or ended while no studio was there."""
        child = self._children.get(name)
        return None if child is None else child.poll()

    def stop(self, name: str) -> None:
        """Asks a command to end in order."""
        if (process := self._find_process(name)) is not None:
            # It ends although the disk may be too full to note that.
            with contextlib.suppress(psutil.NoSuchProcess):
                process.terminate()
            self.note_stop(name)

    def note_stop(self, name: str) -> None:
        """Keeps that a command was asked to end, for whoever wonders why it did."""
        if (record := self.find(name)) is not None:
            self._write(name, replace(record, is_stopped=True))

    def read_log(self, name: str, most_bytes: int = LOG_BYTES) -> str:
        """The end of what a command has said; lines that were drawn over each other as the last of them."""
        return read_tail(self._folder / f"{name}.log", most_bytes)

    def _find_process(self, name: str) -> psutil.Process | None:
        record = self.find(name)
        if record is None:
            return None
        with contextlib.suppress(psutil.NoSuchProcess):
            process = psutil.Process(record.pid)
            # Another process may have its number by now.
            if process.create_time() == record.born_s and process.status() != psutil.STATUS_ZOMBIE:
                return process
        return None


def show_card(card: str) -> dict[str, str]:
    """What a process needs in its environment to see one card alone."""
    return {VISIBLE_DEVICES: card} if card else {}


def read_environ(pid: int) -> dict[str, str]:
    """The environment that a process of ours was started with; our own where it has gone."""
    try:
        return psutil.Process(pid).environ()
    except psutil.Error:
        return dict(os.environ)


async def ask_command(words: Sequence[str], card: str = "") -> tuple[int, str]:
    """The exit code of a short command, and what it has said: its answer, or else its error."""
    child = await asyncio.create_subprocess_exec(
        sys.executable, "-P", "-m", "myxtts.cli.main", *words,
        stdin=asyncio.subprocess.DEVNULL, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE,
        env={**make_importable(os.environ), **show_card(card)},
    )  # fmt: skip
    try:
        async with asyncio.timeout(SLOWEST_START_S):
            answer, told = await child.communicate()
    except BaseException:
        child.kill()
        raise
    code = child.returncode or 0
    return code, (answer if code == 0 else told).decode("utf-8", "replace").strip()


def read_tail(path: Path, most_bytes: int) -> str:
    """The last lines of a text that somebody may be writing; nothing where there is none."""
    try:
        with open_file(path) as file:
            text = read_end(file.fileno(), most_bytes)
    except FileError:
        return ""
    return "\n".join(line.rpartition("\r")[2] for line in text.split("\n"))


class SpeakingServer:
    """`myxtts serve` for this studio alone: on a port of its own, with a token nobody else knows. Ends with the studio."""

    def __init__(self, log: Path):
        self._log = log
        self._child: asyncio.subprocess.Process | None = None
        self._starting = asyncio.Lock()
        self._model: str | None = None
        self.token = secrets.token_urlsafe(24)
        self.port = 0

    @property
    def model(self) -> str | None:
        """What is loaded now."""
        return self._model if self._child is not None and self._child.returncode is None else None

    async def load(self, model: str, flags: Sequence[str]) -> None:
        """Makes sure that this model speaks: another is put away first. Raises `JobError` with what the server said."""
        async with self._starting:
            if self.model == model:
                return
            await self._end()
            self._log.parent.mkdir(parents=True, exist_ok=True)
            words = ["serve", "--checkpoint", model, "--port", "0", "--allow-upload", "--rate", "10000", *flags]
            with open(self._log, "wb") as log:
                self._child = await asyncio.create_subprocess_exec(
                    sys.executable, "-P", "-c", _TIED, *words,
                    stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE, stderr=log, start_new_session=True,
                    env={**make_importable(os.environ), "MYXTTS_SERVE_TOKEN": self.token},
                )  # fmt: skip
            self._model = model
            try:
                async with asyncio.timeout(SLOWEST_START_S):
                    self.port = await self._read_port(self._child)
            except TimeoutError:
                await self._end()
                raise JobError(f"The model did not speak within {SLOWEST_START_S:g} s. Try again, or take a smaller one.") from None  # fmt: skip

    async def _read_port(self, child: asyncio.subprocess.Process) -> int:
        assert child.stdout is not None
        async for line in child.stdout:
            if line.startswith(b"Speech"):
                return int(line.partition(b"/v1/")[0].rpartition(b":")[2])
        await child.wait()
        told = [line for line in read_tail(self._log, LOG_BYTES).split("\n") if "error:" in line]
        raise JobError(told[-1].partition("error: ")[2] if told else "The model could not be loaded; jobs/speak.log says why.")  # fmt: skip

    async def stop(self) -> None:
        """Puts the model away, which frees its memory. One that is being loaded is not waited for."""
        await self._end()

    async def _end(self) -> None:
        child, self._child = self._child, None
        if child is None or child.returncode is not None:
            return
        child.terminate()
        try:
            async with asyncio.timeout(STOP_S):
                await child.wait()
        except TimeoutError:
            child.kill()
            await child.wait()
