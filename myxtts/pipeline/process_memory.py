"""Memory of a process: what it holds, and a limit that the operating system enforces."""

from __future__ import annotations

import mmap
import os
import resource
from dataclasses import dataclass
from pathlib import Path


def format_bytes(size_bytes: int) -> str:
    """A size in the largest unit that leaves a number of at least one."""
    size = float(size_bytes)
    for unit in ("B", "kB", "MB"):
        if size < 1024:
            return f"{size:.0f} {unit}" if unit == "B" else f"{size:.1f} {unit}"
        size /= 1024
    return f"{size:.1f} GB"


@dataclass(frozen=True)
class MemoryReading:
    """What a process held at one moment."""

    resident_bytes: int
    peak_bytes: int
    """The most it ever held."""
    address_space_bytes: int

    def __str__(self) -> str:
        return f"{format_bytes(self.resident_bytes)} resident, {format_bytes(self.peak_bytes)} at most"


def read_process_memory(pid: int) -> MemoryReading | None:
    """The memory of a process, or None when it is gone."""
    try:
        lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    except OSError:
        return None
    fields = dict(line.split(":", 1) for line in lines if line.startswith("Vm"))
    if "VmRSS" not in fields:
        # Dead, and not yet waited for.
        return None
    sizes = {name: int(value.split()[0]) * 1024 for name, value in fields.items()}
    return MemoryReading(sizes["VmRSS"], sizes["VmHWM"], sizes["VmSize"])


def read_private_bytes(pid: int) -> int | None:
    """What a process holds by itself, or None when it is gone: without files and shared memory that it has mapped, which
    come and go with what the kernel caches. Takes some microseconds."""
    try:
        with open(f"/proc/{pid}/statm", "rb", buffering=0) as file:
            _, resident, shared, *_ = file.read().split()
    except (OSError, ValueError):
        return None
    return (int(resident) - int(shared)) * mmap.PAGESIZE


def count_oom_kills() -> int:
    """How many processes the kernel has killed for want of memory since the machine started."""
    try:
        lines = Path("/proc/vmstat").read_text().splitlines()
    except OSError:
        return 0
    return next((int(line.split()[1]) for line in lines if line.startswith("oom_kill ")), 0)


def limit_own_memory(limit_bytes: int, before_bytes: int) -> None:
    """Limits what this process may take. Raises `MemoryError` when it already holds more.

    The operating system can limit address space only, most of which a process with many threads never uses. So what is
    held so far is counted by what is resident, and the address space may grow by the rest of the limit.

    Args:
        before_bytes: what was resident before the limited work began; it does not count.
    """
    now = read_process_memory(os.getpid())
    assert now is not None
    left_bytes = limit_bytes - (now.resident_bytes - before_bytes)
    if left_bytes < 0:
        raise MemoryError(
            f"{format_bytes(now.resident_bytes - before_bytes)} are in use after warm-up; the limit is {format_bytes(limit_bytes)}"
        )
    _, hard = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (now.address_space_bytes + left_bytes, hard))


def lift_own_memory_limit() -> None:
    """Undoes `limit_own_memory`: a process that ran out of memory needs some to say so."""
    _, hard = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (hard, hard))
