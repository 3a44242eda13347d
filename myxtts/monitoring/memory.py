"""Memory of a run: the bill before it begins, and growth that does not end.

That is found by the slope of its peak after warm-up, and named by the phase in which it grows."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from statistics import fmean, pstdev
from typing import NamedTuple

from myxtts.devices.leaks import PeakHistory
from myxtts.devices.nvml import MIB
from myxtts.devices.plan import RolePlan
from myxtts.errors import MemoryBillError, NvmlError
from myxtts.monitoring.metrics import MemoryUse
from myxtts.units import format_bytes
from myxtts.utils.gpu_memory import read_role_memory

WARM_UP = 30
READINGS_PER_STRETCH = 30
"""So a leak is told after 150 readings at the earliest: what builds up and falls again every hundred steps is none."""
LEAST_GROWTH_BYTES = 32 * MIB
"""Over the stretches looked at. Allocators, threads and logs move by less for reasons of their own."""
LEAST_GROWTH_SHARE = 0.03
"""Of what was used after the warm-up, likewise: what is large moves by more."""
SURE = 3.0
"""Standard errors between what a phase takes each time and nothing."""
LEAK_EVENT = "memory keeps growing"
"""The name of the event in the metrics file."""
STEPS = 100
"""Slopes are told per so many updates."""


class Phase(StrEnum):
    """What a run does when memory is read."""

    TRAINING = "training"
    VALIDATION = "validation"
    CHECKPOINT = "checkpoint"
    PREPARATION = "preparation"
    """Of batches, where another process or device does it."""


_VISITS = (Phase.VALIDATION, Phase.CHECKPOINT)
"""What the training is interrupted for."""


class Memory(StrEnum):
    """Whose memory is watched."""

    MODEL_DEVICE = "device memory of the model"
    DATA_DEVICE = "device memory of the preparation"
    TRAINER = "host memory of the trainer"
    PRODUCER = "host memory of the producer"


@dataclass(frozen=True)
class Leak:
    """Memory that keeps growing."""

    memory: Memory
    phase: Phase
    stage: str
    """Of the run: codec, gpt or decoder."""
    step: int
    mib_per_100_steps: float
    used_bytes: int

    def __str__(self) -> str:
        """Which memory, how fast, in which phase, and what to do, in one line."""
        slower = f"A larger --{self.phase}-interval slows it; " if self.phase in _VISITS else ""
        if self.memory is Memory.PRODUCER:
            # Whom the system ends when its memory is used up is not ours to say.
            slower = (
                "A producer that dies of it is replaced, but the machine may run out of memory and end the trainer. "
            )
        return (
            f"Memory keeps growing: {self.memory}, {self.mib_per_100_steps:.0f} MB per {STEPS} steps, in the {self.phase} of the "
            f"{self.stage} stage; now {format_bytes(self.used_bytes)}. {slower}Ctrl-C saves the run and the same command goes on "
            "with memory freed."
        )


@dataclass
class _Series:
    """One memory from reading to reading."""

    last_bytes: int
    history: PeakHistory = field(default_factory=lambda: PeakHistory(WARM_UP, READINGS_PER_STRETCH))
    """Without what tracing has taken."""
    traced_bytes: int = 0
    base_bytes: int = 0
    """When the warm-up ended."""
    base_step: int = 0
    told_bytes: float = 0.0
    visits: dict[Phase, list[float]] = field(default_factory=dict)
    """What each validation and checkpoint has taken and not given back."""
    under_way: list[tuple[Phase, int]] = field(default_factory=list)
    """Validations and checkpoints since the last update, with what each has taken."""

    def add(self, step: int, phase: Phase, used_bytes: int, *, counts: bool) -> None:
        """A reading at the end of a phase."""
        grown, self.last_bytes = used_bytes - self.last_bytes, used_bytes
        if phase in _VISITS:
            self.under_way.append((phase, grown))
            return
        # The first update after validating or saving: what they have taken is given back in it, if at all.
        taken = sum(max(0, each) for _, each in self.under_way)
        for visit, each in self.under_way:
            share = max(0, each) / taken if taken else 0.0
            self.visits.setdefault(visit, []).append(each + grown * share)
        self.under_way.clear()
        if not counts:
            self.traced_bytes += grown
        self.history.add(used_bytes - self.traced_bytes)
        if self.history.readings <= WARM_UP:
            self.base_bytes, self.base_step = used_bytes - self.traced_bytes, step
            self.visits.clear()

    def find_growth(self, step: int) -> float:
        """Bytes per step while memory keeps growing, else 0; told once, and again whenever it has doubled."""
        if self.history.measure_growth() < max(LEAST_GROWTH_BYTES, LEAST_GROWTH_SHARE * self.base_bytes):
            return 0.0
        grown = self.history.last_peak - self.base_bytes
        if grown < 2 * self.told_bytes:
            return 0.0
        self.told_bytes = grown
        return self.history.measure_slope() * (self.history.readings - WARM_UP) / max(1, step - self.base_step)

    def find_phase(self, step: int, bytes_per_step: float, otherwise: Phase) -> Phase:
        """The phase that took most of a growth."""
        sure = [
            (sum(kept), phase)
            for phase, kept in self.visits.items()
            # Each visit took about as much and did not give it back: readings that jump about add up to something, too.
            if len(kept) > 1 and fmean(kept) > SURE * pstdev(kept) / math.sqrt(len(kept))
        ]
        most, phase = max(sure, default=(0.0, otherwise))
        return phase if most > bytes_per_step * (step - self.base_step) / 2 else otherwise


class MemoryWatch:
    """Watches the memories of one session of a run."""

    def __init__(self, stage: str):
        self._stage = stage
        self._series: dict[Memory, _Series] = {}

    def add(
        self, step: int, phase: Phase, used_bytes: Mapping[Memory, int | None], *, counts: bool = True
    ) -> list[Leak]:
        """What is found to leak, with the readings at the end of a phase; mostly nothing. What is unknown is left out.
        An update that traced does not count: what tracing takes is taken once."""
        found = []
        for memory, used in used_bytes.items():
            if used is None:
                continue
            series = self._series.get(memory)
            if series is None:
                self._series[memory] = _Series(used)
                continue
            series.add(step, phase, used, counts=counts)
            if phase not in _VISITS and (slope := series.find_growth(step)) > 0:
                owner = series.find_phase(step, slope, otherwise=phase)
                found.append(Leak(memory, owner, self._stage, step, slope * STEPS / MIB, used))
        return found

    def forget(self, memory: Memory) -> None:
        """Begins anew with a memory: another process has it now."""
        self._series.pop(memory, None)


def read_memory_use(role: RolePlan) -> MemoryUse:
    """What a role of this process holds now. A driver that does not answer is the sampler's to tell: a figure is then unknown."""
    name, limit = f"{role.role} {role.device}", None if role.limit_mib is None else role.limit_mib * MIB
    try:
        reading = read_role_memory(role)
    except NvmlError:
        return MemoryUse(name, None, limit)
    sizes_mb = (reading.pool_mb, reading.process_mb, reading.context_mb, reading.peak_mb)
    used, *more = (None if size is None else int(size * MIB) for size in (reading.used_mb, *sizes_mb))
    return MemoryUse(name, used, limit, *more)


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
    `cost_bytes` is what the device must hold for a batch of so many clips."""
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
