"""What cards and host do while something runs: sampled by a thread beside it. The only owner of a thread in this room.

A tool started anew for every reading, as `nvidia-smi` is, would slow a run down; asking the driver in this process does not.
"""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from types import TracebackType
from typing import Self

import psutil

from myxtts.devices.nvml import CardActivity, Nvml, PhysicalId
from myxtts.devices.plan import DevicePlan
from myxtts.errors import NvmlError

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

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
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
