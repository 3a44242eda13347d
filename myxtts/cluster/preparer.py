"""The preparer: an actor of a Ray cluster that owns a device and runs our own batch maker. `preparers` is the trainer's side of it.

Nothing heavy is imported before it begins: that an actor has found a machine is to be known at once.
"""

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
from typing import TYPE_CHECKING, Any, NamedTuple

from myxtts.files import open_scratch_folder

if TYPE_CHECKING:
    from myxtts.pipeline.factory import PreparationTask
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
    ran_out: bool
    """Of memory."""


class PreparerActor:
    """The actor. Calls come from several threads, so that one batch is sent while the next is made; all that TensorFlow does is done
    in one thread."""

    def __init__(self) -> None:
        self._thread = ThreadPoolExecutor(1, "myxtts-prepare")
        self._opened = ExitStack()
        self._lock = threading.Lock()
        self._asked: list[int] = []
        self._replaced = 0
        self._idle_since = 0.0
        self._task: PreparationTask | None = None
        # On machines where Ray was started without RAY_worker_niceness=0; whoever may not is told by the documentation.
        if os.nice(0) and os.geteuid() == 0:
            os.setpriority(os.PRIO_PROCESS, 0, 0)

    def find_host(self) -> str:
        return socket.gethostname()

    def begin(self, kit: Kit, rows_at_a_time: int | None) -> str | Failed:
        """Loads and warms up; returns the device that prepares, in words."""
        found: str | Failed = self._thread.submit(_catch, self._begin, kit, rows_at_a_time).result()
        return found

    def prepare(self, number: int, replaced: tuple[int, ...]) -> Made | Failed:
        """What has a number; `replaced` are all batches of the run that have other clips by now."""
        with self._lock:
            self._asked.append(number)
        found: Made | Failed = self._thread.submit(_catch, self._prepare, number, replaced).result()
        return found

    def close(self) -> None:
        """Ends reading, and keeps the codes that were made where that was asked for."""
        self._thread.submit(self._opened.close).result()

    def _begin(self, kit: Kit, rows_at_a_time: int | None) -> str:
        from myxtts.devices.machine import read_machine
        from myxtts.devices.planning import plan_preparing_device

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
        return f"{plan.data.device}{card}"

    def _prepare(self, number: int, replaced: tuple[int, ...]) -> Made:
        assert self._task is not None, "begin comes first"
        began_s = time.perf_counter()
        waited_s = began_s - self._idle_since
        for position in replaced[self._replaced :]:
            self._task.replace_batch(position)
        self._replaced = len(replaced)
        with self._lock:
            self._asked.remove(number)
            upcoming = sorted(each for each in self._asked if each > number)
        arrays = self._task.prepare(number, upcoming)
        self._idle_since = time.perf_counter()
        return Made(arrays, waited_s, self._idle_since - began_s)


def _catch(work: Any, *arguments: Any) -> Any:
    """What work returns, or how it failed: an error need not be one that can be sent."""
    try:
        return work(*arguments)
    except Exception as error:  # noqa: BLE001  the border of the process: the trainer raises it again
        from myxtts.pipeline.producer import is_out_of_memory

        trace = "".join(traceback.format_exception(error)).rstrip()
        return Failed(f"{type(error).__name__}: {error}", trace, is_out_of_memory(error, is_limited=False))
