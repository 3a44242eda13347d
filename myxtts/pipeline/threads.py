"""Worker threads, and the slots by which they hand on and measure who waits. The only owner of threads in this room.

A slot is taken from the moment a batch begins to be made until the step that uses it is done: three hold one batch being trained
on, one in flight and one being made. Whatever goes wrong in a thread is carried to both neighbours, with the name of its work and
the original traceback. `StallWatch` is the one rule for when work hangs: a warning first, the end of the run later.
"""

from __future__ import annotations

import logging
import sys
import threading
import time
import traceback
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Generic, Literal, NamedTuple, Protocol, Self, TypeVar

from myxtts.errors import ProducerFailedError, WorkFailedError, WorkStalledError
from myxtts.processes import IMPORT_S

_log = logging.getLogger(__name__)

T = TypeVar("T")
Item = TypeVar("Item", covariant=True)
In = TypeVar("In")
Out = TypeVar("Out")

SLOTS = 3


class Stopped(Exception):
    """The pipeline is shutting down; whoever waits at a hand-off leaves quietly."""


class EndOfStream(Exception):
    """The thread before has handed on everything there is."""


@dataclass(frozen=True)
class HandoffFacts:
    """What a hand-off has measured since it was made."""

    name: str
    items: int
    """Batches taken."""
    giver_wait_s: float
    """Time the thread before waited for a free slot."""
    taker_wait_s: float
    """Time the thread after waited for a batch."""
    readiness: float
    """Share of the time a batch was ready, 0 to 1. Near 0: the thread before is the bottleneck. Near 1: the one after."""


class WaitMeter:
    """The waiting of both sides of one hand-off, and how long it had nothing ready. For any thread."""

    def __init__(self, name: str, clock: Callable[[], float]):
        self._name, self._clock = name, clock
        self._lock = threading.Lock()
        self._made_at = clock()
        self._items = self._ready = 0
        self._total_s = {"giver": 0.0, "taker": 0.0, "empty": 0.0}
        self._since = {"empty": self._made_at}
        """What is being measured just now."""

    @contextmanager
    def waiting(self, side: Literal["giver", "taker"]) -> Iterator[None]:
        """Counts the time within as that of a side."""
        with self._lock:
            self._since[side] = self._clock()
        try:
            yield
        finally:
            with self._lock:
                self._end(side, self._clock())

    def note_ready(self, made_at: float | None = None, waited_s: float = 0.0) -> None:
        """An item was made.

        Args:
            made_at: where its giver measures time on the same clock, and the news may have waited to be read for a while.
            waited_s: how long that giver had waited for its slot.
        """
        with self._lock:
            now = self._clock()
            self._total_s["giver"] += waited_s
            if self._ready == 0:
                self._end("empty", now if made_at is None else min(made_at, now))
            self._ready += 1

    def note_taken(self, waited_s: float = 0.0) -> None:
        """A ready item was taken.

        Args:
            waited_s: how long its taker had waited for it, where that is not measured by `waiting`.
        """
        with self._lock:
            assert self._ready > 0, self._name
            self._total_s["taker"] += waited_s
            self._items += 1
            self._ready -= 1
            if self._ready == 0:
                self._since["empty"] = self._clock()

    def read(self) -> HandoffFacts:
        with self._lock:
            now = self._clock()
            giver_s, taker_s, empty_s = (self._measure(what, now) for what in self._total_s)
            elapsed_s = now - self._made_at
            readiness = 1.0 - empty_s / elapsed_s if elapsed_s > 0 else 0.0
            return HandoffFacts(self._name, self._items, giver_s, taker_s, readiness)

    def _measure(self, what: str, now: float) -> float:
        return self._total_s[what] + max(0.0, now - self._since.get(what, now))

    def _end(self, what: str, now: float) -> None:
        self._total_s[what] = self._measure(what, now)
        del self._since[what]


