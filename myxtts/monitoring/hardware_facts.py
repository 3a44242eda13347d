"""What a machine is made of: cards, processors, memory, disk. Asks the driver and the system, never TensorFlow."""

from __future__ import annotations

import os
import platform
import shutil
from dataclasses import dataclass
from pathlib import Path

import psutil

from myxtts.devices.host_memory import read_free_memory_bytes
from myxtts.devices.nvml import CardScan, scan_cards
from myxtts.devices.topology import Link, read_links

_CPU_FACTS = Path("/proc/cpuinfo")


@dataclass(frozen=True)
class HardwareFacts:
    """A machine. None is unknown."""

    processor: str | None
    logical_cores: int
    usable_cores: int
    """Those this process may run on."""
    memory_bytes: int
    free_memory_bytes: int
    """What this process may still take."""
    disk_bytes: int | None
    free_disk_bytes: int | None
    """Of the disk that holds the folder asked about."""
    scan: CardScan
    links: tuple[Link, ...]

    @property
    def card_lines(self) -> list[str]:
        """A line per card, without what identifies a single one."""
        lines = [
            f"GPU {card.physical_id}: {card.name}, {_show(card.free_mib)} free of {_show(card.total_mib)}, bus {card.bus_id or 'unknown'}"
            for card in self.scan.cards
        ]
        lines += [f"GPU {physical_id}: {reason}" for physical_id, reason in self.scan.lost]
        lines += [self.scan.problem] if self.scan.problem else []
        lines += [link.explain() for link in self.links]
        return lines or ["none: no NVIDIA driver found"]


def read_hardware(folder: Path) -> HardwareFacts:
    """This machine, and the disk that holds a folder."""
    scan = scan_cards()
    disk = shutil.disk_usage(folder) if folder.exists() else None
    return HardwareFacts(
        processor=_find_processor(),
        logical_cores=os.cpu_count() or 1,
        usable_cores=len(os.sched_getaffinity(0)),
        memory_bytes=int(psutil.virtual_memory().total),
        free_memory_bytes=read_free_memory_bytes(),
        disk_bytes=disk.total if disk else None,
        free_disk_bytes=disk.free if disk else None,
        scan=scan,
        links=tuple(read_links([card.physical_id for card in scan.cards])),
    )


def _find_processor() -> str | None:
    try:
        lines = _CPU_FACTS.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return platform.processor() or None
    return next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), platform.machine())


def _show(mib: int | None) -> str:
    return "unknown" if mib is None else f"{mib} MB"
