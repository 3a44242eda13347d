"""Why a producer died."""

from __future__ import annotations

import signal
from dataclasses import dataclass
from enum import StrEnum

from myxtts.pipeline.last_word import OUT_OF_MEMORY_EXIT_CODE
from myxtts.pipeline.process_memory import MemoryReading

MEMORY_SIGNALS = frozenset({signal.SIGSEGV, signal.SIGBUS, signal.SIGABRT})
"""How code that does not expect to be refused memory ends. TensorFlow's convolutions do."""


class Cause(StrEnum):
    OUT_OF_MEMORY = "out of memory"
    PROBABLY_OUT_OF_MEMORY = "probably out of memory"
    SIGNAL = "signal"
    EXIT = "exit"
    HANG = "hang"


@dataclass(frozen=True)
class Death:
    """The end of one producer process."""

    cause: Cause
    detail: str
    stage: str
    """What it had last said it was doing."""
    position: int | None
    """The batch it was working on, if any."""
    memory: MemoryReading | None
    """Its last reading."""
    report: str
    """The end of what it wrote to its standard error."""

    def __str__(self) -> str:
        """Cause, stage, batch and memory in one line."""
        where = describe_place(self.stage, self.position)
        memory = "memory unknown" if self.memory is None else str(self.memory)
        detail = "" if self.detail == self.cause else f" ({self.detail})"
        return f"{self.cause}{detail} {where}; last memory reading: {memory}"

    def quote_report(self) -> str:
        """The report as a paragraph to put behind a sentence; empty when there is none."""
        return f"\nIts last words:\n{self.report}" if self.report else ""


def describe_place(stage: str, position: int | None) -> str:
    """Where a producer was, in words."""
    return f"in stage {stage!r}" + ("" if position is None else f" of batch {position}")


def classify_exit(exit_code: int, *, is_limited: bool, oom_kills: int) -> tuple[Cause, str]:
    """Cause and detail of a death that nobody announced.

    Args:
        exit_code: as the operating system gives it, negative for a signal.
        is_limited: whether the operating system limited the producer's memory.
        oom_kills: how many processes the kernel killed for want of memory during the producer's life.
    """
    if exit_code == OUT_OF_MEMORY_EXIT_CODE:
        return Cause.OUT_OF_MEMORY, Cause.OUT_OF_MEMORY
    if exit_code >= 0:
        return Cause.EXIT, f"exit code {exit_code}"
    number = -exit_code
    name = signal.Signals(number).name if number in set(signal.Signals) else f"signal {number}"
    if is_limited and number in MEMORY_SIGNALS:
        return Cause.PROBABLY_OUT_OF_MEMORY, f"{name} under a memory limit"
    # A limit on address space never ends in SIGKILL, so the limit says nothing about it; the kernel's own count does.
    if number == signal.SIGKILL and oom_kills > 0:
        return Cause.PROBABLY_OUT_OF_MEMORY, f"{name} while the machine was out of memory"
    return Cause.SIGNAL, name
