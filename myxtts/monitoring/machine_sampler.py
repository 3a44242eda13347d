"""What cards and host do while something runs: sampled by a thread beside it. The only owner of a thread in this room.

A tool started anew for every reading, as `nvidia-smi` is, would slow a run down; asking the driver in this process does not.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Self

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

    Example:
        with MachineSampler([PhysicalId(0)]) as sampler:
            train()
        sampler.samples[-1].cards[0].power_w
    """

    def __init__(self, card_ids: Sequence[PhysicalId], period_s: float = PERIOD_S):
        self._card_ids = tuple(card_ids)
        self._period_s = period_s
        self._samples: list[MachineSample] = []
        self._lock = threading.Lock()
        self._is_over = threading.Event()
        self._thread = threading.Thread(target=self._run, name="myxtts-sampler", daemon=True)
        self.problem: str | None = None
        """Why cards could not be sampled, or no longer; None while all is well."""

    @property
    def samples(self) -> Sequence[MachineSample]:
        """Those not taken yet, oldest first."""
        return self._samples

    def take_samples(self) -> list[MachineSample]:
        """The samples since this was last called. What is not taken stays in memory."""
        with self._lock:
            taken, self._samples = self._samples, []
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
            read_cards = self._open_cards(resources)
            while True:
                sample = MachineSample(time.perf_counter(), read_cards(), host.read())
                with self._lock:
                    self._samples.append(sample)
                if self._is_over.wait(self._period_s):
                    return

    def _open_cards(self, resources: ExitStack) -> Callable[[], tuple[CardActivity, ...]]:
        """A function that reads all cards; one that stops answering leaves the samples, with the reason told."""
        if not self._card_ids:
            return tuple
        try:
            nvml = resources.enter_context(Nvml())
        except NvmlError as error:
            self.problem = str(error)
            return tuple
        return lambda: tuple(activity for id in self._card_ids if (activity := self._read_card(nvml, id)) is not None)

    def _read_card(self, nvml: Nvml, physical_id: PhysicalId) -> CardActivity | None:
        try:
            return nvml.read_activity(physical_id)
        except NvmlError as error:
            self.problem = str(error)
            return None


class HostMeter:
    """Reads the host; rates are between two readings."""

    def __init__(self) -> None:
        self._me = psutil.Process(os.getpid())
        self._processes: list[psutil.Process] = []
        self._listed_at: float | None = None
        self._read_at: float | None = None
        self._cpu = psutil.cpu_times()
        self._disk_bytes: int | None = None

    def read(self) -> HostActivity:
        """The host now."""
        now = time.perf_counter()
        cpu, disk_bytes = psutil.cpu_times(), _count_disk_bytes()
        elapsed_s = None if self._read_at is None else now - self._read_at
        activity = HostActivity(
            cpu_share=None if elapsed_s is None else _measure_busy_share(self._cpu, cpu),
            rss_bytes=_measure_rss_bytes(self._list_processes(now)),
            disk_read_bytes_per_s=_measure_rate(self._disk_bytes, disk_bytes, elapsed_s),
            free_bytes=psutil.virtual_memory().available,
        )
        self._read_at, self._cpu, self._disk_bytes = now, cpu, disk_bytes
        return activity

    def _list_processes(self, now: float) -> list[psutil.Process]:
        """This process and its children, as they were a moment ago."""
        if self._listed_at is None or now - self._listed_at >= CHILDREN_PERIOD_S:
            self._processes, self._listed_at = [self._me, *self._me.children(recursive=True)], now
        return self._processes


def _count_disk_bytes() -> int | None:
    counters = psutil.disk_io_counters()
    return None if counters is None else counters.read_bytes


def _measure_rate(before: int | None, now: int | None, elapsed_s: float | None) -> float | None:
    if before is None or now is None or not elapsed_s:
        return None
    return max(0, now - before) / elapsed_s


def _measure_busy_share(before: Any, now: Any) -> float | None:
    spent = {name: getattr(now, name) - getattr(before, name) for name in now._fields}
    # The kernel counts guests as user time, too.
    total = sum(seconds for name, seconds in spent.items() if not name.startswith("guest"))
    idle = spent["idle"] + spent.get("iowait", 0.0)
    return None if total <= 0 else min(1.0, max(0.0, 1 - idle / total))


def _measure_rss_bytes(processes: Sequence[psutil.Process]) -> int:
    total = 0
    for process in processes:
        try:
            total += process.memory_info().rss
        except psutil.NoSuchProcess:
            # A child that ended since it was listed.
            continue
    return total
