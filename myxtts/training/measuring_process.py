"""A process that measures once and is thrown away: TensorFlow's devices and threads cannot be changed once they are set."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from myxtts.data.errors import WorkerError
from myxtts.data.workers import Task, WorkerProcess
from myxtts.errors import MachineError


class MeasuringError(MachineError):
    """A measurement came to no result."""


def measure_in_process(task: Task, item: Any, purpose: str) -> Mapping[str, Any]:
    """What a task makes of an item, in a process of its own that ends with the call, whatever happens in it.

    Args:
        purpose: what it is measured for, for messages.
    """
    worker = WorkerProcess(task)
    answers: list[Mapping[str, Any]] = []
    try:
        worker.give([item])
        while not answers and not worker.is_closed:
            answers += [answer for (answer,) in worker.receive()]
    except BaseException:
        worker.stop()
        raise
    if answers:
        worker.stop()
        return answers[0]
    try:
        signal = worker.find_death_signal()
    except WorkerError as error:
        raise MeasuringError(f"Measuring for {purpose} failed.\n{error}") from error
    raise MeasuringError(f"Measuring for {purpose} died of signal {signal}, as a process does that runs out of memory.")
