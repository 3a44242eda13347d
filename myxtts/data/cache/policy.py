"""Where prepared features are kept when nobody says: `--cache auto`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from myxtts.data.cache.free_space import compute_memory_limit
from myxtts.data.cache.memory_store import RECORD_OVERHEAD_BYTES
from myxtts.data.cache.records import ENTRY

Policy = Literal["off", "memory", "disk"]

_WORTHWHILE_SHARE = 0.1
"""Of the preparation time. A cache that saves less is not worth its space."""


@dataclass(frozen=True, kw_only=True)
class Measured:
    """What was measured on this machine, with this corpus and encoder."""

    prepare_seconds_per_clip: float
    read_seconds_per_clip: float
    """From a cache on disk; writing is taken to cost the same, and reading from memory nothing."""
    bytes_per_clip: float
    clip_count: int
    epochs: int
    """Still to come."""
    free_memory_bytes: int
    free_disk_bytes: int
    """Where the cache would be, without what must stay free: `read_free_disk_bytes`."""
    clips_on_disk: int = 0
    """Clips that an earlier run has left in the cache on disk."""


@dataclass(frozen=True)
class Decision:
    """Where features are kept, and why, as a sentence for the log."""

    policy: Policy
    reason: str


def decide_policy(measured: Measured) -> Decision:
    """The policy with the least preparing and reading over all epochs, or `off` where a cache would not pay."""
    if measured.clip_count == 0:
        return Decision("off", "There are no clips to prepare.")
    if measured.prepare_seconds_per_clip <= measured.read_seconds_per_clip:
        return Decision(
            "off",
            f"Preparing a clip takes {_format_seconds(measured.prepare_seconds_per_clip)}, no longer than reading it back "
            f"({_format_seconds(measured.read_seconds_per_clip)}).",
        )
    if measured.epochs < 2 and measured.clips_on_disk == 0:
        return Decision("off", "Every clip is prepared only once in one epoch, so nothing would be read back.")
    spent = _estimate_seconds(measured)
    best = min(spent, key=lambda policy: spent[policy])
    saved = spent["off"] - spent[best]
    if best == "off" or saved < _WORTHWHILE_SHARE * spent["off"]:
        return Decision("off", _explain_off(measured, spent))
    return Decision(
        best,
        f"{_explain_place(measured, best, has_disk='disk' in spent)}, which saves {_format_seconds(saved)} of preparing.",
    )


def _estimate_seconds(measured: Measured) -> dict[Policy, float]:
    """Preparing and reading in all epochs, for each policy that there is room for. The quickest to read comes first."""
    visits = measured.clip_count * measured.epochs
    prepare, read = measured.prepare_seconds_per_clip, measured.read_seconds_per_clip
    in_memory = (visits - measured.clip_count) * _compute_memory_share(measured)
    spent: dict[Policy, float] = {"memory": (visits - in_memory) * prepare}
    missing = _count_missing(measured)
    if missing * _compute_disk_bytes(measured) <= measured.free_disk_bytes:
        spent["disk"] = missing * prepare + visits * read
    spent["off"] = visits * prepare
    return spent


def _compute_memory_share(measured: Measured) -> float:
    """The part of the clips that fits in memory."""
    needed = measured.clip_count * (measured.bytes_per_clip + RECORD_OVERHEAD_BYTES)
    return min(1.0, compute_memory_limit(measured.free_memory_bytes) / needed)


def _compute_disk_bytes(measured: Measured) -> float:
    return measured.bytes_per_clip + ENTRY.itemsize


def _count_missing(measured: Measured) -> int:
    return max(0, measured.clip_count - measured.clips_on_disk)


def _explain_place(measured: Measured, policy: Policy, *, has_disk: bool) -> str:
    size = _format_bytes(measured.clip_count * measured.bytes_per_clip)
    share = _compute_memory_share(measured)
    if policy == "memory":
        if share == 1:
            return f"All {measured.clip_count} clips ({size}) fit in memory"
        return f"{share:.0%} of the {size} fit in memory" + ("" if has_disk else " and the disk has no room")
    if measured.clips_on_disk:
        done = min(measured.clips_on_disk, measured.clip_count)
        return f"The disk holds {done} of {measured.clip_count} clips already"
    return f"{size} are too much for memory but fit on the disk"


def _explain_off(measured: Measured, spent: dict[Policy, float]) -> str:
    if "disk" not in spent:
        size = _format_bytes(measured.clip_count * measured.bytes_per_clip)
        return (
            f"{size} fit neither in memory ({_format_bytes(compute_memory_limit(measured.free_memory_bytes))} may be used) "
            f"nor on the disk ({_format_bytes(measured.free_disk_bytes)})."
        )
    saved = spent["off"] - min(spent.values())
    return f"A cache would save only {_format_seconds(saved)} of {_format_seconds(spent['off'])} of preparing."


def _format_bytes(count: float) -> str:
    for unit in ("B", "kB", "MB", "GB"):
        if count < 999.5:
            return f"{count:.3g} {unit}"
        count /= 1000
    return f"{count:.3g} TB"


def _format_seconds(seconds: float) -> str:
    if seconds < 0.9995:
        return f"{seconds * 1000:.3g} ms"
    if seconds < 120:
        return f"{seconds:.3g} s"
    return f"{seconds / 60:.0f} min" if seconds < 7200 else f"{seconds / 3600:.1f} h"
