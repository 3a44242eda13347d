"""How much of the host's memory this process may still take."""

from __future__ import annotations

from pathlib import Path

import psutil


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
