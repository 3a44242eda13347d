"""Checks that train: a small model, a few updates, on the demo corpus."""

from __future__ import annotations

import itertools
import math
from collections import Counter
from collections.abc import Iterator
from contextlib import closing, contextmanager, nullcontext
from pathlib import Path
from typing import Any

import psutil
import tensorflow as tf

from myxtts.config import XTTSConfig
from myxtts.devices.nvml import MIB
from myxtts.devices.plan import DevicePlan, Mode
from myxtts.devices.runtime import read_pool
from myxtts.monitoring.metrics_log import FILE_NAME, list_losses, read_metrics
from myxtts.monitoring.metrics_rows import EventRow, Row
from myxtts.pipeline.sources import open_source
from myxtts.training.placement import check_batch, check_variables
from myxtts.training.profile_setup import set_up_profile
from myxtts.training.selfcheck.situation import Situation, choose_two_process_mode, plan_mode
from myxtts.training.selfcheck.work import CheckFailedError, Seen
from myxtts.training.step import TrainStep
from myxtts.training.trainer import XTTSTrainer, apply_devices
from myxtts.utils.commons import get_device_context, setup_logging

STEPS = 6
CODEC_STEPS = 4
CODEC_CHECK = "train-codec"
KILL = "kill producer"
RUN_OUT = "out of memory"
PRODUCER = "myxtts.pipeline.producer_main"
SMALLEST_PIECE = 64 * 1024
"""Bytes; far less than the gradients of a step."""
MODEL = {
    "size": "tiny", "gpt_layers": 2, "gpt_width": 64, "gpt_heads": 2, "dvae_width": 32, "audio_codes": 64,
    # Without it an update made in parts is the same up to rounding.
    "dropout": 0.0,
}  # fmt: skip


def train(
    situation: Situation,
    *,
    name: str,
    mode: str = "single",
    stage: str = "gpt",
    precision: str = "float32",
    xla: bool = False,
    checkpointing: bool = False,
    is_deterministic: bool = False,
    fault: str = "",
) -> Seen:
    """A short training in a mode. Its losses are finite and fall; whether they are the right ones is for who compares."""
    setup_logging()
    plan = plan_mode(situation, choose_two_process_mode(situation) if mode == "two processes" else Mode(mode))
    config = make_config(
        situation,
        name,
        stage=stage,
        precision=precision,
        xla=xla,
        checkpointing=checkpointing,
        # In a rehearsal not a bit may differ between modes, whatever the number of threads.
        is_deterministic=is_deterministic or situation.rehearsal,
    )
    trainer = XTTSTrainer(config, plan=plan, command=("myxtts", "selfcheck"))
    with _inject(fault, plan) if fault else nullcontext():
        trainer.train()
    rows = read_metrics(situation.root / name / FILE_NAME).rows
    losses = [loss for _, loss in list_losses(read_metrics(situation.root / name / FILE_NAME))]
    if not losses or not all(map(math.isfinite, losses)):
        raise CheckFailedError(f"Losses must be finite numbers, but are {losses}.")
    if not losses[-1] < losses[0]:
        raise CheckFailedError(
            f"The loss must fall, but goes from {losses[0]} to {losses[-1]} in {len(losses)} updates."
        )
    happened = _require_effect(fault, trainer, rows)
    facts = {
        "losses": losses,
        "mode": str(plan.mode),
        "model_device": plan.model.device,
        "data_device": plan.data.device,
    }
    facts |= _read_speed(trainer, plan)
    return Seen(f"{len(losses)} updates, loss {losses[0]:.4f} to {losses[-1]:.4f}{happened}", facts)


def inspect_placement(situation: Situation) -> Seen:
    """Every variable of model and optimizer, and every float tensor of a batch, is on the model's device."""
    mode = Mode.DUAL if situation.cards == 2 else Mode.SINGLE
    plan = plan_mode(situation, mode)
    config = make_config(situation, "placement", has_codec=False)
    apply_devices(config, plan)
    folder = situation.root / "placement"
    folder.mkdir()
    setup = set_up_profile(config, plan, folder)
    with get_device_context(plan.model.device), closing(open_source(setup.request_source())) as source:
        variables = list(setup.build_model().list_variables())
        check_variables(variables, plan.model.device)
        batch = source.take()
        check_batch(batch.tensors, plan.model.device)
        tensors = Counter(_shorten_device(tensor.device) for tensor in batch.tensors.values())
    places = Counter(_shorten_device(variable.device) for _, variable in variables)
    return Seen(
        f"{len(variables)} variables and {len(batch.tensors)} tensors of a batch on {plan.model.device}",
        {"variables": dict(places), "batch": dict(tensors)},
    )


