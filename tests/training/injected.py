"""A run with a fault in it: `python -m tests.training.injected FAULT words...`, the words being those of `train_main.py`."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable
from dataclasses import replace
from typing import Any

MODULE = "tests.training.injected"
LEAK_BYTES = 1 << 20
HANGS_AT = 4
"""The update, counted from 1: shapes have been traced by then."""

_kept: list[bytes] = []


def leak_training() -> None:
    """Every update keeps a megabyte of the host's memory."""
    from myxtts.training.step import UpdateMaker

    _wrap(UpdateMaker, "add", lambda call: _keep(LEAK_BYTES))


def leak_validation() -> None:
    """Every batch that is evaluated keeps ten."""
    from myxtts.training.step import UpdateMaker

    _wrap(UpdateMaker, "evaluate", lambda call: _keep(10 * LEAK_BYTES))


def leak_checkpoint() -> None:
    """Every checkpoint keeps ten."""
    from myxtts.training.model import CheckpointSaver

    _wrap(CheckpointSaver, "save", lambda call: _keep(10 * LEAK_BYTES))


def leak_producer() -> None:
    """Every batch keeps a megabyte of the memory of the process that makes it."""
    from myxtts.pipeline import isolated_source

    describe = isolated_source.describe_task

    def describe_leaking(*arguments: Any) -> Any:
        return replace(describe(*arguments), factory=f"{MODULE}:{make_leaking_task.__name__}")

    isolated_source.describe_task = describe_leaking


def make_leaking_task(*arguments: Any) -> Any:
    """The task of a producer that leaks."""
    from myxtts.pipeline.preparation_task import PreparationTask, make_task

    _wrap(PreparationTask, "prepare", lambda call: _keep(LEAK_BYTES))
    return make_task(*arguments)


def leak_preparation() -> None:
    """As TensorFlow would count what every batch keeps on the device that prepares."""
    from myxtts.pipeline import batch_factory

    readings = iter(range(10**9, 10**12, LEAK_BYTES))
    batch_factory.read_pool_bytes = lambda device: next(readings)


def leak_device() -> None:
    """As TensorFlow would count what every update keeps on a device; a processor's pool is not counted."""
    from myxtts.devices import runtime

    readings = iter(range(10**9, 10**12, LEAK_BYTES))
    runtime.read_pool_bytes = lambda device: next(readings)


def hang_deaf() -> None:
    """An update that never comes back, and hears nothing: as inside a driver."""
    from myxtts.training.step import UpdateMaker

    lock = threading.Lock()
    lock.acquire()
    _wrap(UpdateMaker, "add", lambda call: call == HANGS_AT and lock.acquire())


def hang_in_checkpoint() -> None:
    """A checkpoint that is never whole."""
    from myxtts.training.model import CheckpointSaver

    def wait(call: int) -> None:
        while not threading.Event().wait(0.1):
            pass

    _wrap(CheckpointSaver, "save", wait)


def nothing() -> None:
    """A run as it is."""


FAULTS = {
    fault.__name__: fault
    for fault in (
        *(leak_training, leak_validation, leak_checkpoint, leak_producer, leak_preparation, leak_device),
        *(hang_deaf, hang_in_checkpoint, nothing),
    )
}


def _keep(size: int) -> None:
    # Written, not only asked for: memory counts from its first use.
    _kept.append(b"\x01" * size)


def _wrap(owner: type, name: str, before: Callable[[int], Any]) -> None:
    whole, calls = getattr(owner, name), [0]

    def call(*arguments: Any, **options: Any) -> Any:
        calls[0] += 1
        before(calls[0])
        return whole(*arguments, **options)

    setattr(owner, name, call)


if __name__ == "__main__":
    from myxtts.cli.main import run_command

    FAULTS[sys.argv[1]]()
    sys.exit(run_command("train", sys.argv[2:], "train_main.py"))
