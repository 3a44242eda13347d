"""How much memory and disk a cache may take without hurting the run it serves."""

from __future__ import annotations

import os
from pathlib import Path

import psutil

MEMORY_SHARE = 0.5
"""Of the free memory. The rest is for what the run has yet to allocate: batches, workers, the host side of the model."""

DISK_RESERVE_BYTES = 512 * 2**20
"""Left free on the disk: a cache must not be the reason why a checkpoint cannot be written."""


def compute_memory_limit(free_bytes: int, asked_bytes: int | None = None) -> int:
    """Bytes of memory a cache may hold: what was asked for, but never more than a share of what is free."""
    ceiling = int(free_bytes * MEMORY_SHARE)
    return ceiling if asked_bytes is None else min(asked_bytes, ceiling)


def read_free_memory_bytes(
    proc: Path = Path("/proc/self/cgroup"), control_groups: Path = Path("/sys/fs/cgroup")
) -> int:
    """Memory this process could still take: what the host has, or less where a container or a job is limited."""
    free = int(psutil.virtual_memory().available)
    for group in _list_control_groups(proc, control_groups):
        room = _read_group_room(group)
        if room is not None:
            free = min(free, room)
    return max(0, free)


def read_free_disk_bytes(folder: Path) -> int:
    """Space a user may write below a folder, which need not exist yet, without what stays reserved."""
    existing = next(path for path in (folder, *folder.absolute().parents) if path.exists())
    status = os.statvfs(existing)
    return max(0, status.f_bavail * status.f_frsize - DISK_RESERVE_BYTES)


def _list_control_groups(proc: Path, control_groups: Path) -> list[Path]:
    """The control group of this process and those above it: each may have a limit."""
    try:
        lines = proc.read_text().splitlines()
    except OSError:
        return []
    # "0::/path" is the unified hierarchy; the numbered lines are those of version 1.
    name = next((line.removeprefix("0::/") for line in lines if line.startswith("0::/")), None)
    if name is None:
        return []
    parts = Path(name).parts
    return [control_groups.joinpath(*parts[:depth]) for depth in range(len(parts), -1, -1)]


def _read_group_room(group: Path) -> int | None:
    """Bytes below the group's limit; None where there is no limit."""
    try:
        limit = (group / "memory.max").read_text().strip()
        if limit == "max":
            return None
        used = int((group / "memory.current").read_text())
        facts = dict(line.split() for line in (group / "memory.stat").read_text().splitlines())
        # Cached file pages count as used, but the kernel gives them back when memory is asked for.
        return int(limit) - used + int(facts.get("inactive_file", 0))
    except (OSError, ValueError):
        return None
