"""`myxtts devices`: the cards of this machine as a plan sees them."""

from __future__ import annotations

import argparse
import json
import os
import textwrap
from collections.abc import Sequence
from dataclasses import asdict

from myxtts.cli.parser import Parser
from myxtts.devices.machine import (
    VISIBLE_DEVICES,
    CardLink,
    Machine,
    explain_unserved,
    read_links,
    read_machine,
    select_visible,
)
from myxtts.devices.nvml import Card
from myxtts.devices.plan import DevicePlan, Mode, RolePlan
from myxtts.errors import DevicePlanError


def add_flags(parser: Parser) -> None:
    parser.description = "List the GPUs of this machine, their memory and how they are connected."
    parser.add_argument("--json", action="store_true", help="print the facts as JSON; unknown values are null")


def run(arguments: argparse.Namespace) -> int:
    machine = read_machine()
    links = read_links([card.physical_id for card in machine.cards])
    facts = {
        "host_free_mib": machine.host_free_mib,
        "cards": [asdict(card) for card in machine.cards],
        "lost": [{"physical_id": physical_id, "reason": reason} for physical_id, reason in machine.scan.lost],
        "problem": machine.scan.problem,
        "visible": [card.physical_id for card in _find_visible(machine)[0]],
        "links": [asdict(link) for link in links],
    }
    print(json.dumps(facts, indent=2) if arguments.json else format_devices(machine, links))
    return 0


def format_devices(machine: Machine, links: Sequence[CardLink]) -> str:
    """The machine's devices in a few lines."""
    lines = [f"Host    {machine.host_free_mib} MB free, {os.cpu_count()} processors"]
    visible, remark = _find_visible(machine)
    for card in machine.cards:
        free, total = ("unknown" if mib is None else f"{mib} MB" for mib in (card.free_mib, card.total_mib))
        hidden = "" if card in visible else f", hidden by {VISIBLE_DEVICES}"
        capability = "" if card.capability is None else ", compute capability {}.{}".format(*card.capability)
        lines.append(f"GPU {card.physical_id:<3} {card.name}, {free} free of {total}{capability}{hidden}")
    lines += [f"GPU {physical_id:<3} {reason}" for physical_id, reason in machine.scan.lost]
    if machine.scan.problem:
        lines.append(f"GPUs    {machine.scan.problem}")
    elif not machine.cards and not machine.scan.lost:
        lines.append(
            "GPUs    none: no NVIDIA driver found. `myxtts train --rehearsal --mode dual` tries two roles on the CPU."
        )
    lines += [f"Link    {link.explain()}" for link in links]
    lines += [f"Note    {reason}" for reason in [*([remark] if remark else []), *explain_unserved(machine)]]
    return "\n".join(lines)


def _find_visible(machine: Machine) -> tuple[tuple[Card, ...], str | None]:
    """The cards a run would see, and why none where the environment cannot be planned with."""
    try:
        return select_visible(machine.cards, machine.environ), None
    except DevicePlanError as error:
        return (), str(error)


TITLES = {
    Mode.SINGLE: "single-GPU buffered: one device prepares and trains",
    Mode.DUAL: "dual: one device prepares, another trains, in one process",
    Mode.ISOLATED: "isolated dual: preparing has its own process and memory",
    Mode.SPLIT: "split card: two processes share one card, each with its limit",
    Mode.REMOTE: "cluster: preparers prepare, each on a device of its own, and this process trains",
}


def format_plan(plan: DevicePlan) -> str:
    """The plan in a few lines: mode, then role by role, then what is worth knowing."""
    lines = [f"Mode    {TITLES[plan.mode]}"]
    if plan.rehearsal:
        lines.append("        rehearsal on logical CPU devices: no GPU is used")
    data = "on the preparers" if plan.mode is Mode.REMOTE else describe_role(plan, plan.data)
    lines += [f"Data    {data}", f"Model   {describe_role(plan, plan.model)}"]
    lines += [f"        {describe_role(plan, role)}: data-parallel, rows of every batch" for role in plan.others]
    if plan.mode is Mode.ISOLATED and plan.data.device == plan.model.device:
        lines.append("        each process counts its own devices: these are two")
    for note in plan.notes:
        lines += textwrap.wrap(note, width=80, initial_indent="Note    ", subsequent_indent="        ")
    return "\n".join(lines)


def describe_role(plan: DevicePlan, role: RolePlan) -> str:
    """The device of a role: its name in TensorFlow, the card behind it, its memory and process."""
    parts = [role.device]
    if role.physical_id is not None:
        parts.append(f"{'stands for ' if plan.rehearsal else 'physical '}GPU {role.physical_id}")
    if role.memory is not None:
        parts.append(str(role.memory))
    if len(plan.processes) > 1:
        parts.append(f"{role.process} process")
    return ", ".join(parts)


def describe_single_device(plan: DevicePlan) -> str:
    """The device of a plan that has one for everything, and what is worth knowing about it, in a line."""
    rehearsal = ["Rehearsal: no GPU is used."] if plan.rehearsal else []
    return " ".join([f"Device: {describe_role(plan, plan.model)}.", *rehearsal, *plan.notes])
