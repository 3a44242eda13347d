"""Which device does what in a run that is only measured: as a training would have it, or one process of it. No TensorFlow."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from myxtts.cluster.spec import find_cluster
from myxtts.config import XTTSConfig
from myxtts.config.gpu_ids import parse_gpu_ids
from myxtts.devices.machine import Machine
from myxtts.devices.plan import DevicePlan, PlanRequest
from myxtts.devices.planning import plan_devices
from myxtts.training.errors import ProfileError
from myxtts.training.mode import FindObstacle, Layout, PlannedRun, Tell, explain_one_process, fix_cache, plan_run


@dataclass(frozen=True)
class ProfilePlan:
    """The plan of a run that is measured."""

    config: XTTSConfig
    """As the run would have it: a mode that is chosen comes with its own `--cache`."""
    plan: DevicePlan
    notes: tuple[str, ...] = ()
    """What of the run that was asked for is not measured."""


def plan_profile(
    config: XTTSConfig,
    machine: Machine,
    *,
    command: Sequence[str] = (),
    tell: Tell,
    environ: Mapping[str, str] = os.environ,
    find_launch_obstacle: FindObstacle = explain_one_process,
) -> ProfilePlan:
    """The plan to measure a configuration with. `--mode auto` is chosen as a training would; of several workers one is measured.

    Args:
        command: the words that started the program, for advice that can be pasted.
        tell: hears what is being done.
        environ: may make this process a worker of a cluster.
        find_launch_obstacle: what keeps a training from starting workers, for `--mode auto`.
    """
    refuse_decoder(config)
    notes = describe_workers(config, environ)
    if config.training.mode == "auto":
        planned = plan_run(config, command, machine=machine, tell=tell, find_launch_obstacle=find_launch_obstacle)
        return ProfilePlan(fix_cache(config, planned.choice), planned.plan, (*notes, *_describe_parallel(planned)))
    return ProfilePlan(config, plan_devices(request_one(config, command), machine), notes)


def _describe_parallel(planned: PlannedRun) -> tuple[str, ...]:
    """What a measurement leaves out where `--mode auto` trains, or could train, on both devices."""
    if planned.workers:
        return (
            f"A training with --mode auto has both devices train ({Layout.DATA_PARALLEL}). One rank is measured, alone and with whole "
            "batches; sharing them and exchanging gradients is not in these figures.",
        )
    if planned.choice is not None and planned.choice.is_parallel_faster:
        return (f"What is measured is {planned.plan.mode}. {planned.choice.reason}",)
    return ()


def request_one(config: XTTSConfig, command: Sequence[str] = ()) -> PlanRequest:
    """What one process of the run asks for: with `--model-gpus` the first of those cards."""
    request, gpus = PlanRequest.from_config(config, command), config.training.model_gpus
    if gpus is None:
        return request
    # In a rehearsal ids name roles only, and a process that does everything has none.
    return replace(request, mode="single", model_gpu=None if request.rehearsal else parse_gpu_ids(gpus)[0])


def refuse_decoder(config: XTTSConfig) -> None:
    """Raises `ProfileError` where a decoder would be trained."""
    if config.training.stage == "decoder":
        raise ProfileError(
            "Only the training of a codec or a GPT can be measured, but --stage is decoder. Leave --stage out; reading is the same "
            "for both."
        )


def describe_workers(config: XTTSConfig, environ: Mapping[str, str] = os.environ) -> tuple[str, ...]:
    """What a measurement leaves out where several workers would share every batch; nothing where one process trains."""
    training = config.training
    cluster = find_cluster(training.cluster, training.worker_index, environ)
    if training.model_gpus is not None:
        workers, asked = len(parse_gpu_ids(training.model_gpus)), f"--model-gpus {training.model_gpus}"
    elif cluster is not None:
        workers, asked = cluster.size, "the cluster"
    else:
        return ()
    return (
        f"One rank is measured, alone and with whole batches. With {asked}, {workers} workers share every batch and exchange their "
        "gradients; neither is in these figures.",
    )
