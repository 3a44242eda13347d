"""Ending processes of a run at chosen moments, and watching what they leave behind."""

from __future__ import annotations

import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from signal import Signals

import psutil

from myxtts.monitoring.errors import MetricsFileError
from myxtts.monitoring.metrics_log import read_metrics
from myxtts.monitoring.metrics_rows import RunRow
from tests.training.runs import MARK, PATIENCE_S, read_losses

POLL_S = 0.001
Moment = Callable[[], bool]


def count_steps(folder: Path) -> int:
    """Updates that a run in a folder has told of."""
    with suppress(MetricsFileError):
        losses = read_losses(folder)
        return losses[-1][0] if losses else 0
    return 0


def at_step(folder: Path, step: int) -> Moment:
    """When so many updates are done, the last of them by a session that begins after this call."""
    before = find_session(folder)
    return lambda: find_session(folder) != before and count_steps(folder) >= step


def find_session(folder: Path) -> float | None:
    """When the last session of a run began."""
    with suppress(MetricsFileError):
        rows = read_metrics(folder / "metrics.jsonl").rows
        return next(row.time_s for row in reversed(rows) if isinstance(row, RunRow))
    return None


def in_saving(folder: Path) -> Moment:
    """While a checkpoint is written; what a killed run left half written does not count."""
    before = set(folder.glob(".myxtts-*/new"))
    return lambda: not before.issuperset(folder.glob(".myxtts-*/new"))


def strike(run: subprocess.Popen[str], moment: Moment, signal: Signals) -> None:
    """Sends a signal to a run when the moment has come."""
    wait_for(moment, lambda: run.poll() is None, "the run ended before it could be struck")
    run.send_signal(signal)


def wait_for(moment: Moment, is_possible: Moment, otherwise: str) -> None:
    """Waits for a moment as long as it is possible."""
    end = time.monotonic() + PATIENCE_S
    while not moment():
        assert is_possible(), otherwise
        assert time.monotonic() < end, "waited too long"
        time.sleep(POLL_S)


def find_producer(folder: Path) -> psutil.Process | None:
    """The producer process of the run in a folder, if it has one just now."""
    for process in list_processes(folder):
        with suppress(psutil.Error):
            if "myxtts.pipeline.producer" in process.cmdline():
                return process
    return None


def kill_producer(run: subprocess.Popen[str], folder: Path, moment: Moment, struck: set[int]) -> None:
    """Kills the producer of a run when the moment has come, one that is not among those struck before."""

    def is_killed() -> bool:
        producer = find_producer(folder) if moment() else None
        if producer is None or producer.pid in struck:
            return False
        producer.kill()
        struck.add(producer.pid)
        return True

    wait_for(is_killed, lambda: run.poll() is None, "the run ended before its producer could be killed")


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