class Handoff(Generic[T]):
    """A bounded hand-over between one giving and one taking thread.

    The giver calls `reserve` before it starts to make an item and `commit` when it is made; the taker calls `take`, and
    `release` when it no longer needs the item.
    """

    def __init__(self, name: str, slots: int = SLOTS, clock: Callable[[], float] = time.perf_counter):
        assert slots >= 1, slots
        self.name = name
        self.slots = slots
        self._changed = threading.Condition()
        self._free = slots
        self._ready: deque[T] = deque()
        self._finished = False
        self._failure: BaseException | type[Stopped] | None = None
        self._meter = WaitMeter(name, clock)

    def reserve(self) -> None:
        """Waits for a free slot. Raises `Stopped` when the pipeline shuts down."""
        with self._changed, self._meter.waiting("giver"):
            self._wait_until(lambda: self._free > 0)
            self._free -= 1

    def commit(self, item: T) -> None:
        """Hands on an item in a slot reserved before."""
        with self._changed:
            self._ready.append(item)
            self._meter.note_ready()
            self._changed.notify_all()

    def take(self) -> T:
        """The next item, in the order of commits. Raises the giver's failure, `EndOfStream` or `Stopped`."""
        with self._changed:
            self.wait_for_item(None)
            item = self._ready.popleft()
            self._meter.note_taken()
            return item

    def wait_for_item(self, timeout_s: float | None) -> bool:
        """Whether `take` would not have to wait, after waiting up to `timeout_s` for that. Raises as `take` does."""
        with self._changed:
            with self._meter.waiting("taker"):
                self._wait_until(lambda: bool(self._ready) or self._finished, timeout_s)
            if self._finished and not self._ready:
                raise EndOfStream
            return bool(self._ready)

    def wait_until_full(self, timeout_s: float) -> bool:
        """Whether no more can be made ready, after waiting up to `timeout_s` for that. Raises as `take` does."""
        with self._changed:
            return self._wait_until(lambda: len(self._ready) == self.slots or self._finished, timeout_s)

    def release(self) -> None:
        """Frees the slot of an item taken before: nothing uses its buffers any more."""
        with self._changed:
            assert self._free < self.slots, f"{self.name}: more slots released than taken"
            self._free += 1
            self._changed.notify_all()

    def finish(self) -> None:
        """Says that no more items come; those already handed on can still be taken."""
        with self._changed:
            self._finished = True
            self._changed.notify_all()

    def fail(self, error: BaseException | type[Stopped]) -> None:
        """Makes both sides raise the first such error at once: the run is over, so what is ready is of no use."""
        with self._changed:
            self._failure = self._failure or error
            self._changed.notify_all()

    def stop(self) -> None:
        self.fail(Stopped)

    def read_facts(self) -> HandoffFacts:
        return self._meter.read()

    def _wait_until(self, is_true: Callable[[], bool], timeout_s: float | None = None) -> bool:
        self._changed.wait_for(lambda: self._failure is not None or is_true(), timeout_s)
        if self._failure is not None:
            raise self._failure
        return is_true()


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
    """Starting a process, importing and loading: TensorFlow from a cold network disk."""

    @classmethod
    def from_setting(cls, limit_s: float) -> Self:
        """Those of `training.watchdog_seconds`, which starting and importing do not depend on; 0 is without end."""
        return cls(limit_s, FIRST * limit_s) if limit_s else cls(*[float("inf")] * 3)

    @property
    def setup_s(self) -> float:
        """For what is done once before the first batch: large files are read, devices are set up. Never less than an import gets."""
        return max(self.first_s, self.import_s)

    @property
    def longest_s(self) -> float:
        """The longest that a producer which is not hanging leaves its trainer without a batch."""
        return 2 * self.import_s + self.first_s

    @property
    def look_s(self) -> float:
        """Time between two looks: often enough for the shortest limit, and never more often than that needs."""
        return min(1.0, self.steady_s / 4, self.first_s / 4)


class Work(NamedTuple):
    """What a thread is doing."""

    name: str
    item: int | None
    """Which one of its kind; None where they are not counted."""
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
        limit_s = work.limit_s or (self._limits.first_s if work.is_first else self._limits.steady_s)
        for told, times in enumerate((1, FINAL), start=1):
            if self._told < told and self._silent_s > times * limit_s:
                self._told = told
                return Stall(work, times * limit_s, is_final=times == FINAL)
        return None


def format_stack(ident: int | None) -> str:
    frame = None if ident is None else sys._current_frames().get(ident)
    return "".join(traceback.format_stack(frame)) if frame else "(not running)"


def format_all_stacks(first: int | None) -> str:
    """Where every thread of this process is, one of them first; not the one that asks."""
    names = {thread.ident: thread.name for thread in threading.enumerate()}
    others = [ident for ident in names if ident not in (first, threading.get_ident())]
    return "\n".join(f"Thread {names.get(ident, ident)}:\n{format_stack(ident)}" for ident in (first, *others))


