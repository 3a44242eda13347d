"""A stage: one thread that takes, works and hands on. The only owner of threads in this room.

Whatever goes wrong in a stage ends the run, with the name of the stage and the original traceback: it is carried to
both neighbours, so that nobody waits for a stage that is gone.
"""

from __future__ import annotations

import logging
import threading
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Generic, Protocol, TypeVar

from myxtts.errors import ProducerFailedError, StageFailedError, StageStalledError
from myxtts.pipeline.handoff import EndOfStream, Handoff, Stopped
from myxtts.pipeline.patience import FINAL, Patience, Stall, StallWatch, Work, format_stack

_log = logging.getLogger(__name__)

T = TypeVar("T")
Item = TypeVar("Item", covariant=True)
Given = TypeVar("Given", contravariant=True)
In = TypeVar("In")
Out = TypeVar("Out")

JOIN_SECONDS = 30.0


class Source(Protocol[Item]):
    """Where a stage takes from: a hand-off, a producer process, or a `Feed` at the beginning."""

    def take(self) -> Item: ...

    def release(self) -> None: ...

    def stop(self) -> None: ...


class Sink(Protocol[Given]):
    """Where a stage hands its results on to: a hand-off, or the wire at the end of a process."""

    def reserve(self) -> None: ...

    def commit(self, item: Given) -> None: ...

    def finish(self) -> None: ...

    def fail(self, error: BaseException) -> None: ...

    def stop(self) -> None: ...


class Feed(Generic[In]):
    """A source made of an iterator, for the first stage: its items need no slot."""

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
class StageFacts:
    """What a stage has done so far."""

    name: str
    items: int
    busy_s: float
    """Time spent working: not waiting for a batch, not waiting for a slot."""


class Stage(Generic[In, Out]):
    """Runs `work` on everything from `source` and hands the results on to `sink`, in a thread of its own."""

    def __init__(
        self,
        name: str,
        work: Callable[[In], Out],
        source: Source[In],
        sink: Sink[Out],
        clock: Callable[[], float] = time.perf_counter,
    ):
        self.name = name
        self._work = work
        self._source = source
        self._sink = sink
        self._clock = clock
        self._items = 0
        self._busy_s = 0.0
        self._working_since: float | None = None
        self._part = name
        self._thread = threading.Thread(target=self._run, name=f"myxtts-{name}", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """Asks the stage to end; it does so at its next hand-off."""
        self._source.stop()
        self._sink.stop()

    def join(self, timeout_s: float = JOIN_SECONDS) -> None:
        """Waits for the stage to end. Raises `StageStalledError` with its stack when it does not."""
        if self._thread.ident is None:
            return
        self._thread.join(timeout_s)
        if self._thread.is_alive():
            raise StageStalledError(
                f"Stage {self.name!r} did not stop within {timeout_s:g} s. It is here:\n{self.format_stack()}"
            )

    def report_part(self, part: str) -> None:
        """Says which part of its work the stage is doing, for whoever asks where it hangs. From its own thread."""
        self._part = part

    def read_work(self) -> Work | None:
        """What the stage is doing; None while it waits for its neighbours. For any thread."""
        since, items = self._working_since, self._items
        return None if since is None else Work(self._part, items, since, is_first=items == 0)

    def format_stack(self) -> str:
        """Where the stage's thread is at this moment."""
        return format_stack(self._thread.ident)

    def read_facts(self) -> StageFacts:
        return StageFacts(self.name, self._items, self._busy_s)

    def _run(self) -> None:
        try:
            while True:
                self._do_one_item()
        except EndOfStream:
            self._sink.finish()
        except Stopped:
            # From either side; the other side must not be left waiting.
            self.stop()
        except (StageFailedError, ProducerFailedError) as error:
            # Something before this stage failed; the error already says what.
            self._sink.fail(error)
            self._source.stop()
        except BaseException as error:  # noqa: BLE001  the one broad catch: it re-raises in the neighbours, by name
            self._fail(error)
        finally:
            self._working_since = None

    def _do_one_item(self) -> None:
        # A function of its own, so that no local outlives it: a stage that waits for its next item must not keep the
        # buffers of its last one alive.
        self._sink.reserve()
        if isinstance(self._source, Feed):
            # The iterator works in this thread.
            self._begin_work()
            item = self._source.take()
        else:
            item = self._source.take()
            self._begin_work()
        result = self._work(item)
        self._end_work()
        # The result is made: what it was made from may be overwritten now.
        self._source.release()
        self._sink.commit(result)

    def _begin_work(self) -> None:
        self._working_since = self._clock()

    def _end_work(self) -> None:
        assert self._working_since is not None
        self._busy_s += self._clock() - self._working_since
        self._working_since = None
        self._items += 1

    def _fail(self, error: BaseException) -> None:
        trace = "".join(traceback.format_exception(error)).rstrip()
        failure = StageFailedError(
            f"Stage {self.name!r} failed at its item {self._items}: {type(error).__name__}: {error}\n{trace}"
        )
        failure.__cause__ = error
        self._sink.fail(failure)
        self._source.stop()


def take_watched(last: Handoff[T], stages: Sequence[Stage[Any, Any]], patience: Patience) -> T:
    """The next item of the last hand-off, as `take`, while its stages are watched as by `wait_watched`."""
    wait_watched(last, stages, patience)
    return last.take()


def wait_watched(last: Handoff[Any], stages: Sequence[Stage[Any, Any]], patience: Patience) -> None:
    """Waits until `take` need not wait; a stage that makes no progress meanwhile is named, and in the end an error."""
    watches = [(stage, StallWatch(patience)) for stage in stages]
    while not last.wait_for_item(patience.look_s):
        for stage, watch in watches:
            stall = watch.look(stage.read_work())
            if stall is not None:
                _tell_stall(stall, stage.format_stack())


def _tell_stall(stall: Stall, stack: str) -> None:
    if stall.is_final:
        raise StageStalledError(f"{stall} The run ends. It is here:\n{stack}")
    _log.warning("%s The run ends if that lasts %g s. It is here:\n%s", stall, FINAL * stall.limit_s, stack)


def stop_stages(stages: Sequence[Stage[Any, Any]], timeout_s: float = JOIN_SECONDS) -> None:
    """Stops stages and waits for all of them; the first that does not stop is the error."""
    for stage in stages:
        stage.stop()
    stalled: StageStalledError | None = None
    for stage in stages:
        try:
            stage.join(timeout_s)
        except StageStalledError as error:
            stalled = stalled or error
    if stalled is not None:
        raise stalled
