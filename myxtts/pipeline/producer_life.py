"""One life of the producer: a process, what it says, and how it ends."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

from myxtts.errors import ProducerFailedError
from myxtts.pipeline.child_process import ChildProcess
from myxtts.pipeline.death import Cause, Death, classify_exit, describe_place
from myxtts.pipeline.messages import (
    Committed,
    Event,
    Failed,
    RanOutOfMemory,
    Ready,
    parse_event,
)
from myxtts.pipeline.process_memory import MemoryReading, count_oom_kills
from myxtts.pipeline.stage import StallWatch, TimeLimits, Work
from myxtts.pipeline.status_board import Status
from myxtts.pipeline.wake import Wake
from myxtts.pipeline.wire import Message, PeerGone

_MEMORY_SECONDS = 0.25


@dataclass(frozen=True)
class Launch:
    """Everything a producer process is started with.

    Args:
        orders: sent at once, the first of them `begin`.
        is_limited: whether the orders set a memory limit that the operating system enforces.
    """

    ring_descriptor: int
    environment: Mapping[str, str]
    orders: tuple[Message, ...]
    is_limited: bool
    limits: TimeLimits


class ProducerLife:
    """A running producer process."""

    def __init__(self, launch: Launch, clock: Callable[[], float] = time.monotonic):
        self._launch = launch
        self._clock = clock
        self._has_worked = False
        self._last_word: RanOutOfMemory | None = None
        self._oom_kills = count_oom_kills()
        self._child = ChildProcess(launch.ring_descriptor, launch.environment)
        # Not read yet: a process that has just been started has a few pages, which would look like its size.
        self._memory: MemoryReading | None = None
        self._memory_read_at = clock()
        try:
            self.give(launch.orders)
        except BaseException:
            self._child.close()
            raise

    @property
    def pid(self) -> int:
        return self._child.pid

    def give(self, orders: Iterable[Message]) -> None:
        """Sends orders. A producer that is gone is noticed where all deaths are: in `receive`."""
        try:
            for order in orders:
                self._child.connection.send(order)
        except PeerGone:
            return

    def receive(self) -> Event | Death | None:
        """What the producer said next, its death, or None when it has said nothing.

        After a death nothing of the process is left. Raises `ProducerFailedError` for an error of the task itself.
        """
        try:
            message = self._child.connection.receive()
            if message is None:
                return None
            event = parse_event(message)
        except PeerGone:
            return self._bury(None)
        self._note(event)
        return self.receive() if isinstance(event, RanOutOfMemory) else event

    def wait(self, wake: Wake) -> Event | Death:
        """As `receive`, but waits; a producer that is silent for too long is killed. Raises `Stopped`."""
        # Made anew: the silence of a time in which nobody listened is not the producer's.
        watch = StallWatch(self._launch.limits, self._clock)
        while True:
            wake.check()
            has_ended = self._child.has_ended()
            event = self.receive()
            if event is not None:
                return event
            if has_ended:
                # Something it started holds its end of the connection open.
                return self._bury(None)
            self._read_memory_now_and_then()
            status = self._child.read_status()
            work = Work(status.stage, status.writes, 0.0, limit_s=self._find_time_limit(status.stage))
            stall = watch.look(work)
            if stall is not None:
                return self._bury_hanging(stall.limit_s, status)
            wake.wait_for(self._child.connection.fileno(), self._launch.limits.look_s)

    def end(self) -> None:
        """Ends the process and waits for it."""
        self._child.close()

    def _note(self, event: Event) -> None:
        self._read_memory_now_and_then()
        match event:
            case Ready():
                self._memory = self._child.read_memory() or self._memory
            case Committed():
                self._has_worked = True
                self._child.trim_report()
            case RanOutOfMemory():
                self._last_word = event
            case Failed():
                raise ProducerFailedError(
                    f"The producer failed {describe_place(event.stage, event.position)}: {event.summary}\n"
                    f"In the producer process:\n{event.traceback.rstrip()}"
                )

    def _read_memory_now_and_then(self) -> None:
        # Not every time: the kernel takes a tenth of a millisecond to answer.
        now = self._clock()
        if now - self._memory_read_at >= _MEMORY_SECONDS:
            self._memory = self._child.read_memory() or self._memory
            self._memory_read_at = now

    def _find_time_limit(self, stage: str) -> float:
        limits = self._launch.limits
        match stage:
            case "start":
                return limits.start_s
            case "import" | "load":
                return limits.import_s
            case _:
                return limits.steady_s if self._has_worked else limits.first_s

    def _bury_hanging(self, limit_s: float, status: Status) -> Death:
        # The signal for this can interrupt what it hangs in, so its status counts from before.
        self._child.write_stacks()
        self._memory = self._child.read_memory() or self._memory
        self._child.kill()
        return self._bury((Cause.HANG, f"said nothing for {limit_s:g} s"), status)

    def _bury(self, reason: tuple[Cause, str] | None, status: Status | None = None) -> Death:
        """Waits for the process, and finds out where and why it died as far as that is not known."""
        exit_code = self._child.wait()
        report = self._child.read_report()
        _, stage, position = status or self._child.read_status()
        self._child.close()
        if reason is not None:
            cause, detail = reason
        elif self._last_word is not None:
            cause, detail = Cause.OUT_OF_MEMORY, self._last_word.text
            stage, position = self._last_word.stage, self._last_word.position
        else:
            oom_kills = count_oom_kills() - self._oom_kills
            cause, detail = classify_exit(exit_code, is_limited=self._launch.is_limited, oom_kills=oom_kills)
        return Death(cause, detail, stage, position, self._memory, report)
