"""The one device that speaks."""

from __future__ import annotations

import os
import sys
from contextlib import AbstractContextManager
from typing import Any


def open_speaking_device(*, rehearsal: bool) -> AbstractContextManager[Any]:
    """The scope of the first GPU in sight, else of the CPU, which is said on standard error.

    Sets TensorFlow up for it; call it before anything uses that.
    """
    from myxtts.cli.plan_view import describe_single_device
    from myxtts.config import resolve_config
    from myxtts.devices.environment import prepare_environment
    from myxtts.devices.machine import read_machine
    from myxtts.devices.plan import PlanRequest, Task
    from myxtts.devices.planning import plan_devices

    prepare_environment(os.environ)
    rehearsal = rehearsal or resolve_config().training.rehearsal
    plan = plan_devices(PlanRequest(mode="single", rehearsal=rehearsal, task=Task.SPEAK), read_machine())
    # Before TensorFlow is loaded, which takes seconds. Standard output may be the sound itself.
    print(describe_single_device(plan), file=sys.stderr, flush=True)
    from myxtts.devices.runtime import apply_plan
    from myxtts.utils.commons import get_device_context

    apply_plan(plan)
    return get_device_context(plan.model.device)
