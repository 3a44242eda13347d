"""What a run needs of each device's memory, before it starts: a bill against the limit, and a batch that fits."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from myxtts.monitoring.errors import MemoryBillError
from myxtts.monitoring.words import format_bytes


@dataclass(frozen=True)
class BillItem:
    """One thing that takes memory."""

    name: str
    size_bytes: int | None
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
    def total_bytes(self) -> int | None:
        """None as soon as one item is unknown."""
        sizes = [item.size_bytes for item in self.items]
        return None if None in sizes else sum(size for size in sizes if size is not None)

    @property
    def fits(self) -> bool | None:
        """None when the total or the limit is unknown."""
        total = self.total_bytes
        return None if total is None or self.limit_bytes is None else total <= self.limit_bytes


@dataclass(frozen=True)
class BatchChoice:
    """How many clips at once, and how often, for one update."""

    batch_size: int
    accumulation: int

    def __str__(self) -> str:
        return f"--batch-size {self.batch_size} --grad-accum {self.accumulation}"


def bill_model_device(
    device: str,
    *,
    weights_bytes: int | None,
    gradients_bytes: int | None,
    optimizer_bytes: int | None,
    activations_bytes: int | None,
    slots_bytes: int | None,
    limit_bytes: int | None,
) -> DeviceBill:
    """The bill of the device that trains."""
    items = (
        BillItem("weights", weights_bytes),
        BillItem("gradients", gradients_bytes),
        BillItem("optimizer", optimizer_bytes),
        BillItem("activations", activations_bytes, is_estimate=True),
        BillItem("slots", slots_bytes),
    )
    return DeviceBill(device, "model", items, limit_bytes)


def bill_data_device(
    device: str,
    *,
    weights_bytes: int | None,
    activations_bytes: int | None,
    slots_bytes: int | None,
    limit_bytes: int | None,
) -> DeviceBill:
    """The bill of the device that prepares: it has neither gradients nor an optimizer."""
    items = (
        BillItem("weights", weights_bytes),
        BillItem("activations", activations_bytes, is_estimate=True),
        BillItem("slots", slots_bytes),
    )
    return DeviceBill(device, "data", items, limit_bytes)


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
    names = list(dict.fromkeys(item.name for bill in bills for item in bill.items))
    header = ["Memory", *(f"{bill.device} ({bill.role})" for bill in bills)]
    rows = [[name, *(_format_item(bill, name) for bill in bills)] for name in names]
    rows.append(["total", *(format_bytes(bill.total_bytes) for bill in bills)])
    rows.append(
        [
            "free" if all(bill.is_free for bill in bills) else "limit",
            *(format_bytes(bill.limit_bytes) for bill in bills),
        ]
    )
    rows.append(["", *(_format_verdict(bill) for bill in bills)])
    widths = [max(len(row[column]) for row in [header, *rows]) for column in range(len(header))]
    return "\n".join(_format_row(row, widths) for row in [header, *rows])


def _format_item(bill: DeviceBill, name: str) -> str:
    for item in bill.items:
        if item.name == name:
            sign = "~" if item.is_estimate and item.size_bytes is not None else ""
            return sign + format_bytes(item.size_bytes)
    return "-"


def _format_verdict(bill: DeviceBill) -> str:
    return {None: "not known to fit", True: "fits", False: "DOES NOT FIT"}[bill.fits]


def _format_row(cells: Sequence[str], widths: Sequence[int]) -> str:
    first, *rest = (
        cell.ljust(width) if not number else cell.rjust(width)
        for number, (cell, width) in enumerate(zip(cells, widths, strict=True))
    )
    return "  ".join([first, *rest]).rstrip()
