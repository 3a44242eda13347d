"""A device plan as a person reads it, within 80 columns and without colour."""

from __future__ import annotations

import textwrap

from myxtts.devices.plan import DevicePlan, Mode, RolePlan

TITLES = {
    Mode.SINGLE: "single-GPU buffered: one device prepares and trains",
    Mode.DUAL: "dual: one device prepares, another trains, in one process",
    Mode.ISOLATED: "isolated dual: preparing has its own process and memory",
    Mode.SPLIT: "split card: two processes share one card, each with its limit",
}


def format_plan(plan: DevicePlan) -> str:
    """The plan in a few lines: mode, then role by role, then what is worth knowing."""
    lines = [f"Mode    {TITLES[plan.mode]}"]
    if plan.rehearsal:
        lines.append("        rehearsal on logical CPU devices: no GPU is used")
    lines += [_format_role("Data", plan, plan.data), _format_role("Model", plan, plan.model)]
    if plan.mode is Mode.ISOLATED and plan.data.device == plan.model.device:
        lines.append("        each process counts its own devices: these are two")
    for note in plan.notes:
        lines += textwrap.wrap(note, width=80, initial_indent="Note    ", subsequent_indent="        ")
    return "\n".join(lines)


def _format_role(title: str, plan: DevicePlan, role: RolePlan) -> str:
    return f"{title:<7} {describe_role(plan, role)}"


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
