"""What a run needs of each device's memory, before it starts: a bill against the limit, and a batch that fits."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from myxtts.monitoring.errors import MemoryBillError
from myxtts.monitoring.words import format_bytes


class BillItem(NamedTuple):
    """One thing that takes memory."""

    name: str
    size_bytes: int
    is_estimate: bool = False


@dataclass(frozen=True)
class DeviceBill:
    """Everything one device must hold at once."""

    device: str
    role: str
    items: tuple[BillItem, ...]
    limit_bytes: int | None
    is_free: bool = False
    """Whether the limit is what is free on the card, and not one that was set."""

    @property
    def total_bytes(self) -> int:
        return sum(item.size_bytes for item in self.items)

    @property
    def fits(self) -> bool | None:
        """None when the limit is unknown."""
        return None if self.limit_bytes is None else self.total_bytes <= self.limit_bytes


@dataclass(frozen=True)
class BatchChoice:
    """How many clips at once, and how often, for one update."""

    batch_size: int
    accumulation: int

    def __str__(self) -> str:
        return f"--batch-size {self.batch_size} --grad-accum {self.accumulation}"


def suggest_batch(wanted: BatchChoice, cost_bytes: Callable[[int], int], limit_bytes: int) -> BatchChoice | None:
    """The largest batch that fits with the same number of clips per update; None when not even one clip fits.

    Args:
        cost_bytes: what the device must hold for a batch of so many clips.
    """
    clips = wanted.batch_size * wanted.accumulation
    for batch_size in range(wanted.batch_size, 0, -1):
        if clips % batch_size == 0 and cost_bytes(batch_size) <= limit_bytes:
            return BatchChoice(batch_size, clips // batch_size)
    return None


_WAYS_OUT = {
    "model": "take a smaller --model-size or --gradient-checkpointing, or {more_room}.",
    "data": "{more_room}, or take shorter clips (--max-clip-seconds).",
}


def check_bill(bill: DeviceBill, suggestion: BatchChoice | None) -> None:
    """Raises `MemoryBillError` when a bill is known to exceed its limit. What is unknown is not refused."""
    if bill.fits is not False:
        return
    if suggestion is not None:
        advice = f"This fits, with the same number of clips per update: {suggestion}"
    else:
        larger = f"take a larger limit (--{bill.role}-gpu-memory)"
        more_room = "free the card (`nvidia-smi` shows who uses it)" if bill.is_free else larger
        advice = f"Not even a single clip fits: {_WAYS_OUT[bill.role].format(more_room=more_room)}"
    bound = "its card has free" if bill.is_free else "its limit is"
    raise MemoryBillError(
        f"{bill.device} ({bill.role} device) needs about {format_bytes(bill.total_bytes)}, {bound} "
        f"{format_bytes(bill.limit_bytes)}.\n{format_bills([bill])}\n{advice}"
    )


def format_bills(bills: Sequence[DeviceBill]) -> str:
    """The bills as one table within 80 columns: a row per item, a column per device."""
    cells = [
        {item.name: "~" * item.is_estimate + format_bytes(item.size_bytes) for item in bill.items} for bill in bills
    ]
    verdicts = {None: "not known to fit", True: "fits", False: "DOES NOT FIT"}
    rows = [
        ["Memory", *(f"{bill.device} ({bill.role})" for bill in bills)],
        *([name, *(cell.get(name, "-") for cell in cells)] for name in dict.fromkeys(name for cell in cells for name in cell)),
        ["total", *(format_bytes(bill.total_bytes) for bill in bills)],
        ["free" if all(bill.is_free for bill in bills) else "limit", *(format_bytes(bill.limit_bytes) for bill in bills)],
        ["", *(verdicts[bill.fits] for bill in bills)],
    ]  # fmt: skip
    first, *widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return "\n".join("  ".join([row[0].ljust(first), *map(str.rjust, row[1:], widths)]).rstrip() for row in rows)
