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
    """What the host does at one moment."""

    cpu_share: float | None
    """Of all its processors since the sample before, 0 to 1; None in the first one."""
    rss_bytes: int
    """Of this process and its children."""
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
    return sorted({role.physical_id for role in plan.own_roles if role.physical_id is not None})


class MachineSampler:
    """Samples some cards, or none, and the host within a `with` block, in a thread that ends with it, unless the driver keeps it."""

    def __init__(self, card_ids: Sequence[PhysicalId], period_s: float = PERIOD_S):
        self._card_ids, self._period_s = tuple(card_ids), period_s
        self.samples: list[MachineSample] = []
        """Those not taken yet, oldest first."""
        self._processes: list[psutil.Process] = []
        self._listed_at = -math.inf
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
        with ExitStack() as resources:
            nvml = None
            try:
                nvml = resources.enter_context(Nvml()) if self._card_ids else None
            except NvmlError as error:
                self.problem = str(error)
            while True:
                cards = []
                for physical_id in self._card_ids:
                    try:
                        cards += [] if nvml is None else [nvml.read_activity(physical_id)]
                    except NvmlError as error:
                        # A card that has stopped answering leaves the samples.
                        self.problem = str(error)
                sample = MachineSample(time.perf_counter(), tuple(cards), self._read_host())
                with self._lock:
                    self.samples.append(sample)
                if self._is_over.wait(self._period_s):
                    return

    def _read_host(self) -> HostActivity:
        now, cpu_share, rss_bytes = time.perf_counter(), psutil.cpu_percent() / 100, 0
        # The first answer is about the time since the machine was started.
        known_share = cpu_share if self._processes else None
        if now - self._listed_at >= CHILDREN_PERIOD_S:
            me = psutil.Process()
            self._processes, self._listed_at = [me, *me.children(recursive=True)], now
        for process in self._processes:
            # A child may have ended since it was listed.
            with suppress(psutil.NoSuchProcess):
                rss_bytes += process.memory_info().rss
        return HostActivity(known_share, rss_bytes, psutil.virtual_memory().available)


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
    least_free_bytes: int | None

    def describe(self) -> str:
        return (
            f"processors busy {format_share(self.cpu_share)}, processes of the run hold {format_bytes(self.peak_rss_bytes)}, free "
            f"{format_bytes(self.least_free_bytes)}"
        )


def summarise_cards(samples: Sequence[MachineSample]) -> list[CardSummary]:
    """Every card that was sampled, by its id."""
    readings: dict[PhysicalId, list[CardActivity]] = {}
    for card in (card for sample in samples for card in sample.cards):
        readings.setdefault(card.physical_id, []).append(card)
    summaries = []
    for id, own in sorted(readings.items()):
        percent = _average(card.utilization_percent for card in own)
        known = [card.throttled_by for card in own if card.throttled_by is not None]
        counts = Counter(reason for reasons in known for reason in reasons)
        often = tuple(reason for reason, times in counts.most_common() if times / len(known) >= OFTEN)
        summaries.append(
            CardSummary(
                physical_id=id,
                utilization=None if percent is None else percent / 100,
                power_w=_average(card.power_w for card in own),
                power_limit_w=own[-1].power_limit_w,
                clock_mhz=_average(card.clock_mhz for card in own),
                max_clock_mhz=own[-1].max_clock_mhz,
                temperature_c=_average(card.temperature_c for card in own),
                throttled_by=often if known else None,
            )
        )
    return summaries


def summarise_host(samples: Sequence[MachineSample]) -> HostSummary:
    """The host; everything is unknown without samples."""
    hosts = [sample.host for sample in samples]
    return HostSummary(
        cpu_share=_average(host.cpu_share for host in hosts),
        peak_rss_bytes=max((host.rss_bytes for host in hosts), default=None),
        least_free_bytes=min((host.free_bytes for host in hosts), default=None),
    )


def _average(values: Iterable[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return fmean(known) if known else None


def _format(value: float | None, unit: str, most: float | None = None) -> str:
    known = UNKNOWN if value is None else f"{value:.0f} {unit}"
    return known if most is None else f"{known} of {most:.0f} {unit}"
