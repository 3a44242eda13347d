"""What a machine is made of: cards, processors, memory, disk. Asks the driver and the system, never TensorFlow."""

from __future__ import annotations

import os
import platform
import shutil
from collections.abc import Iterator
from pathlib import Path

import psutil

from myxtts.devices.host_memory import read_free_memory_bytes
from myxtts.devices.nvml import scan_cards
from myxtts.devices.topology import read_links
from myxtts.monitoring.words import UNKNOWN, format_bytes

_CPU_FACTS = Path("/proc/cpuinfo")


def describe_hardware(folder: Path) -> Iterator[str]:
    """This machine and the disk that holds a folder, line by line, without what identifies a single card."""
    scan = scan_cards()
    lines = [f"GPU {card.physical_id}: {card.name}, {_show(card.free_mib)} free of {_show(card.total_mib)}, bus {card.bus_id or UNKNOWN}" for card in scan.cards]  # fmt: skip
    lines += [f"GPU {physical_id}: {reason}" for physical_id, reason in scan.lost]
    lines += [scan.problem] if scan.problem else []
    yield from lines or ["GPU: none, no NVIDIA driver found"]
    yield from (link.explain() for link in read_links([card.physical_id for card in scan.cards]))
    usable = len(os.sched_getaffinity(0))
    yield f"processor: {_find_processor() or UNKNOWN}, {os.cpu_count()} logical cores, {usable} usable"
    memory = format_bytes(int(psutil.virtual_memory().total))
    yield f"memory: {format_bytes(read_free_memory_bytes())} free of {memory}"
    if folder.exists():
        disk = shutil.disk_usage(folder)
        yield f"disk: {format_bytes(disk.free)} free of {format_bytes(disk.total)}"


def _find_processor() -> str | None:
    try:
        lines = _CPU_FACTS.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return platform.processor() or None
    return next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), platform.machine())


def _show(mib: int | None) -> str:
    return UNKNOWN if mib is None else f"{mib} MB"
