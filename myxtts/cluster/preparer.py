"""The preparer: an actor of a Ray cluster that owns a device and runs our own batch maker. `preparers` is the trainer's side of it."""

from __future__ import annotations

import logging
import os
import pkgutil
import socket
import threading
import time
import traceback
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import replace
from typing import Any, NamedTuple

from myxtts.cluster.ray_setup import HeadWatch
from myxtts.devices.machine import read_machine
from myxtts.devices.planning import plan_preparing_device
from myxtts.files import open_scratch_folder
from myxtts.pipeline.producer import is_out_of_memory
from myxtts.pipeline.recipe import Kit
from myxtts.pipeline.ring import Arrays


class Made(NamedTuple):
    """A batch that a preparer has made."""

    arrays: Arrays
    waited_s: float
    """Before it, for something to do."""
    busy_s: float


class Failed(NamedTuple):
    """What a preparer could not do."""

    summary: str
    trace: str
    """With the machine it was on."""
    ran_out: bool
    """Of memory."""


class PreparerActor:
    """The actor. Calls come from several threads, so that one batch is sent while the next is made; all that TensorFlow does is done
    in one thread."""

    def __init__(self) -> None:
        self._thread = ThreadPoolExecutor(1, "myxtts-prepare")
        self._opened = ExitStack()
        self._asked: list[int] = []
        self._replaced = 0
        self._idle_since = 0.0
        self._task: Any = None
        import ray

        threading.Thread(target=HeadWatch(ray).end_process, daemon=True).start()
        # On machines where Ray was started without RAY_worker_niceness=0; whoever may not is told by the documentation.
        if os.nice(0) and os.geteuid() == 0:
            os.setpriority(os.PRIO_PROCESS, 0, 0)

    def begin(self, kit: Kit, rows_at_a_time: int | None) -> Any:
        """Loads and warms up. Returns the names of the machine and of the device that prepares, or `Failed`."""
        return self._thread.submit(_catch, self._begin, kit, rows_at_a_time).result()

    def prepare(self, number: int, replaced: tuple[int, ...]) -> Any:
        """What has a number, `Made` or `Failed`; `replaced` are all batches of the run that have other clips by now."""
        self._asked.append(number)
        return self._thread.submit(_catch, self._prepare, number, replaced).result()

    def close(self) -> None:
        """Ends reading, and keeps the codes that were made where that was asked for."""
        self._thread.submit(self._opened.close).result()

    def _begin(self, kit: Kit, rows_at_a_time: int | None) -> tuple[str, str]:
        # Where it prepares is returned; that nothing trains here need not be said.
        logging.getLogger("myxtts.devices").setLevel(logging.WARNING)
        folder = self._opened.enter_context(open_scratch_folder("preparer"))
        recipe = kit.unpack(folder)
        plan = plan_preparing_device(recipe.config, read_machine())
        preparation = replace(recipe.preparation, rows_at_a_time=rows_at_a_time)
        recipe = replace(recipe, plan=plan, preparation=preparation)
        self._task = task = pkgutil.resolve_name(kit.task)(folder, recipe, kit.execution)
        self._opened.callback(task.close)
        task.warm_up()
        self._idle_since = time.perf_counter()
        card = "" if plan.data.physical_id is None or plan.rehearsal else f", GPU {plan.data.physical_id} there"
        return socket.gethostname(), f"{plan.data.device}{card}"

    def _prepare(self, number: int, replaced: tuple[int, ...]) -> Made:
        began_s = time.perf_counter()
        waited_s = began_s - self._idle_since
        for position in replaced[self._replaced :]:
            self._task.replace_batch(position)
        self._replaced = len(replaced)
        self._asked.remove(number)
        arrays = self._task.prepare(number, sorted(each for each in self._asked if each > number))
        self._idle_since = time.perf_counter()
        return Made(arrays, waited_s, self._idle_since - began_s)


def _catch(work: Any, *arguments: Any) -> Any:
    """What work returns, or how it failed: an error need not be one that can be sent."""
    try:
        return work(*arguments)
    except Exception as error:  # noqa: BLE001  the border of the process: the trainer raises it again
        trace = f"On {socket.gethostname()}:\n{''.join(traceback.format_exception(error)).rstrip()}"
        return Failed(f"{type(error).__name__}: {error}", trace, is_out_of_memory(error, is_limited=False))
