"""A process that measures once and is thrown away: TensorFlow's devices and threads cannot be changed once they are set."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

from myxtts.data.errors import WorkerError
from myxtts.data.workers import Task, WorkerProcess
from myxtts.errors import MachineError
from myxtts.processes import IMPORT_S

MEASURING_S = 1800.0
"""A minute is usual; a card newer than TensorFlow's build has all its kernels compiled at first use."""


class MeasuringError(MachineError):
    """A measurement came to no result."""


class MeasuringKilledError(MeasuringError):
    """The process of a measurement was killed, as one is that runs out of memory."""


def measure_in_process(
    task: Task, item: Any, purpose: str, *, import_s: float = IMPORT_S, limit_s: float = MEASURING_S
) -> Mapping[str, Any]:
    """What a task makes of an item, in a process of its own that ends with the call, whatever happens in it.

    Args:
        purpose: what it is measured for, for messages.
        import_s: how long the process may load what it measures with.
        limit_s: how long it may measure.
    """
    worker = WorkerProcess(task, is_one_core=False)
    try:
        worker.give([item])
        answer = await_answer(worker, import_s, limit_s)
    except TimeoutError:
        what = f"measured after {limit_s:g} s" if worker.is_ready else f"imported what it needs after {import_s:g} s"
        worker.write_stacks()
        report = worker.read_report()
        worker.kill()
        raise MeasuringError(
            f"Measuring for {purpose} hangs: its process had not {what}, the most it is given, and was ended. It was here:\n{report}"
        ) from None
    except BaseException:
        # At once: whoever stops a measurement wants none of it.
        worker.kill()
        raise
    if answer is not None:
        worker.stop()
        return answer
    try:
        signal = worker.find_exit_signal()
    except WorkerError as error:
        raise MeasuringError(f"Measuring for {purpose} failed.\n{error}") from error
    raise MeasuringKilledError(
        f"Measuring for {purpose} died of signal {signal}, as a process does that runs out of memory."
    )


def await_answer(worker: WorkerProcess, import_s: float, work_s: float) -> Mapping[str, Any] | None:
    """What a worker makes of the one item it was given; None when it died without a word. Raises `TimeoutError`.

    Args:
        import_s: how long it may load its task.
        work_s: how long it may work after that.
    """
    deadline_s, has_loaded = time.monotonic() + import_s, False
    while not worker.is_closed:
        worker.socket.settimeout(max(0.01, deadline_s - time.monotonic()))
        for (answer,) in worker.receive():
            return answer  # type: ignore[no-any-return]
        if worker.is_ready and not has_loaded:
            deadline_s, has_loaded = time.monotonic() + work_s, True
    return None
