"""The settings of a run as they are in force, and the machine they are in force on: what advice is given by."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Self

from myxtts.config import XTTSConfig
from myxtts.config.resolve import dump_sections
from myxtts.data.open_engine import MOST_AUTO_WORKERS
from myxtts.devices.environment import select_visible
from myxtts.devices.machine import Machine
from myxtts.errors import DevicePlanError
from myxtts.files import fit_shape


@dataclass(frozen=True)
class MachineFacts:
    """What a machine has for a run. None is unknown."""

    cards: tuple[int, ...] | None = None
    """Physical ids of the cards that a run can use, in TensorFlow's order."""
    processors: int | None = None
    """Those that the run may use."""

    @classmethod
    def of_machine(cls, machine: Machine) -> Self:
        """Those of this machine."""
        try:
            cards = select_visible(machine.cards, machine.environ)
        except DevicePlanError:
            # Ids in CUDA_VISIBLE_DEVICES that are not there: no card can be used before that is put right.
            cards = ()
        return cls(tuple(int(card.physical_id) for card in cards), len(os.sched_getaffinity(0)))

    def dump(self) -> dict[str, Any]:
        """As JSON values."""
        return {"cards": None if self.cards is None else list(self.cards), "processors": self.processors}

    @classmethod
    def parse(cls, values: Mapping[str, Any]) -> Self:
        """From JSON values, in which things may be missing; what is none of a machine is unknown."""
        try:
            return fit_shape(values, cls)
        except ValueError:
            return cls()


UNKNOWN_MACHINE = MachineFacts()


class Settings:
    """The settings of a run by dotted key; None for those that are not known.

    Args:
        sections: by section and name, as a metrics file has them: with what `auto` came to.
        around: the machine.
    """

    def __init__(self, sections: Mapping[str, Any], around: MachineFacts = UNKNOWN_MACHINE):
        self._sections = sections
        self.around = around

    @classmethod
    def of_config(cls, config: XTTSConfig, around: MachineFacts) -> Self:
        """Those that a configuration has on a machine."""
        return cls(settle_sections(config, around), around)

    def find(self, key: str) -> Any:
        section, _, name = key.partition(".")
        return self._sections.get(section, {}).get(name)

    def find_number(self, key: str) -> int | None:
        """A whole number; None also for `auto`."""
        value = self.find(key)
        return value if isinstance(value, int) and not isinstance(value, bool) else None


def settle_sections(config: XTTSConfig, around: MachineFacts) -> dict[str, dict[str, Any]]:
    """Every setting by section and name, with what `auto` comes to on a machine as far as that is known before a run."""
    sections = dump_sections(config)
    sections["data"]["prefetch_buffer_size"] = config.data.prefetch_depth
    if config.data.num_workers == "auto" and around.processors is not None:
        sections["data"]["num_workers"] = min(around.processors, MOST_AUTO_WORKERS)
    return sections
