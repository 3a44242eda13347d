"""Samples of cards and host over a stretch of time, in a line each; what was never known stays unknown."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from statistics import fmean

from myxtts.devices.nvml import CardActivity, PhysicalId
from myxtts.monitoring.machine_sampler import MachineSample
from myxtts.monitoring.words import UNKNOWN, format_bytes, format_share

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
