"""What cards and host do while something runs: sampled by a thread beside it. The only owner of a thread in this room.

A tool started anew for every reading, as `nvidia-smi` is, would slow a run down; asking the driver in this process does not."""

from __future__ import annotations

import math
import threading
import time
from collections import Counter
from collections.abc import Iterable, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from statistics import fmean
from typing import Self

import psutil

from myxtts.devices.nvml import CardActivity, Nvml, PhysicalId
from myxtts.devices.plan import DevicePlan
from myxtts.errors import NvmlError
from myxtts.units import UNKNOWN, format_bytes, format_share

PERIOD_S = 1.0
CHILDREN_PERIOD_S = 10.0
"""Listing children means looking at every process of the machine: done with each sample, it was most of the whole cost."""

LONGEST_READING_S = 10.0
"""Readings take milliseconds. A driver that hangs may keep its caller for ever, and no thread can be woken from it."""


@dataclass(frozen=True)
class HostActivity:
    """What the host does at one moment; rates are since the sample before, and None in the first one."""

    cpu_share: float | None
    """Of all its processors, 0 to 1."""
    rss_bytes: int
    """Of this process and its children."""
    disk_read_bytes_per_s: float | None
    """Of all disks together; None also where the kernel does not count."""
    free_bytes: int


@dataclass(frozen=True)
class MachineSample:
    """One moment."""

    time_s: float
    """By `time.perf_counter`."""
    cards: tuple[CardActivity, ...]
    host: HostActivity


def list_sampled_cards(plan: DevicePlan) -> list[PhysicalId]:
    """The cards of a plan; none in a rehearsal, where ids only name the roles."""
    if plan.rehearsal:
        return []
    return sorted({role.physical_id for role in (plan.data, plan.model) if role.physical_id is not None})


class MachineSampler:
    """Samples some cards and the host within a `with` block, in a thread that ends with it, unless the driver keeps it.

    Args:
        card_ids: physical ids; none on a machine without cards, or in a rehearsal.
        period_s: between two samples.
    """

    def __init__(self, card_ids: Sequence[PhysicalId], period_s: float = PERIOD_S):
        self._card_ids = tuple(card_ids)
        self._period_s = period_s
        self.samples: list[MachineSample] = []
        """Those not taken yet, oldest first."""
        self._lock = threading.Lock()
        self._is_over = threading.Event()
        self._thread = threading.Thread(target=self._run, name="myxtts-sampler", daemon=True)
        self.problem: str | None = None
        """Why cards could not be sampled, or no longer; None while all is well."""

    def take_samples(self) -> list[MachineSample]:
        """The samples since this was last called. What is not taken stays in memory."""
        with self._lock:
            taken, self.samples = self.samples, []
        return taken

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._is_over.set()
        self._thread.join(LONGEST_READING_S)
        if self._thread.is_alive():
            self.problem = (
                f"The NVIDIA driver hangs: it has not answered for {LONGEST_READING_S:g} s. Where `nvidia-smi` hangs as well, "
                "restart the machine."
            )

    def _run(self) -> None:
        host = HostMeter()
        with ExitStack() as resources:
            nvml = self._open_driver(resources)
            while True:
                read = [] if nvml is None else [self._read_card(nvml, id) for id in self._card_ids]
                cards = tuple(card for card in read if card is not None)
                sample = MachineSample(time.perf_counter(), cards, host.read())
                with self._lock:
                    self.samples.append(sample)
                if self._is_over.wait(self._period_s):
                    return

    def _open_driver(self, resources: ExitStack) -> Nvml | None:
        if not self._card_ids:
            return None
        try:
            return resources.enter_context(Nvml())
        except NvmlError as error:
            self.problem = str(error)
            return None

    def _read_card(self, nvml: Nvml, physical_id: PhysicalId) -> CardActivity | None:
        """None of one that has stopped answering: it leaves the samples, with the reason told."""
        try:
            return nvml.read_activity(physical_id)
        except NvmlError as error:
            self.problem = str(error)
            return None


