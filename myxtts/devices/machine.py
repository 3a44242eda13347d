"""What this machine has: the facts a device plan is made from."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field

from myxtts.devices.host_memory import read_free_memory_bytes
from myxtts.devices.nvml import MIB, Card, CardScan, scan_cards


@dataclass(frozen=True)
class Machine:
    """Cards, host memory and environment at one moment."""

    scan: CardScan
    host_free_mib: int
    """What this process may still take, within the limits of its container."""
    environ: Mapping[str, str] = field(default_factory=dict)

    @property
    def cards(self) -> tuple[Card, ...]:
        return self.scan.cards


def read_machine(environ: Mapping[str, str] | None = None) -> Machine:
    """This machine now. Asks the driver, never TensorFlow, and allocates nothing."""
    return Machine(
        scan=scan_cards(),
        host_free_mib=read_free_memory_bytes() // MIB,
        environ=dict(os.environ if environ is None else environ),
    )
