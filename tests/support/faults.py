"""Faults in a run: `python -m tests.support.faults SEAM EFFECT CALL words...`, the words being those of `train_main.py`.

The one place that knows where the program can be taken hold of for that.
"""

from __future__ import annotations

import importlib
import itertools
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

SEAMS = {
    "importing": "myxtts.cli.train:import_trainer",
    "choosing the mode": "myxtts.training.mode:plan_run",
    "setting up devices": "myxtts.training.model:apply_devices",
    "scanning": "myxtts.data.run_data:collect_run_data",
    "reading a codec": "myxtts.training.starting_point:read_codec",
    "computing gradients": "myxtts.training.step:TrainStep.compute",
    "updating": "myxtts.training.step:TrainStep.apply",
    "evaluating": "myxtts.training.step:TrainStep.evaluate",
    "making a sample": "myxtts.training.listening:Listener.hear",
    "saving": "myxtts.checkpoints.store:CheckpointStore.save",
    "speaking": "myxtts.training.listening:speak_at_end",
    "reading device memory": "myxtts.devices.runtime:read_pool_bytes",
    "preparing in the producer": "myxtts.pipeline.factory:BatchFactory.prepare",
}
NO_NUMBERS = "gets mels that are no numbers"
EVERY = 0
"""In the place of a call's number: all of them."""
MIB = 1 << 20

_kept: list[bytes] = []


class Fault(NamedTuple):
    """What goes wrong where."""

    seam: str
    effect: str
    call: int = 1
    """Which call, from 1, or `EVERY`."""


def _run_out_of_memory() -> None:
    import tensorflow as tf

    raise tf.errors.ResourceExhaustedError(None, None, "OOM when allocating tensor")


def _hang() -> None:
    """As a wait with a timeout does: Python runs now and then."""
    while not threading.Event().wait(0.01):
        pass


def _hang_deaf() -> None:
    """As inside a driver: nothing is heard."""
    lock = threading.Lock()
    lock.acquire()
    lock.acquire()


def _spoil_numbers(argument: Any) -> Any:
    is_batch = isinstance(argument, dict) and "mel_BFM" in argument
    return {**argument, "mel_BFM": argument["mel_BFM"] * float("nan")} if is_batch else argument


def _keep(mib: int) -> None:
    # Written, not only asked for: memory counts from its first use.
    _kept.append(b"\x01" * (mib * MIB))


EFFECTS: dict[str, Callable[[], object]] = {
    "SIGTERM": lambda: os.kill(os.getpid(), signal.SIGTERM),
    "SIGINT": lambda: os.kill(os.getpid(), signal.SIGINT),
    "runs out of memory": _run_out_of_memory,
    "hangs": _hang,
    "hangs deaf": _hang_deaf,
    "leaks 1 MiB": lambda: _keep(1),
    "leaks 10 MiB": lambda: _keep(10),
}


@contextmanager
def faulty(fault: Fault | None) -> Iterator[None]:
    """A block in which something goes wrong."""
    if fault is None:
        yield
        return
    calls, readings = itertools.count(1), itertools.count(1 << 30, MIB)

    def spoil(whole: Callable[..., Any]) -> Callable[..., Any]:
        def call(*arguments: Any, **options: Any) -> Any:
            if next(calls) == fault.call or fault.call == EVERY:
                if fault.effect == NO_NUMBERS:
                    arguments = tuple(map(_spoil_numbers, arguments))
                else:
                    EFFECTS[fault.effect]()
            return whole(*arguments, **options)

        return call

    def grow(whole: Callable[..., Any]) -> Callable[..., Any]:
        """As TensorFlow would count what is kept on a device; a processor's pool is not counted."""
        return lambda device: next(readings) if device == fault.effect.removeprefix("grows on ") else whole(device)

    undo = _replace(fault.seam, grow if fault.effect.startswith("grows on ") else spoil)
    if fault.seam in ("setting up devices", "scanning") and fault.effect == "hangs":
        # What is done once before the first batch is never given less than an import, which is ten minutes.
        undo += _replace_everywhere("myxtts.processes", "IMPORT_S", 0.05)
    try:
        yield
    finally:
        for owner, name, whole in undo:
            setattr(owner, name, whole)
        _kept.clear()


Undo = list[tuple[Any, str, Any]]


def _replace(seam: str, wrap: Callable[[Any], Any]) -> Undo:
    module, _, path = SEAMS[seam].partition(":")
    owner, _, name = path.rpartition(".")
    if owner:
        holder = getattr(importlib.import_module(module), owner)
        whole = getattr(holder, name)
        setattr(holder, name, wrap(whole))
        return [(holder, name, whole)]
    return _replace_everywhere(module, name, wrap(getattr(importlib.import_module(module), name)))


def _replace_everywhere(module: str, name: str, other: Any) -> Undo:
    """A function is also known to those who have imported it by name."""
    # Whoever will do so in the run must have done it.
    importlib.import_module("myxtts.training.trainer")
    whole = getattr(importlib.import_module(module), name)
    ours = [module for key, module in list(sys.modules.items()) if key.startswith("myxtts")]
    holders = [module for module in ours if getattr(module, name, None) is whole]
    for holder in holders:
        setattr(holder, name, other)
    return [(holder, name, whole) for holder in holders]


def _spoil_producer() -> None:
    """Makes the producer of a run start with `make_spoilt_task`."""
    from myxtts.pipeline import batches

    batches.PRODUCER_TASK = f"tests.support.faults:{make_spoilt_task.__name__}"


def make_spoilt_task(*arguments: Any) -> Any:
    """The task of a producer that leaks."""
    from myxtts.pipeline.factory import make_task

    _replace("preparing in the producer", lambda whole: lambda *given: (_keep(1), whole(*given))[1])
    return make_task(*arguments)


if __name__ == "__main__":
    from myxtts.cli.main import run_command

    seam, effect, call, *words = sys.argv[1:]
    if seam == "preparing in the producer":
        _spoil_producer()
        sys.exit(run_command("train", words, "train_main.py"))
    with faulty(Fault(seam, effect, int(call))):
        sys.exit(run_command("train", words, "train_main.py"))