def make_config(
    situation: Situation,
    name: str,
    *,
    stage: str = "gpt",
    precision: str = "float32",
    xla: bool = False,
    checkpointing: bool = False,
    is_deterministic: bool = True,
    has_codec: bool = True,
) -> XTTSConfig:
    """The configuration of a check; its run is in the folder with its name."""
    codec = str(situation.root / CODEC_CHECK) if stage == "gpt" and has_codec else None
    return XTTSConfig(
        model={**MODEL, "enable_gradient_checkpointing": checkpointing},
        data={
            "batch_size": 4,
            # All in one bucket: one shape is traced.
            "min_clip_seconds": 2.61,
            "max_clip_seconds": 2.965,
            "prompt_seconds": 1.0,
            "cache": "off",
            "num_workers": 0,
            "use_tf_native_loading": False,
            "model_start_delay": 0.0,
            "mixed_precision": precision,
            "enable_xla": xla,
        },
        training={
            "rehearsal": situation.rehearsal,
            "stage": stage,
            "codec": codec,
            "max_steps": CODEC_STEPS if stage == "codec" else STEPS,
            "learning_rate": 0.003,
            "warmup_steps": 0,
            "log_interval": 1,
            "speak": False,
            "deterministic": is_deterministic,
            "on_oom": "retry",
            "checkpoint_dir": str(situation.root / name),
        },
    )


@contextmanager
def _inject(fault: str, plan: DevicePlan) -> Iterator[None]:
    """Lets something go wrong with the second micro-batch."""
    whole = TrainStep.compute
    calls = itertools.count(1)

    def compute(step: TrainStep, *arguments: Any, **options: Any) -> Any:
        if next(calls) != 2:
            return whole(step, *arguments, **options)
        if fault == KILL:
            _kill_producer()
            return whole(step, *arguments, **options)
        if plan.rehearsal:
            raise tf.errors.ResourceExhaustedError(None, None, "made up: a CPU device has no limit")
        with _full_device(plan.model.device):
            return whole(step, *arguments, **options)

    # The step is made deep inside the run that is to be checked as it is.
    TrainStep.compute = compute  # type: ignore[method-assign, assignment]
    try:
        yield
    finally:
        TrainStep.compute = whole  # type: ignore[method-assign]


def _kill_producer() -> None:
    producers = [child for child in psutil.Process().children(recursive=True) if PRODUCER in child.cmdline()]
    if not producers:
        raise CheckFailedError("There is no producer process that could be killed.")
    for producer in producers:
        producer.kill()


@contextmanager
def _full_device(device: str) -> Iterator[None]:
    """Leaves next to nothing free in a device's pool."""
    held: list[Any] = []
    size = 512 * MIB
    with get_device_context(device):
        while size >= SMALLEST_PIECE:
            try:
                held.append(tf.fill([size // 4], tf.constant(0.0)))
            except tf.errors.ResourceExhaustedError:
                size //= 2
    try:
        yield
    finally:
        # An error that is still looked at would keep them alive with its frames.
        held.clear()


def _require_effect(fault: str, trainer: XTTSTrainer, rows: tuple[Row, ...]) -> str:
    """What the injected fault did; an error where it did nothing, for then nothing was checked."""
    if fault == KILL:
        deaths = [row for row in rows if isinstance(row, EventRow) and row.name == "producer died"]
        if not deaths:
            raise CheckFailedError("The producer was killed, but the run has noted no death.")
        return f"; the producer was killed and replaced ({deaths[0].text[:60]})"
    if fault == RUN_OUT:
        stage = trainer._stage
        parts = 0 if stage is None else stage.updates.parts
        if parts < 2:
            raise CheckFailedError("The device was full, but no batch was cut into parts.")
        return f"; after running out of memory, in {parts} parts"
    return ""


def _read_speed(trainer: XTTSTrainer, plan: DevicePlan) -> dict[str, Any]:
    pool = read_pool(plan.model.device)
    times = sorted(trainer.step_times)
    return {
        "step_s": times[len(times) // 2] if times else None,
        "pool_peak_mib": None if pool is None else round(pool.peak_mib),
    }


def _shorten_device(device: str) -> str:
    return device.rpartition("device:")[2] or Path(device).name
