"""Where the time of a training step goes, measured on the user's own run."""

from __future__ import annotations

from collections.abc import Callable

from myxtts.checkpoints.atomic_directory import open_scratch_folder
from myxtts.monitoring.profile_facts import Profile
from myxtts.training.devices_in_force import apply_devices
from myxtts.training.profiling.plan import ProfilePlan
from myxtts.training.profiling.run import profile_run
from myxtts.training.profiling.setup import set_up_profile


def measure(planned: ProfilePlan, steps: int, tell: Callable[[str], None]) -> Profile:
    """The profile of a configuration; `tell` hears what is being done."""
    apply_devices(planned.config, planned.plan)
    with open_scratch_folder("profile") as folder:
        tell("reading the corpus")
        return profile_run(set_up_profile(planned.config, planned.plan, folder, planned.notes), steps, tell)
