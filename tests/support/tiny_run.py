"""Small runs for tests: real runs of `train_main.py` with the smallest model, as a user would start them.

`run_tiny` trains to the end and gives a `TinyRun` to look at. Runs on one device share a process of this test process, which imports
TensorFlow once; others have one of their own, since devices are planned once in the life of a process. `start_tiny` goes on beside
the test, to be struck at a moment: `run.strike(at_step(folder, 3), SIGKILL)`. A `Fault` spoils either.
"""

from __future__ import annotations

import atexit
import functools
import json
import os
import shlex
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from signal import Signals
from typing import Any

import numpy as np
import psutil

from myxtts.config import XTTSConfig, resolve_config
from myxtts.errors import NotARunError
from myxtts.monitoring.metrics import EventRow, RunRow, TrainRow, ValidationRow, list_losses, read_metrics
from tests.data.wav_files import make_chunk, make_wav
from tests.support.faults import Fault, faulty
from tests.support.processes import ROOT, clean_environ

SMALLEST = {
    "model.gpt_layers": 1, "model.gpt_width": 16, "model.gpt_heads": 2, "model.dvae_width": 16, "model.audio_codes": 32,
    "model.dropout": 0.1, "data.prompt_seconds": 0.5, "data.batch_size": 4, "data.num_workers": 0, "data.cache": "off",
    "data.model_start_delay": 0, "data.use_tf_native_loading": "false",
    # So that every update shows in the losses after it.
    "training.learning_rate": 0.003, "training.warmup_steps": 0,
    # Loading a model to speak takes longer than such a run.
    "training.speak": "false",
}  # fmt: skip
MODEL_SETTINGS = tuple(name for name in SMALLEST if name.startswith("model."))
MARK = "TESTED_RUN_FOLDER"
PATIENCE_S = 900
"""For runs on a machine that has much else to do."""
POLL_S = 0.001
TRAIN_MAIN = (sys.executable, str(ROOT / "train_main.py"))
Moment = Callable[[], bool]

WORDS = (
    *("yellow", "willow", "velvet", "timber", "silver", "purple", "orange", "nickel"),
    *("mellow", "kettle", "indigo", "hollow", "golden", "forest", "copper", "bronze"),
)
RARE_WORD = "jonquil"
"""With letters that no other text has."""


def make_corpus(folder: Path, clips: int = 25, seconds: tuple[float, float] = (0.98, 1.02)) -> Path:
    """A corpus of short tones in noise, so alike in length that its batches have one shape: a shape is slow to trace."""
    (folder / "wavs").mkdir(parents=True)
    draw = np.random.default_rng(11)
    lines = []
    for number in range(clips):
        samples = int(np.interp(number % 7, (0, 6), seconds) * 22050)
        tone = 9000 * np.sin(np.arange(samples) * (0.02 + 0.01 * number)) + draw.normal(scale=900, size=samples)
        clip = make_wav(make_chunk(b"data", tone.astype("<i2").tobytes()))
        (folder / "wavs" / f"clip_{number:02d}.wav").write_bytes(clip)
        second = RARE_WORD if number == 3 else WORDS[number * 5 // 3 % len(WORDS)]
        lines.append(f"clip_{number:02d}|{WORDS[number % len(WORDS)]} {second}\n")
    (folder / "metadata.csv").write_text("".join(lines), encoding="utf-8")
    return folder


def damage_clip(path: Path) -> None:
    """Spoils a file in a way that a scan which remembers its size and time does not notice."""
    status = path.stat()
    path.write_bytes(bytes(status.st_size))
    os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))


def tiny_words(folder: Path, *flags: object, mode: str | None = "single", **settings: object) -> list[str]:
    """The words of a run in a folder, behind `train_main.py`. A setting of None is left out."""
    words = ["--rehearsal", "--deterministic", "--log-interval", "1", "--checkpoint-dir", str(folder)]
    words += ["--mode", mode] if mode else []
    for name, value in {**SMALLEST, **settings}.items():
        words += [] if value is None else ["--set", f"{name}={value}"]
    return [*words, *map(str, flags)]


def tiny_config(folder: Path, *flags: object, mode: str | None = "single", **settings: object) -> XTTSConfig:
    """The configuration of the same run, for a trainer that is made in Python."""
    from myxtts.cli.main import make_parser

    given = make_parser("train", "train").parse_all(tiny_words(folder, *flags, mode=mode, **settings)).given
    return resolve_config(flags=given, environ={})


