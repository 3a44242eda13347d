"""Where the time of a training step goes: the user's own run, measured in three runs in a folder that is thrown away.

Nothing here imports TensorFlow before something is measured: what cannot be is refused, and the plan shown, at once.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING

from myxtts.config import XTTSConfig
from myxtts.config.presets import name_size
from myxtts.devices.machine import Machine
from myxtts.devices.nvml import MIB
from myxtts.devices.plan import DevicePlan, Mode, Process
from myxtts.devices.planning import plan_devices
from myxtts.errors import NvmlError
from myxtts.files import open_scratch_folder
from myxtts.monitoring.machine_sampler import MachineSampler, list_sampled_cards
from myxtts.monitoring.profile_facts import Profile, ProfiledRun, RoleMemoryFacts, Verdict, judge_profile
from myxtts.monitoring.settings_in_force import MachineFacts, Settings
from myxtts.training.mode import Layout, Tell, fix_cache, plan_run
from myxtts.training.profiling.plan import describe_workers, refuse_decoder, request_one

if TYPE_CHECKING:
    from myxtts.training.profiling.run import Profiler
    from myxtts.training.profiling.setup import ProfileSetup


@dataclass(frozen=True)
class ProfilePlan:
    """The plan of a run that is measured."""

    config: XTTSConfig
    """As the run would have it: a mode that is chosen comes with its own `--cache`."""
    plan: DevicePlan
    notes: tuple[str, ...] = ()
    """What of the run that was asked for is not measured."""


def plan_profile(config: XTTSConfig, machine: Machine, tell: Tell, command: Sequence[str] = ()) -> ProfilePlan:
    """The plan to measure a configuration with. `--mode auto` is chosen as a training would; of several workers one is measured.

    Args:
        tell: hears what is being done.
        command: the words that started the program, for advice that can be pasted.
    """
    refuse_decoder(config)
    notes = describe_workers(config)
    if config.training.mode != "auto":
        return ProfilePlan(config, plan_devices(request_one(config, command), machine), notes)
    planned = plan_run(config, command, machine=machine, tell=tell, launches=True)
    if planned.workers:
        notes += (
            f"A training with --mode auto has both devices train ({Layout.DATA_PARALLEL}). One rank is measured, alone and with whole "
            "batches; sharing them and exchanging gradients is not in these figures.",
        )
    elif planned.choice is not None and planned.choice.is_parallel_faster:
        notes += (f"What is measured is {planned.plan.mode}. {planned.choice.reason}",)
    return ProfilePlan(fix_cache(config, planned.choice), planned.plan, notes)


def measure_and_judge(planned: ProfilePlan, machine: Machine, steps: int, tell: Tell) -> tuple[Profile, Verdict]:
    """The profile of a planned run, and the verdict on it with the settings in force."""
    profile = measure(planned, steps, tell)
    return profile, judge_profile(profile, Settings.of_config(planned.config, MachineFacts.of_machine(machine)))


def measure(planned: ProfilePlan, steps: int, tell: Tell) -> Profile:
    """The profile of a planned run; `tell` hears what is being done."""
    from myxtts.training.placement import apply_devices
    from myxtts.training.profiling.run import Profiler, SyncedTraining
    from myxtts.training.profiling.setup import set_up_profile
    from myxtts.utils.commons import get_device_context

    plan = planned.plan
    apply_devices(planned.config, plan)
    with open_scratch_folder("profile") as folder, get_device_context(plan.model.device):
        tell("reading the corpus")
        setup = set_up_profile(planned.config, plan, folder)
        run = describe_run(setup, planned.notes)
        tell(f"building {run.model}")
        training = SyncedTraining(setup)
        tell("opening the pipeline")
        with closing(setup.open_batches()) as source:
            read_ahead, shapes = planned.config.data.pipeline_buffer_size, len(setup.data.sampler.plan.buckets)
            profiler = Profiler(source, training, steps=steps, read_ahead=read_ahead, shapes=shapes)
            return measure_three_runs(profiler, run, plan, tell)


def describe_run(setup: ProfileSetup, notes: tuple[str, ...] = ()) -> ProfiledRun:
    """What is profiled, in words."""
    from myxtts.models.names import count_parameters

    config, plan, batches = setup.config, setup.plan, setup.data.sampler.plan
    name = "dvae" if setup.codec is None else "gpt"
    size, millions = name_size(config.model.model_dump()), count_parameters(config.model)[name] / 1e6
    return ProfiledRun(
        mode=str(plan.mode),
        is_rehearsal=plan.rehearsal,
        # Each process names its own devices from 0 on: without this both roles may seem to share one.
        data_device=f"{plan.data.device} of the producer process" if plan.has_producer else plan.data.device,
        model_device=plan.model.device,
        batch_size=config.data.batch_size,
        accumulation=config.training.gradient_accumulation_steps,
        model=f"{size or 'custom'} {name}, {millions:.1f} M parameters, {config.data.mixed_precision}",
        corpus=f"{len(setup.data.train)} clips, {len(batches.buckets)} batch shapes, {batches.waste.audio_share:.0%} padding",
        notes=(*notes, *setup.notes),
    )


def measure_three_runs(profiler: Profiler, run: ProfiledRun, plan: DevicePlan, tell: Tell) -> Profile:
    """The three runs, with cards and host sampled beside the real one."""
    tell("tracing the step")
    profiler.warm_up()
    tell("run 1 of 3: training without the pipeline")
    profiler.run_cached()
    tell("run 2 of 3: the pipeline without training")
    pipeline = profiler.run_pipeline()
    tell("run 3 of 3: pipeline and training")
    with MachineSampler(list_sampled_cards(plan)) as sampler:
        real = profiler.run_real()
    profiler.run_cached()
    return Profile(
        run=run,
        real=tuple(real.times),
        pipeline=tuple(pipeline),
        cached_s=tuple(profiler.list_cached(real.buckets)),
        left_out=real.left_out,
        handoffs=real.facts.handoffs,
        cache_hits=real.facts.meters.cache_hits,
        cache_misses=real.facts.meters.cache_misses,
        memory=tuple(read_memory(plan)),
        samples=tuple(sampler.samples),
        card_problem=sampler.problem,
    )


def read_memory(plan: DevicePlan) -> Iterable[RoleMemoryFacts]:
    """What each role holds now, as far as this process can know it."""
    from myxtts.utils.gpu_memory import RoleMemory, read_role_memory

    for role in plan.own_roles:
        memory = RoleMemory(role.physical_id, role.device, role.limit_mib, None, None)
        # In a rehearsal the reading is of this process, whichever role is asked for: it says nothing about either
        # where both are in it.
        if not plan.rehearsal or (role.process is Process.TRAINER and plan.mode is not Mode.DUAL):
            # The report says elsewhere what the driver's problem is; its other figures are not lost for that.
            with suppress(NvmlError):
                memory = read_role_memory(role)
        # In a rehearsal that of the process is the memory of the host, which is told as used.
        process_mb = None if plan.rehearsal else memory.process_mb
        sizes_mb = (memory.used_mb, memory.peak_mb, memory.limit_mb, memory.pool_mb, process_mb, memory.context_mb)
        sizes = (None if mb is None else int(mb * MIB) for mb in sizes_mb)
        yield RoleMemoryFacts(str(role.role), role.device, *sizes)
