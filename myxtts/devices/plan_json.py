"""A device plan as JSON values, for the process that is started to do its part of it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from myxtts.devices.plan import DevicePlan
from myxtts.files import fit_shape


def dump_plan(plan: DevicePlan) -> dict[str, Any]:
    """The whole plan; `load_plan` gives an equal one."""
    return asdict(plan)


def load_plan(values: Mapping[str, Any]) -> DevicePlan:
    """The plan that `dump_plan` was given."""
    return fit_shape(dict(values), DevicePlan)
