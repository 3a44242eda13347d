"""What a producer says before it ends because of an error."""

from __future__ import annotations

import contextlib
import errno
import traceback

from myxtts.pipeline.messages import LONGEST_TEXT, Event, Failed, RanOutOfMemory, dump_event
from myxtts.pipeline.process_memory import lift_own_memory_limit
from myxtts.pipeline.wire import Connection, PeerGone

OUT_OF_MEMORY_EXIT_CODE = 79
FAILED_EXIT_CODE = 70
_DISGUISES = (
    "cannot allocate memory",
    "failed to map segment from shared object",  # ImportError of a module that is loaded late
    "can't start new thread",
)


def say_last_word(
    connection: Connection, error: BaseException, stage: str, position: int | None, *, is_limited: bool
) -> int:
    """Tells the trainer why this process ends, and returns the exit code it should end with."""
    if isinstance(error, PeerGone):
        # The trainer is gone or has closed the connection: there is nothing to tell, and nobody to tell it to.
        return 0
    lift_own_memory_limit()
    ran_out = is_out_of_memory(error, is_limited=is_limited)
    with contextlib.suppress(PeerGone, MemoryError):
        summary = f"{type(error).__name__}: {error}"[: LONGEST_TEXT // 4]
        # Of a long traceback the end says more than the beginning.
        trace = "".join(traceback.format_exception(error))[-LONGEST_TEXT // 2 :]
        last: Event = RanOutOfMemory(stage, position, summary) if ran_out else Failed(stage, position, summary, trace)
        connection.send(dump_event(last))
    return OUT_OF_MEMORY_EXIT_CODE if ran_out else FAILED_EXIT_CODE


def is_out_of_memory(error: BaseException | None, *, is_limited: bool) -> bool:
    """Whether an error, or what it was raised from, says that memory ran out.

    TensorFlow's error is known by its name, so that a producer imports TensorFlow only when its task does.

    Args:
        is_limited: whether the operating system limits this process's memory. What is refused then comes in disguise.
    """
    while error is not None:
        names = {cls.__name__ for cls in type(error).__mro__}
        if names & {"MemoryError", "ResourceExhaustedError"}:
            return True
        if isinstance(error, OSError) and error.errno == errno.ENOMEM:
            return True
        if is_limited and any(text in str(error).lower() for text in _DISGUISES):
            return True
        error = error.__cause__
    return False
