"""What a check runs on: cards of this machine, or logical CPU devices that stand for them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from myxtts.devices.machine import read_machine
from myxtts.devices.plan import DevicePlan, Mode, PlanRequest
from myxtts.devices.planning import plan_devices

POOL_MIB = 2048
"""Of each role where limits are in force: far more than the small model needs, and free on every card worth training on."""


@dataclass(frozen=True)
class Situation:
    """Which devices take part, and where checks may write."""

    rehearsal: bool
    data_gpu: int
    model_gpu: int
    """The same as `data_gpu` where there is one card."""
    folder: str
    opens_ports: bool = False
    """Whether workers may use the machine's own network."""

    @property
    def cards(self) -> int:
        """Cards that take part, or logical devices that stand for them."""
        return 1 if self.data_gpu == self.model_gpu else 2

    @property
    def root(self) -> Path:
        return Path(self.folder)

    def dump(self) -> dict[str, Any]:
        """As JSON values, for the process of a check."""
        return asdict(self)

    @classmethod
    def load(cls, values: Mapping[str, Any]) -> Situation:
        return cls(**values)


def choose_two_process_mode(situation: Situation) -> Mode:
    """The mode with a producer process that these cards allow."""
    return Mode.ISOLATED if situation.cards == 2 else Mode.SPLIT


def plan_mode(situation: Situation, mode: Mode) -> DevicePlan:
    """The plan of a mode on these devices."""
    data_gpu = situation.model_gpu if mode is Mode.SPLIT else situation.data_gpu
    is_limited = mode in (Mode.ISOLATED, Mode.SPLIT)
    request = PlanRequest(
        mode="single" if mode is Mode.SINGLE else None,
        data_gpu=None if mode is Mode.SINGLE else data_gpu,
        model_gpu=situation.model_gpu,
        isolation=mode is Mode.ISOLATED,
        data_limit_mib=POOL_MIB if is_limited else None,
        model_limit_mib=POOL_MIB if is_limited else None,
        rehearsal=situation.rehearsal,
        command=("myxtts", "selfcheck"),
    )
    return plan_devices(request, read_machine())
