"""What workers of a cluster cannot do, and what all of them must have alike. No TensorFlow."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from myxtts.cluster.errors import ClusterError
from myxtts.config import XTTSConfig
from myxtts.config.resolve import dump_sections
from myxtts.devices.plan import DevicePlan, Mode
from myxtts.training.resume_rules import RULES, Rule

_SHARED_MODES = (Mode.SINGLE, Mode.ISOLATED)
_COMPARED_RULES = (Rule.RESULT, Rule.ROUNDING, Rule.LENGTH, Rule.CODEC_LENGTH)
_OWN_PATHS = frozenset({"training.init_from", "data.vocabulary"})
"""May lie elsewhere on every machine: what is in them is compared, or handed out by the chief."""
_ALSO_COMPARED = (
    *("training.validation_interval", "training.checkpoint_interval", "training.keep_best", "training.best_metric"),
)
"""Decide at which steps workers wait for each other."""


class Refusal(NamedTuple):
    """What several workers cannot do."""

    reason: str
    """In a few words, for a table."""
    sentence: str
    """What must be, what is and what to do."""


def find_refusal(config: XTTSConfig) -> Refusal | None:
    """Why several workers cannot train a configuration, whatever its mode; None where they can."""
    training = config.training
    has_codec = training.codec is not None or training.init_from is not None or training.stage == "decoder"
    if training.stage == "codec":
        return Refusal(
            "a codec is trained by one process",
            "--stage codec is trained by one process, as a codec is small. Leave out --model-gpus or --cluster, and use `myxtts train` "
            "instead of `myxtts launch`.",
        )
    if not has_codec:
        return Refusal(
            "needs a trained codec (--codec)",
            "--model-gpus, --cluster and `myxtts launch` need a codec that is trained already, but none is given. Train one with one "
            "process, then give it to all, with your other flags:\n"
            "  myxtts train --stage codec --checkpoint-dir runs/codec\n"
            "  myxtts train --model-gpus 0,1 --codec runs/codec",
        )
    if training.loss_mean != "tokens":
        return Refusal(
            f"training.loss_mean is {training.loss_mean}",
            f"training.loss_mean must be tokens in a cluster, but is {training.loss_mean}: workers hold rows of a batch, and only "
            "tokens count alike however a batch is shared. Leave it out.",
        )
    return None


def refuse_settings(config: XTTSConfig) -> None:
    """Raises `ClusterError` for settings that several workers cannot have."""
    if config.training.mode == "auto":
        raise ClusterError(
            "--mode auto chooses for one machine that is asked as a whole. Give the workers of a cluster --mode single or isolated."
        )
    refusal = find_refusal(config)
    if refusal is not None:
        raise ClusterError(refusal.sentence)


def refuse_plan(plan: DevicePlan) -> None:
    """Raises `ClusterError` for a device plan that no worker of a cluster can have."""
    if plan.mode not in _SHARED_MODES:
        raise ClusterError(
            f"A worker of a cluster must see one GPU, but the {plan.mode} mode shows it two. Leave out --data-gpu and --model-gpu, or "
            "add --enable-memory-isolation, which gives the preparing one a process of its own."
        )


def describe_idle_workers(config: XTTSConfig, workers: int) -> str | None:
    """What to say where there are more workers than rows to share; None where each has one."""
    rows = config.data.batch_size
    if workers <= rows:
        return None
    return (
        f"{workers} workers share batches of {rows} clips, so {workers - rows} of them have nothing to do. Give a larger --batch-size, or "
        "fewer workers."
    )


def list_shared_settings(config: XTTSConfig) -> dict[str, Any]:
    """The settings that all workers must have alike."""
    sections: Mapping[str, Mapping[str, Any]] = dump_sections(config)
    keys = [key for key, rule in RULES.items() if rule in _COMPARED_RULES and key not in _OWN_PATHS]
    return {key: sections[key.partition(".")[0]][key.partition(".")[2]] for key in (*keys, *_ALSO_COMPARED)}
