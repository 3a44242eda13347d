"""How much memory and disk a cache may take without hurting the run it serves."""

from __future__ import annotations

import os
from pathlib import Path

MEMORY_SHARE = 0.5
"""Of the free memory. The rest is for what the run has yet to allocate: batches, workers, the host side of the model."""

DISK_RESERVE_BYTES = 512 * 2**20
"""Left free on the disk: a cache must not be the reason why a checkpoint cannot be written."""


def compute_memory_limit(free_bytes: int, asked_bytes: int | None = None) -> int:
    """Bytes of memory a cache may hold: what was asked for, but never more than a share of what is free."""
    ceiling = int(free_bytes * MEMORY_SHARE)
    return ceiling if asked_bytes is None else min(asked_bytes, ceiling)


def read_free_disk_bytes(folder: Path) -> int:
    """Space a user may write below a folder, which need not exist yet, without what stays reserved."""
    existing = next(path for path in (folder, *folder.absolute().parents) if path.exists())
    status = os.statvfs(existing)
    return max(0, status.f_bavail * status.f_frsize - DISK_RESERVE_BYTES)
