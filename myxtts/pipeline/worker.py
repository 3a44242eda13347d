"""A worker: one thread that takes, works and hands on. The only owner of threads in this room.

Whatever goes wrong in a worker ends the run, with the name of the worker and the original traceback: it is carried to
both neighbours, so that nobody waits for a worker that is gone. `StallWatch` is the one rule for when work that does not
end is said to hang: a warning first, the end of the run later.
"""

from __future__ import annotations

import logging
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Generic, NamedTuple, Protocol, Self, TypeVar

from myxtts.errors import ProducerFailedError, WorkFailedError, WorkStalledError
from myxtts.pipeline.slots import EndOfStream, Handoff, Stopped
from myxtts.processes import IMPORT_S

_log = logging.getLogger(__name__)

T = TypeVar("T")
Item = TypeVar("Item", covariant=True)
Given = TypeVar("Given", contravariant=True)
In = TypeVar("In")
Out = TypeVar("Out")

JOIN_SECONDS = 30.0
FIRST = 3
"""The first call on a GPU loads kernels and traces: minutes, not seconds."""
FINAL = 2
"""So many times the limit may pass before the run ends; after once, there is a warning."""
MOST_GAP_S = 5.0
"""Between two looks. Of a longer time nobody knows what happened in it: a machine may have slept, a process been stopped."""


@dataclass(frozen=True)
class TimeLimits:
    """How long work may make no progress before it counts as hanging."""

    steady_s: float = 300.0
    """One thing of many: a batch, a step."""
    first_s: float = FIRST * 300.0
    """Warm-up and the first of many: on a GPU kernels are loaded and functions traced."""
    import_s: float = field(default_factory=lambda: IMPORT_S)
    """Importing and loading: TensorFlow from a cold network disk."""
    start_s: float = 120.0
    """Until Python runs in a process that was started."""

    @classmethod
    def from_setting(cls, limit_s: float) -> Self:
        """Those of `training.watchdog_seconds`, which starting and importing do not depend on; 0 is without end."""
        return cls(limit_s, FIRST * limit_s) if limit_s else cls(*[float("inf")] * 4)

    @property
    def setup_s(self) -> float:
        """For what is done once before the first batch: large files are read, devices are set up. Never less than an import gets."""
        return max(self.first_s, self.import_s)

    @property
    def longest_s(self) -> float:
        """The longest that a producer which is not hanging leaves its trainer without a batch."""
        return self.start_s + self.import_s + self.first_s

    @property
    def look_s(self) -> float:
        """Time between two looks: often enough for the shortest limit, and never more often than that needs."""
        return min(1.0, self.steady_s / 4, self.first_s / 4)


class Work(NamedTuple):
    """What a thread is doing."""

    name: str
    item: int | None
    """Which one of its kind, counted from 0; None where they are not counted."""
    began_s: float
    """When it began, by any clock: only whether it is the same matters."""
    is_first: bool = False
    """Whether it may take much longer than the same thing will later."""
    limit_s: float | None = None
    """Of its own, where it is no item of a stream."""


@dataclass(frozen=True)
class Stall:
    """Work that does not end."""

    work: Work
    limit_s: float
    is_final: bool

    def __str__(self) -> str:
        item = "" if self.work.item is None else f" at its item {self.work.item}"
        return f"Stage {self.work.name!r} has made no progress{item} for more than {self.limit_s:g} s."


class StallWatch:
    """Looks at one thread or process now and then, and tells when it hangs: once after the limit, and once more at the end."""

    def __init__(self, limits: TimeLimits, clock: Callable[[], float] = time.perf_counter):
        self._limits = limits
        self._clock = clock
        self._work: Work | None = None
        self._looked_at = clock()
        self._silent_s = 0.0
        self._told = 0

    def look(self, work: Work | None) -> Stall | None:
        """What there is to tell of what the thread is doing now; mostly nothing."""
        now = self._clock()
        gap_s, self._looked_at = min(now - self._looked_at, MOST_GAP_S), now
        if work is None or work != self._work:
            self._work, self._silent_s, self._told = work, 0.0, 0
            return None
        self._silent_s += gap_s
        limit_s = self._choose_limit(work)
        if self._told < 1 and self._silent_s > limit_s:
            self._told = 1
            return Stall(work, limit_s, is_final=False)
        if self._told < 2 and self._silent_s > FINAL * limit_s:
            self._told = 2
            return Stall(work, FINAL * limit_s, is_final=True)
        return None

    def _choose_limit(self, work: Work) -> float:
        if work.limit_s is not None:
            return work.limit_s
        return self._limits.first_s if work.is_first else self._limits.steady_s


def format_stack(ident: int | None) -> str:
    """Where a thread is at this moment."""
    frame = None if ident is None else sys._current_frames().get(ident)
    return "".join(traceback.format_stack(frame)) if frame else "(not running)"


def format_all_stacks(first: int | None) -> str:
    """Where every thread of this process is, one of them first; not the one that asks."""
    names = {thread.ident: thread.name for thread in threading.enumerate()}
    others = [ident for ident in names if ident not in (first, threading.get_ident())]
    return "\n".join(f"Thread {names.get(ident, ident)}:\n{format_stack(ident)}" for ident in (first, *others))


class Source(Protocol[Item]):
    """Where a worker takes from: a hand-off, a producer process, or a `Feed` at the beginning."""

    def take(self) -> Item: ...

    def release(self) -> None: ...

    def stop(self) -> None: ...


