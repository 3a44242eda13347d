"""What of a run can be measured: one process of it, and no decoder. No TensorFlow."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import replace

from myxtts.cluster.spec import find_cluster
from myxtts.config import XTTSConfig
from myxtts.config.gpu_ids import parse_gpu_ids
from myxtts.devices.plan import PlanRequest
from myxtts.training.errors import ProfileError


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


def describe_workers(config: XTTSConfig) -> tuple[str, ...]:
    """What a measurement leaves out where several workers would share every batch; nothing where one process trains."""
    training = config.training
    cluster = find_cluster(training.cluster, training.worker_index, os.environ)
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