@dataclass(frozen=True)
class TinyRun:
    """A run that has ended, as it lies on the disk."""

    folder: Path
    told: Path
    """What it said is in `<told>.said`, its exit code in `<told>.code`."""

    @classmethod
    def at(cls, folder: Path) -> TinyRun:
        return cls(folder, folder)

    @property
    def text(self) -> str:
        return Path(f"{self.told}.said").read_text(encoding="utf-8")

    @property
    def code(self) -> int:
        return int(Path(f"{self.told}.code").read_text())

    @property
    def rows(self) -> Sequence[Any]:
        return read_metrics(self.folder / "metrics.jsonl").rows

    def list_rows(self, kind: type[Any]) -> list[Any]:
        return [row for row in self.rows if isinstance(row, kind)]

    @property
    def losses(self) -> list[tuple[int, float]]:
        """The loss of every update, to the last bit."""
        return list_losses(read_metrics(self.folder / "metrics.jsonl"))

    @property
    def validations(self) -> list[tuple[int, float]]:
        return [(row.step, row.loss) for row in self.list_rows(ValidationRow)]

    @property
    def counts(self) -> list[tuple[int, int, int, int]]:
        """What was trained on between two readings: step, clips, samples, samples with their padding."""
        return [(row.step, row.clips, row.samples, row.padded_samples) for row in self.list_rows(TrainRow)]

    @property
    def events(self) -> list[EventRow]:
        """What happened besides training."""
        return self.list_rows(EventRow)

    @property
    def record(self) -> dict[str, Any]:
        found: dict[str, Any] = json.loads((self.folder / "run.json").read_text(encoding="utf-8"))
        return found

    @property
    def checkpoints(self) -> list[int]:
        return sorted(int(path.name.removeprefix("step-")) for path in self.folder.glob("step-*"))

    @property
    def weights(self) -> str:
        """The digest of the newest checkpoint's weights and optimizer, from its manifest."""
        newest = max(self.folder.glob("step-*"))
        files = json.loads((newest / "manifest.json").read_text(encoding="utf-8"))["files"]
        return ", ".join(f"{name} {files[name]['sha256']}" for name in ("model.safetensors", "training.safetensors"))

    @property
    def story(self) -> dict[str, Any]:
        """Everything that must be the same to the last bit however a run was made."""
        return {name: getattr(self, name) for name in ("losses", "validations", "counts", "weights")}

    @property
    def resume_words(self) -> list[str]:
        """The words behind `train_main.py` in the command that the run printed for its continuation."""
        line = next(line for line in self.text.splitlines() if line.startswith("Resume  "))
        words = shlex.split(line.removeprefix("Resume  "))
        assert words[:2] == ["python", "train_main.py"], words
        return words[2:]

    def expect(self, code: int | None) -> TinyRun:
        assert code is None or self.code == code, f"exit code {self.code}\n{self.text[-6000:]}"
        return self


def run_tiny(
    folder: Path,
    *flags: object,
    mode: str | None = "single",
    expect: int | None = 0,
    fault: Fault | None = None,
    told: Path | None = None,
    **settings: object,
) -> TinyRun:
    """A run from its start to its end.

    Args:
        mode: None for none that is given.
        expect: the exit code; None where the test looks at it.
        fault: what goes wrong.
        told: where what it says goes, if not beside its folder.
    """
    if mode != "single":
        return start_tiny(folder, *flags, mode=mode, fault=fault, told=told, **settings).finish(expect)
    run = TinyRun(folder, told or folder)
    _find_host().run("train", tiny_words(folder, *flags, **settings), run.told, fault)
    return run.expect(expect)


def run_command_tiny(name: str, *words: object, told: Path) -> str:
    """What another command says, in the process of the runs on one device."""
    _find_host().run(name, list(map(str, words)), told)
    return TinyRun(told, told).expect(0).text


def start_tiny(
    folder: Path, *flags: object, fault: Fault | None = None, told: Path | None = None, **options: Any
) -> LiveRun:
    """A run in a process of its own, which goes on beside the test."""
    program = TRAIN_MAIN if fault is None else (sys.executable, "-m", "tests.support.faults", *map(str, fault))
    return LiveRun(folder, [*program, *tiny_words(folder, *flags, **options)], told=told)


class LiveRun:
    """Processes of a run that go on beside the test.

    Args:
        folder: of the run.
        command: what to start.
        told: where what it says goes, if not beside the folder.
        variables: of the environment, besides the usual ones.
    """

    def __init__(self, folder: Path, command: Sequence[object], *, told: Path | None = None, **variables: str):
        self.run = TinyRun(folder, told or folder)
        self.folder = folder
        with open(f"{self.run.told}.said", "w", encoding="utf-8") as said:
            self.process = subprocess.Popen(
                list(map(str, command)), stdout=said, stderr=subprocess.STDOUT, env=_make_environ(folder, **variables), cwd=ROOT
            )  # fmt: skip

    def strike(self, moment: Moment, signal: Signals) -> None:
        """Sends a signal when the moment has come."""
        self.wait_for(moment)
        self.process.send_signal(signal)

    def wait_for(self, moment: Moment) -> None:
        wait_for(moment, lambda: self.process.poll() is None, "the run ended before its time")

    def kill_producer(self, moment: Moment, struck: set[int]) -> None:
        """Kills its producer when the moment has come, one that is not among those struck before."""

        def is_killed() -> bool:
            producer = self._find_producer() if moment() else None
            if producer is None or producer.pid in struck:
                return False
            producer.kill()
            struck.add(producer.pid)
            return True

        self.wait_for(is_killed)

    def _find_producer(self) -> psutil.Process | None:
        for process in list_processes(self.folder):
            with suppress(psutil.Error):
                if "myxtts.pipeline.producer" in process.cmdline():
                    return process
        return None

    def finish(self, expect: int | None = None, patience_s: float = PATIENCE_S) -> TinyRun:
        """Waits for its end."""
        code = self.process.wait(patience_s)
        Path(f"{self.run.told}.code").write_text(str(code))
        return self.run.expect(expect)


