"""The process of a check: finds what it does, and does it."""

from __future__ import annotations

import importlib
import os
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from myxtts.data.workers import Work
from myxtts.devices.environment import prepare_environment
from myxtts.errors import MachineError
from myxtts.training.selfcheck.situation import Situation


class Seen(NamedTuple):
    """What a check saw when nothing was wrong."""

    detail: str
    facts: Mapping[str, Any]
    is_done: bool = True
    """False where this machine does not allow the check; the detail says why."""


class CheckFailedError(MachineError):
    """What a check looked at is not as it must be."""


def make_work() -> Work:
    """The work of a check's process: an order is what function to call, with which situation and settings."""
    prepare_environment(os.environ)

    def work(order: Mapping[str, Any]) -> dict[str, Any]:
        module, _, name = order["function"].partition(":")
        function: Callable[..., Seen] = getattr(importlib.import_module(module), name)
        seen = function(Situation.load(order["situation"]), **order["settings"])
        return {"detail": seen.detail, "facts": dict(seen.facts), "is_done": seen.is_done}

    return work
