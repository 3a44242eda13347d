"""Checks of what the driver says, for which TensorFlow is not needed."""

from __future__ import annotations

from typing import Any

from myxtts.devices.machine import read_machine
from myxtts.devices.nvml import Card, Nvml
from myxtts.devices.topology import read_links
from myxtts.training.selfcheck.situation import Situation
from myxtts.training.selfcheck.work import CheckFailedError, Seen


def read_driver(situation: Situation) -> Seen:
    """Every card answers, and what it says of itself can be true."""
    machine = read_machine()
    if machine.scan.problem or machine.scan.lost:
        raise CheckFailedError(machine.scan.problem or machine.scan.lost[0][1])
    facts: dict[str, Any] = {"host_free_mib": machine.host_free_mib, "cards": []}
    if not machine.cards:
        return Seen(f"no card; {machine.host_free_mib} MB of host memory are free", facts)
    with Nvml() as nvml:
        facts["cards"] = [_read_card(nvml, card) for card in machine.cards]
        facts["driver"] = nvml.read_driver_version()
    unknown = sorted({name for card in facts["cards"] for name, value in card.items() if value is None})
    told = f"not told: {', '.join(unknown)}" if unknown else "everything asked is told"
    return Seen(f"{len(machine.cards)} cards, driver {facts['driver']}; {told}", facts)


def _read_card(nvml: Nvml, card: Card) -> dict[str, Any]:
    if card.total_mib is not None and card.free_mib is not None and not 0 <= card.free_mib <= card.total_mib:
        raise CheckFailedError(
            f"GPU {card.physical_id} says it has {card.free_mib} MB free of {card.total_mib} MB, which cannot be."
        )
    activity = nvml.read_activity(card.physical_id)
    return {
        "physical_id": card.physical_id,
        "name": card.name,
        "total_mib": card.total_mib,
        "free_mib": card.free_mib,
        "utilization_percent": activity.utilization_percent,
        "power_w": activity.power_w,
        "clock_mhz": activity.clock_mhz,
        "temperature_c": activity.temperature_c,
    }


def read_topology(situation: Situation) -> Seen:
    """How every two cards are connected."""
    cards = read_machine().cards
    links = read_links([card.physical_id for card in cards])
    if situation.rehearsal and not links:
        return Seen("logical devices have no link: nothing to read", {"links": []})
    return Seen("; ".join(link.explain() for link in links), {"links": [link.explain() for link in links]})
