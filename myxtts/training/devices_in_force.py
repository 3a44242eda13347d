"""The device plan, put into force in this process."""

from __future__ import annotations

from myxtts.config import XTTSConfig
from myxtts.devices import runtime
from myxtts.devices.plan import DevicePlan

DETERMINISTIC_THREADS = 2
"""Of both roles in every mode: the number of threads decides about last bits."""


def apply_devices(config: XTTSConfig, plan: DevicePlan) -> None:
    """Puts the plan into force in this process, with equal threads and determinism where the run must be bit-exact."""
    if config.training.deterministic:
        runtime.set_thread_pools(DETERMINISTIC_THREADS, DETERMINISTIC_THREADS)
        runtime.enable_determinism()
    runtime.apply_plan(plan)
