"""The one device that speaks."""

from __future__ import annotations

import os
from contextlib import AbstractContextManager
from typing import Any


def open_speaking_device(*, rehearsal: bool) -> AbstractContextManager[Any]:
    """The scope of the first GPU in sight, else of the CPU. Sets TensorFlow up for it; call it before anything uses that."""
    from myxtts.devices.environment import prepare_environment
    from myxtts.devices.machine import read_machine
    from myxtts.devices.plan import PlanRequest, plan_devices

    prepare_environment(os.environ)
    rehearsal = rehearsal or os.environ.get("MYXTTS_REHEARSAL") == "1"
    plan = plan_devices(PlanRequest(mode="single", rehearsal=rehearsal), read_machine())
    from myxtts.devices.runtime import apply_plan
    from myxtts.utils.commons import get_device_context

    apply_plan(plan)
    return get_device_context(plan.model.device)