class HostMeter:
    """Reads the host; rates are between two readings by one thread."""

    def __init__(self) -> None:
        self._me = psutil.Process()
        self._processes: list[psutil.Process] = []
        self._listed_at = -math.inf
        self._read_at: float | None = None
        self._disk_bytes: int | None = None

    def read(self) -> HostActivity:
        """The host now."""
        now, elapsed_s = time.perf_counter(), None
        cpu_share, counters = psutil.cpu_percent() / 100, psutil.disk_io_counters()
        disk_bytes, disk_rate = None if counters is None else counters.read_bytes, None
        if self._read_at is not None:
            elapsed_s = now - self._read_at
        if elapsed_s and disk_bytes is not None and self._disk_bytes is not None:
            disk_rate = max(0, disk_bytes - self._disk_bytes) / elapsed_s
        self._read_at, self._disk_bytes = now, disk_bytes
        return HostActivity(
            # The first answer is about the time since the machine was started.
            cpu_share=None if elapsed_s is None else cpu_share,
            rss_bytes=self._measure_rss_bytes(now),
            disk_read_bytes_per_s=disk_rate,
            free_bytes=psutil.virtual_memory().available,
        )

    def _measure_rss_bytes(self, now: float) -> int:
        """Of this process and its children, as they were a moment ago."""
        if now - self._listed_at >= CHILDREN_PERIOD_S:
            self._processes, self._listed_at = [self._me, *self._me.children(recursive=True)], now
        total = 0
        for process in self._processes:
            # A child may have ended since it was listed.
            with suppress(psutil.NoSuchProcess):
                total += process.memory_info().rss
        return total


OFTEN = 0.2
"""What holds the clocks down in a smaller share of the samples is not worth a word."""


@dataclass(frozen=True)
class CardSummary:
    """One card over a stretch of time."""

    physical_id: PhysicalId
    utilization: float | None
    """Share of the time in which any kernel ran, as the driver sees it."""
    power_w: float | None
    power_limit_w: float | None
    clock_mhz: float | None
    max_clock_mhz: int | None
    temperature_c: float | None
    throttled_by: tuple[str, ...] | None
    """What held the clocks down in a fifth of the samples or more."""

    def describe(self) -> str:
        """In a line."""
        power = _format(self.power_w, "W", self.power_limit_w)
        clock = _format(self.clock_mhz, "MHz", self.max_clock_mhz)
        throttled = UNKNOWN if self.throttled_by is None else ", ".join(self.throttled_by) or "nothing"
        return (
            f"the driver says: busy {format_share(self.utilization)}, {power}, {clock}, {_format(self.temperature_c, 'C')}, "
            f"held down by {throttled}"
        )


@dataclass(frozen=True)
class HostSummary:
    """The host over a stretch of time."""

    cpu_share: float | None
    peak_rss_bytes: int | None
    disk_read_bytes_per_s: float | None
    least_free_bytes: int | None

    def describe(self) -> str:
        """In a line."""
        rate = self.disk_read_bytes_per_s
        disk = UNKNOWN if rate is None else f"{format_bytes(int(rate))}/s"
        return (
            f"processors busy {format_share(self.cpu_share)}, disks read {disk}, processes of the run hold "
            f"{format_bytes(self.peak_rss_bytes)}, free {format_bytes(self.least_free_bytes)}"
        )


def summarise_cards(samples: Sequence[MachineSample]) -> list[CardSummary]:
    """Every card that was sampled, by its id."""
    ids = sorted({card.physical_id for sample in samples for card in sample.cards})
    return [
        _summarise_card(id, [card for sample in samples for card in sample.cards if card.physical_id == id])
        for id in ids
    ]


def summarise_host(samples: Sequence[MachineSample]) -> HostSummary:
    """The host; everything is unknown without samples."""
    hosts = [sample.host for sample in samples]
    return HostSummary(
        cpu_share=_average(host.cpu_share for host in hosts),
        peak_rss_bytes=max((host.rss_bytes for host in hosts), default=None),
        disk_read_bytes_per_s=_average(host.disk_read_bytes_per_s for host in hosts),
        least_free_bytes=min((host.free_bytes for host in hosts), default=None),
    )


def _summarise_card(id: PhysicalId, readings: Sequence[CardActivity]) -> CardSummary:
    percent = _average(card.utilization_percent for card in readings)
    known = [card.throttled_by for card in readings if card.throttled_by is not None]
    counts = Counter(reason for reasons in known for reason in reasons)
    return CardSummary(
        physical_id=id,
        utilization=None if percent is None else percent / 100,
        power_w=_average(card.power_w for card in readings),
        power_limit_w=readings[-1].power_limit_w,
        clock_mhz=_average(card.clock_mhz for card in readings),
        max_clock_mhz=readings[-1].max_clock_mhz,
        temperature_c=_average(card.temperature_c for card in readings),
        throttled_by=tuple(reason for reason, count in counts.most_common() if count / len(known) >= OFTEN)
        if known
        else None,
    )


def _average(values: Iterable[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return fmean(known) if known else None


def _format(value: float | None, unit: str, most: float | None = None) -> str:
    known = UNKNOWN if value is None else f"{value:.0f} {unit}"
    return known if most is None else f"{known} of {most:.0f} {unit}"
