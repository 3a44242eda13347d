"""`myxtts devices`: the cards of this machine as a plan sees them."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from myxtts.cli.parser import Parser
from myxtts.devices.environment import VISIBLE_DEVICES, select_visible
from myxtts.devices.machine import Machine, read_machine
from myxtts.devices.nvml import Card
from myxtts.devices.topology import Link, read_links
from myxtts.errors import DevicePlanError


def build_parser(prog: str) -> Parser:
    """The flags of `myxtts devices`."""
    parser = Parser(prog=prog, description="List the GPUs of this machine, their memory and how they are connected.")
    parser.add_argument("--json", action="store_true", help="print the facts as JSON; unknown values are null")
    return parser


def run(words: Sequence[str], prog: str) -> int:
    arguments = build_parser(prog).parse_all(words)
    machine = read_machine()
    links = read_links([card.physical_id for card in machine.cards])
    print(json.dumps(_to_dict(machine, links), indent=2) if arguments.json else format_devices(machine, links))
    return 0


def format_devices(machine: Machine, links: Sequence[Link]) -> str:
    """The machine's devices in a few lines."""
    lines = [f"Host    {machine.host_free_mib} MB free, {os.cpu_count()} processors"]
    visible, remark = _find_visible(machine)
    for card in machine.cards:
        free = "unknown" if card.free_mib is None else f"{card.free_mib} MB"
        total = "unknown" if card.total_mib is None else f"{card.total_mib} MB"
        hidden = "" if card in visible else f", hidden by {VISIBLE_DEVICES}"
        lines.append(f"GPU {card.physical_id:<3} {card.name}, {free} free of {total}{hidden}")
    lines += [f"GPU {physical_id:<3} {reason}" for physical_id, reason in machine.scan.lost]
    if machine.scan.problem:
        lines.append(f"GPUs    {machine.scan.problem}")
    elif not machine.cards and not machine.scan.lost:
        lines.append(
            "GPUs    none: no NVIDIA driver found. `myxtts train --rehearsal --mode dual` tries two roles on the CPU."
        )
    lines += [f"Link    {link.explain()}" for link in links]
    lines += [f"Note    {remark}"] if remark else []
    return "\n".join(lines)


def _find_visible(machine: Machine) -> tuple[tuple[Card, ...], str | None]:
    """The cards a run would see, and why none where the environment cannot be planned with."""
    try:
        return select_visible(machine.cards, machine.environ), None
    except DevicePlanError as error:
        return (), str(error)


def _to_dict(machine: Machine, links: Sequence[Link]) -> dict[str, Any]:
    return {
        "host_free_mib": machine.host_free_mib,
        "cards": [asdict(card) for card in machine.cards],
        "lost": [{"physical_id": physical_id, "reason": reason} for physical_id, reason in machine.scan.lost],
        "problem": machine.scan.problem,
        "visible": [card.physical_id for card in _find_visible(machine)[0]],
        "links": [asdict(link) for link in links],
    }
