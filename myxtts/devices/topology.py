"""How two cards are connected, and what that means for handing batches from one to the other."""

from __future__ import annotations

import itertools
import re
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

from myxtts.devices.nvml import Nvml, PhysicalId


class Connection(StrEnum):
    """The path between two cards, in the words of `nvidia-smi topo -m`."""

    NVLINK = "NVLink"
    SAME_BOARD = "PSB"
    PIX = "PIX"
    PXB = "PXB"
    PHB = "PHB"
    NODE = "NODE"
    SYS = "SYS"
    UNKNOWN = "unknown"


_LEVELS = {
    0: Connection.SAME_BOARD,
    10: Connection.PIX,
    20: Connection.PXB,
    30: Connection.PHB,
    40: Connection.NODE,
    50: Connection.SYS,
}

_MEANINGS = {
    Connection.NVLINK: "batches cross at full speed",
    Connection.SAME_BOARD: "two chips on one board: batches cross at full speed",
    Connection.PIX: "behind one PCIe switch: batches cross at PCIe speed without passing the processor",
    Connection.PXB: "behind several PCIe switches: nearly as good as one switch",
    Connection.PHB: "on one PCIe root: batches cross through the processor's bridge; good enough for prepared batches",
    Connection.NODE: "on different PCIe roots of one NUMA node: slow; expect more from one card, or from caching the codes",
    Connection.SYS: "on different NUMA nodes: slow; expect more from one card, or from caching the codes",
    Connection.UNKNOWN: "the driver does not say how they are connected",
}


@dataclass(frozen=True)
class Link:
    """How two cards of the machine are connected."""

    first: PhysicalId
    second: PhysicalId
    connection: Connection

    @property
    def is_slow(self) -> bool:
        """Whether moving batches between these cards is likely to cost more than it saves."""
        return self.connection in (Connection.NODE, Connection.SYS)

    def explain(self) -> str:
        return f"GPU {self.first} - GPU {self.second}: {self.connection}, {_MEANINGS[self.connection]}"


def read_link(nvml: Nvml, first: PhysicalId, second: PhysicalId) -> Link:
    """The connection between two cards."""
    if nvml.is_linked(first, second):
        return Link(first, second, Connection.NVLINK)
    level = nvml.read_common_ancestor(first, second)
    return Link(first, second, Connection.UNKNOWN if level is None else _LEVELS.get(level, Connection.UNKNOWN))


def read_links(ids: Sequence[PhysicalId]) -> list[Link]:
    """The connections among cards, pair by pair; none where there are fewer than two."""
    if len(ids) < 2:
        return []
    with Nvml() as nvml:
        return [read_link(nvml, first, second) for first, second in itertools.combinations(ids, 2)]


def find_bus_ids(descriptions: Sequence[str]) -> list[str]:
    """The PCI addresses in TensorFlow's descriptions of cards; "unknown" where one has none."""
    found = [re.search(r"pci bus id: ([0-9a-fA-F:.]+)", text) for text in descriptions]
    return [match[1] if match else "unknown" for match in found]


def is_same_bus_id(first: str, second: str) -> bool:
    """Whether two PCI addresses are one: the driver writes `00000000:0A:00.0` what is `0000:0a:00.0` to CUDA."""
    return _split_bus_id(first) == _split_bus_id(second)


def _split_bus_id(bus_id: str) -> tuple[str, str]:
    domain, _, rest = bus_id.lower().partition(":")
    return domain.lstrip("0"), rest