class Sink(Protocol[Given]):
    """Where a worker hands its results on to: a hand-off, or the socket at the end of a process."""

    def reserve(self) -> None: ...

    def commit(self, item: Given) -> None: ...

    def finish(self) -> None: ...

    def fail(self, error: BaseException) -> None: ...

    def stop(self) -> None: ...


class Feed(Generic[In]):
    """A source made of an iterator, for the first worker: its items need no slot."""

    def __init__(self, items: Iterator[In]):
        self._items = items
        self._stopped = False

    def take(self) -> In:
        if self._stopped:
            raise Stopped
        try:
            return next(self._items)
        except StopIteration:
            raise EndOfStream from None

    def release(self) -> None:
        pass

    def stop(self) -> None:
        self._stopped = True


@dataclass(frozen=True)
class WorkerFacts:
    """What a worker has done so far."""

    name: str
    items: int
    busy_s: float
    """Time spent working: not waiting for a batch, not waiting for a slot."""


class WorkerThread(Generic[In, Out]):
    """Runs `work` on everything from `source` and hands the results on to `sink`, in a thread of its own."""

    def __init__(self, name: str, work: Callable[[In], Out], source: Source[In], sink: Sink[Out]):
        self.name = name
        self._work = work
        self._source = source
        self._sink = sink
        self._items = 0
        self._busy_s = 0.0
        self._working_since: float | None = None
        self._part = name
        self._thread = threading.Thread(target=self._run, name=f"myxtts-{name}", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """Asks the worker to end; it does so at its next hand-off."""
        self._source.stop()
        self._sink.stop()

    def join(self, timeout_s: float = JOIN_SECONDS) -> None:
        """Waits for the worker to end. Raises `WorkStalledError` with its stack when it does not."""
        if self._thread.ident is None:
            return
        self._thread.join(timeout_s)
        if self._thread.is_alive():
            raise WorkStalledError(
                f"Stage {self.name!r} did not stop within {timeout_s:g} s. It is here:\n{self.format_stack()}"
            )

    def report_part(self, part: str) -> None:
        """Says which part of its work the worker is doing, for whoever asks where it hangs. From its own thread."""
        self._part = part

    def read_work(self) -> Work | None:
        """What the worker is doing; None while it waits for its neighbours. For any thread."""
        since, items = self._working_since, self._items
        return None if since is None else Work(self._part, items, since, is_first=items == 0)

    def format_stack(self) -> str:
        """Where the thread is at this moment."""
        return format_stack(self._thread.ident)

    def read_facts(self) -> WorkerFacts:
        return WorkerFacts(self.name, self._items, self._busy_s)

    def _run(self) -> None:
        try:
            while True:
                self._do_one_item()
        except EndOfStream:
            self._sink.finish()
        except Stopped:
            # From either side; the other side must not be left waiting.
            self.stop()
        except (WorkFailedError, ProducerFailedError) as error:
            # Something before this worker failed; the error already says what.
            self._sink.fail(error)
            self._source.stop()
        except BaseException as error:  # noqa: BLE001  the one broad catch: it re-raises in the neighbours, by name
            self._fail(error)
        finally:
            self._working_since = None

    def _do_one_item(self) -> None:
        # A function of its own, so that no local outlives it: a worker that waits for its next item must not keep the
        # buffers of its last one alive.
        self._sink.reserve()
        item = self._source.take()
        self._working_since = time.perf_counter()
        result = self._work(item)
        self._busy_s += time.perf_counter() - self._working_since
        self._working_since = None
        self._items += 1
        # The result is made: what it was made from may be overwritten now.
        self._source.release()
        self._sink.commit(result)

    def _fail(self, error: BaseException) -> None:
        trace = "".join(traceback.format_exception(error)).rstrip()
        failure = WorkFailedError(
            f"Stage {self.name!r} failed at its item {self._items}: {type(error).__name__}: {error}\n{trace}"
        )
        failure.__cause__ = error
        self._sink.fail(failure)
        self._source.stop()


def take_watched(last: Handoff[T], workers: Sequence[WorkerThread[Any, Any]], limits: TimeLimits) -> T:
    """The next item of the last hand-off, as `take`, while its workers are watched as by `wait_watched`."""
    wait_watched(last, workers, limits)
    return last.take()


def wait_watched(last: Handoff[Any], workers: Sequence[WorkerThread[Any, Any]], limits: TimeLimits) -> None:
    """Waits until `take` need not wait; a worker that makes no progress meanwhile is named, and in the end an error."""
    watches = [(worker, StallWatch(limits)) for worker in workers]
    while not last.wait_for_item(limits.look_s):
        for worker, watch in watches:
            stall = watch.look(worker.read_work())
            if stall is not None:
                _tell_stall(stall, worker.format_stack())


def _tell_stall(stall: Stall, stack: str) -> None:
    if stall.is_final:
        raise WorkStalledError(f"{stall} The run ends. It is here:\n{stack}")
    _log.warning("%s The run ends if that lasts %g s. It is here:\n%s", stall, FINAL * stall.limit_s, stack)


def stop_workers(workers: Sequence[WorkerThread[Any, Any]], timeout_s: float = JOIN_SECONDS) -> None:
    """Stops workers and waits for all of them; the first that does not stop is the error."""
    for worker in workers:
        worker.stop()
    stalled: WorkStalledError | None = None
    for worker in workers:
        try:
            worker.join(timeout_s)
        except WorkStalledError as error:
            stalled = stalled or error
    if stalled is not None:
        raise stalled
