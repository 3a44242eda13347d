"""The one thread that owns the model: it loads it, and everything TensorFlow does happens in it. This room's only thread.

A request becomes a job. The event loop submits it and awaits its results; the thread gives every job a turn, then does what they
share, a code of each sentence, and before each turn looks whether anybody still wants more.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import queue
import threading
from collections.abc import Callable, Generator
from concurrent.futures import Future
from contextlib import AbstractContextManager
from typing import Generic, TypeVar

from myxtts.errors import MachineError

_log = logging.getLogger(__name__)

Model = TypeVar("Model")
Result = TypeVar("Result")

STOP_SECONDS = 60.0
"""A recording that is being cloned cannot be interrupted, nor what is being compiled."""

MODEL_DIED = "The model has failed; the server's log says how. The server must be started again: tell its operator."


class ModelThreadError(MachineError):
    """The model has failed, or its thread does not stop. Clients are told the message."""


class JobCancelled(Exception):
    """Nobody waits for the job any more, or the thread is about to stop."""


class Job(Generic[Model, Result]):
    """Some work for the thread, and its results for the event loop that made it.

    Results are not held back from a slow reader: the model would wait for it, and so would everybody in the queue. None is a
    result that is not handed on, and only ends the job's turn.
    """

    def __init__(self, work: Callable[[Model], Generator[Result | None, None, None]]):
        self._work = work
        self._under_way: Generator[Result | None, None, None] | None = None
        self._loop = asyncio.get_running_loop()
        self._results: asyncio.Queue[Result | Exception] = asyncio.Queue()
        self._is_cancelled = threading.Event()

    def __aiter__(self) -> Job[Model, Result]:
        return self

    async def __anext__(self) -> Result:
        """The next result. Raises whatever the work raised."""
        item = await self._results.get()
        if isinstance(item, Exception):
            raise item
        return item

    def cancel(self) -> None:
        """Ends the job before its next turn. Whoever awaits one gets `JobCancelled`. Call it in the event loop."""
        if not self._is_cancelled.is_set():
            self._is_cancelled.set()
            self._results.put_nowait(JobCancelled())

    def take_turn(self, model: Model, is_stopping: threading.Event) -> bool:
        """Works up to the next result, in the thread, and says whether there may be more."""
        try:
            if self._under_way is None:
                self._under_way = self._work(model)
            if self._is_cancelled.is_set() or is_stopping.is_set():
                self._under_way.close()
                raise JobCancelled
            if (result := next(self._under_way)) is not None:
                self.hand_over(result)
        except StopIteration:
            self.hand_over(StopAsyncIteration())
        except Exception as error:  # noqa: BLE001  the border of the thread: whoever awaits the job gets the error
            self.hand_over(error)
        else:
            return True
        return False

    def hand_over(self, item: Result | Exception) -> None:
        """Gives whoever awaits the job its next result, or ends it."""
        # A loop that is closed has nobody left who waits.
        with contextlib.suppress(RuntimeError):
            self._loop.call_soon_threadsafe(self._results.put_nowait, item)


class ModelThread(Generic[Model]):
    """Runs jobs, turn by turn, in the thread that opens the model, and closes it at the end; `share` is what they have in common, done
    after each round.

    Where `has_died`, the model has failed: nothing is spoken any more, and jobs are only dropped.
    """

    def __init__(
        self,
        open_model: Callable[[], AbstractContextManager[Model]],
        share: Callable[[Model], None] = lambda model: None,
    ):
        self._open_model, self._share = open_model, share
        self._jobs: queue.SimpleQueue[Job[Model, object] | None] = queue.SimpleQueue()
        self._loaded: Future[Model] = Future()
        self._is_stopping = threading.Event()
        self.has_died = False
        self._thread = threading.Thread(target=self._run, name="myxtts-model", daemon=True)

    def start(self) -> Model:
        """Loads the model. What it returns may be asked for facts; work is for jobs. Raises what loading raises."""
        self._thread.start()
        return self._loaded.result()

    def submit(self, job: Job[Model, Result]) -> Job[Model, Result]:
        """Lets a job take turns from the next round on."""
        self._jobs.put(job)  # type: ignore[arg-type]  # the queue does not care for what a job gives
        return job

    def stop(self, timeout_s: float = STOP_SECONDS) -> None:
        """Ends all jobs before their next turn, and ends the thread."""
        self._is_stopping.set()
        self._jobs.put(None)
        self._thread.join(timeout_s)
        if self._thread.is_alive():
            raise ModelThreadError(f"The model is still busy {timeout_s:g} s after it was asked to stop.")

    def _run(self) -> None:
        jobs: list[Job[Model, object]] = []
        try:
            with self._open_model() as model:
                self._loaded.set_result(model)
                while self._collect(jobs):
                    jobs[:] = [job for job in jobs if job.take_turn(model, self._is_stopping)]
                    self._share(model)
                for job in jobs:
                    job.take_turn(model, self._is_stopping)
        except BaseException as error:  # noqa: BLE001  the border of the thread: `start` raises it, or the log has it
            if not self._loaded.done():
                return self._loaded.set_exception(error)
            _log.critical("The model has failed: nothing is spoken any more.", exc_info=error)
            # Before anybody is told: who asks for the server's health then must not hear that all is well.
            self.has_died = True
            while True:
                for job in jobs:
                    job.hand_over(ModelThreadError(MODEL_DIED))
                jobs.clear()
                if not self._collect(jobs):
                    return None

    def _collect(self, jobs: list[Job[Model, object]]) -> bool:
        """Takes in what was submitted; waits where there is nothing else to do. False when it is time to stop."""
        while not (jobs and self._jobs.empty()):
            if (job := self._jobs.get()) is None:
                return False
            jobs.append(job)
        return True
