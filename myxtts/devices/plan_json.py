"""A device plan as JSON values, for the process that is started to do its part of it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from myxtts.devices.memory import Growth, Limit, Memory
from myxtts.devices.nvml import PhysicalId
from myxtts.devices.plan import DevicePlan, Mode, Process, ProcessPlan, Role, RolePlan, VisibleCard


def dump_plan(plan: DevicePlan) -> dict[str, Any]:
    """The whole plan; `load_plan` gives an equal one."""
    return {
        "mode": str(plan.mode),
        "rehearsal": plan.rehearsal,
        "data": _dump_role(plan.data),
        "model": _dump_role(plan.model),
        "processes": [_dump_process(process) for process in plan.processes],
        "notes": list(plan.notes),
    }


def load_plan(values: Mapping[str, Any]) -> DevicePlan:
    """The plan that `dump_plan` was given."""
    return DevicePlan(
        mode=Mode(values["mode"]),
        rehearsal=values["rehearsal"],
        data=_load_role(values["data"]),
        model=_load_role(values["model"]),
        processes=tuple(_load_process(process) for process in values["processes"]),
        notes=tuple(values["notes"]),
    )


def _dump_role(role: RolePlan) -> dict[str, Any]:
    return {
        "role": str(role.role),
        "process": str(role.process),
        "device": role.device,
        "physical_id": role.physical_id,
        "memory": _dump_memory(role.memory),
    }


def _load_role(values: Mapping[str, Any]) -> RolePlan:
    return RolePlan(
        role=Role(values["role"]),
        process=Process(values["process"]),
        device=values["device"],
        physical_id=values["physical_id"],
        memory=_load_memory(values["memory"]),
    )


def _dump_process(process: ProcessPlan) -> dict[str, Any]:
    return {
        "process": str(process.process),
        "cards": [_dump_card(card) for card in process.cards],
        "logical_cpus": process.logical_cpus,
        "environ": [list(pair) for pair in process.environ],
    }


def _load_process(values: Mapping[str, Any]) -> ProcessPlan:
    return ProcessPlan(
        process=Process(values["process"]),
        cards=tuple(_load_card(card) for card in values["cards"]),
        logical_cpus=values["logical_cpus"],
        environ=tuple((name, value) for name, value in values["environ"]),
    )


def _dump_card(card: VisibleCard) -> dict[str, Any]:
    return {
        "role": str(card.role),
        "physical_id": card.physical_id,
        "tf_index": card.tf_index,
        "memory": _dump_memory(card.memory),
    }


def _load_card(values: Mapping[str, Any]) -> VisibleCard:
    memory = _load_memory(values["memory"])
    assert memory is not None, "a card has a limit or grows"
    return VisibleCard(Role(values["role"]), PhysicalId(values["physical_id"]), values["tf_index"], memory)


def _dump_memory(memory: Memory | None) -> dict[str, Any] | None:
    match memory:
        case Limit(mib):
            return {"limit_mib": mib}
        case Growth():
            return {}
        case None:
            return None


def _load_memory(values: Mapping[str, Any] | None) -> Memory | None:
    if values is None:
        return None
    return Limit(values["limit_mib"]) if values else Growth()