def _make_environ(folder: Path, **variables: str) -> dict[str, str]:
    """Without what the machine's own user has set, and marked, so that every process of the run can be found."""
    return clean_environ(**{"PYTHONPATH": str(ROOT), MARK: str(folder), **variables})


def count_steps(folder: Path) -> int:
    """Updates that a run in a folder has told of."""
    with suppress(NotARunError):
        losses = TinyRun.at(folder).losses
        return losses[-1][0] if losses else 0
    return 0


def at_step(folder: Path, step: int) -> Moment:
    """When so many updates are done, the last of them by a session that begins after this call."""
    before = _find_session(folder)
    return lambda: _find_session(folder) != before and count_steps(folder) >= step


def _find_session(folder: Path) -> float | None:
    with suppress(NotARunError):
        sessions: list[RunRow] = TinyRun.at(folder).list_rows(RunRow)
        return sessions[-1].time_s if sessions else None
    return None


def in_saving(folder: Path) -> Moment:
    """While a checkpoint is written; what a killed run left half written does not count."""
    before = set(folder.glob(".myxtts-*/new"))
    return lambda: not before.issuperset(folder.glob(".myxtts-*/new"))


def wait_for(moment: Moment, is_possible: Moment, otherwise: str) -> None:
    """Waits for a moment as long as it is possible."""
    end = time.monotonic() + PATIENCE_S
    while not moment():
        assert is_possible(), otherwise
        assert time.monotonic() < end, "waited too long"
        time.sleep(POLL_S)


@contextmanager
def leaves_nothing(folder: Path) -> Iterator[None]:
    """Fails when a process of the run in a folder outlives the block. Its threads and shared memory live no longer."""
    yield
    # A producer notices the death of its trainer by itself.
    _, alive = psutil.wait_procs(list_processes(folder), timeout=60)
    assert alive == [], f"left behind: {alive}"


def list_processes(folder: Path) -> list[psutil.Process]:
    """The processes of the run in a folder, by the mark that they inherit."""
    found = []
    for process in psutil.process_iter():
        with suppress(psutil.Error):
            if process.environ().get(MARK) == str(folder):
                found.append(process)
    return found


class _Host:
    """The process of all runs on one device."""

    def __init__(self) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.support.tiny_run"],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=_make_environ(Path("host")), cwd=ROOT,
        )  # fmt: skip
        atexit.register(self.end)

    def end(self) -> None:
        self._process.kill()
        self._process.communicate()

    def run(self, command: str, words: Sequence[str], told: Path, fault: Fault | None = None) -> None:
        stdin, stdout = self._process.stdin, self._process.stdout
        assert stdin is not None
        assert stdout is not None
        stdin.write(json.dumps({"command": command, "words": words, "told": str(told), "fault": fault}) + "\n")
        stdin.flush()
        if not stdout.readline():
            end_host()
            raise AssertionError(f"the process of the run has died\n{Path(f'{told}.said').read_text()[-6000:]}")


@functools.cache
def _find_host() -> _Host:
    return _Host()


def end_host() -> None:
    """Ends the process that runs on one device share, if there is one."""
    if _find_host.cache_info().currsize:
        host = _find_host()
        atexit.unregister(host.end)
        host.end()
        _find_host.cache_clear()


def _serve() -> None:
    """What the host does: the runs that it is told of, one after another."""
    from myxtts.cli.main import run_command

    answers = os.fdopen(os.dup(1), "w")
    for line in sys.stdin:
        task = json.loads(line)
        with open(f"{task['told']}.said", "wb") as said:
            os.dup2(said.fileno(), 1)
            os.dup2(said.fileno(), 2)
        with faulty(Fault(*task["fault"]) if task["fault"] else None):
            name = "train_main.py" if task["command"] == "train" else f"myxtts {task['command']}"
            code = run_command(task["command"], task["words"], name)
        sys.stdout.flush()
        sys.stderr.flush()
        Path(f"{task['told']}.code").write_text(str(code))
        print("done", file=answers, flush=True)


if __name__ == "__main__":
    _serve()