class Source(Protocol[Item]):
    """Where a thread takes from: a hand-off, a producer process, or a `Feed` at the beginning."""

    def take(self) -> Item: ...

    def release(self) -> None: ...

    def stop(self) -> None: ...


class Feed(Generic[In]):
    """A source made of an iterator, for the first thread: its items need no slot."""

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
class WorkFacts:
    """How often a part of the work was done so far, and how long that took."""

    name: str
    items: int
    busy_s: float
    """Time spent working: not waiting for a batch, not waiting for a slot."""


class WorkerThread(Generic[In, Out]):
    """Runs `work` on everything from `source` and hands the results on to `sink`, in a thread of its own."""

    def __init__(self, name: str, work: Callable[[In], Out], source: Source[In], sink: Handoff[Out]):
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
        """Asks the thread to end; it does so at its next hand-off."""
        self._source.stop()
        self._sink.stop()

    def join(self, timeout_s: float = JOIN_SECONDS) -> bool:
        """Whether the thread has ended, after waiting for that."""
        if self._thread.ident is not None:
            self._thread.join(timeout_s)
        return not self._thread.is_alive()

    def report_part(self, part: str) -> None:
        """Says which part of its work the thread is doing, for whoever asks where it hangs. From itself."""
        self._part = part

    def read_work(self) -> Work | None:
        """What the thread is doing; None while it waits for its neighbours. For any thread."""
        since, items = self._working_since, self._items
        return None if since is None else Work(self._part, items, since, is_first=items == 0)

    def format_stack(self) -> str:
        return format_stack(self._thread.ident)

    def read_facts(self) -> WorkFacts:
        return WorkFacts(self.name, self._items, self._busy_s)

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
            # Something before this thread failed; the error already says what.
            self._fail(error)
        except BaseException as error:  # noqa: BLE001  the one broad catch: it re-raises in the neighbours, by name
            trace = "".join(traceback.format_exception(error)).rstrip()
            failure = WorkFailedError(
                f"Stage {self.name!r} failed at its item {self._items}: {type(error).__name__}: {error}\n{trace}"
            )
            failure.__cause__ = error
            self._fail(failure)
        finally:
            self._working_since = None

    def _do_one_item(self) -> None:
        # A function of its own, so that no local outlives it: a thread that waits for its next item must not keep the
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

    def _fail(self, failure: BaseException) -> None:
        self._sink.fail(failure)
        self._source.stop()


class SideThread:
    """Does one thing at a time beside the thread that asks for it."""

    def __init__(self, name: str):
        self._executor = ThreadPoolExecutor(1, f"myxtts-{name}")
        # Its thread begins now: later there may be no memory for it.
        self._last: Future[None] = self._executor.submit(lambda: None)

    def begin(self, work: Callable[[], None]) -> None:
        """Begins with something as soon as what was begun before is done."""
        self._last.result()
        self._last = self._executor.submit(work)


def wait_watched(last: Handoff[Any], threads: Sequence[WorkerThread[Any, Any]], limits: TimeLimits) -> None:
    """Waits until `take` need not wait; a thread that makes no progress meanwhile is named, and in the end an error."""
    watches = [(thread, StallWatch(limits)) for thread in threads]
    while not last.wait_for_item(limits.look_s):
        for thread, watch in watches:
            stall = watch.look(thread.read_work())
            if stall is None:
                continue
            stack = thread.format_stack()
            if stall.is_final:
                raise WorkStalledError(f"{stall} The run ends. It is here:\n{stack}")
            _log.warning("%s The run ends if that lasts %g s. It is here:\n%s", stall, FINAL * stall.limit_s, stack)


def stop_threads(threads: Sequence[WorkerThread[Any, Any]], timeout_s: float = JOIN_SECONDS) -> None:
    """Stops threads and waits for all of them; raises `WorkStalledError` for the first that does not stop."""
    for thread in threads:
        thread.stop()
    stalled = [thread for thread in threads if not thread.join(timeout_s)]
    if stalled:
        name, stack = stalled[0].name, stalled[0].format_stack()
        raise WorkStalledError(f"Stage {name!r} did not stop within {timeout_s:g} s. It is here:\n{stack}")
