"""Checks that train in their own process: a small model, a few updates, on the demo corpus."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Iterator
from contextlib import closing, contextmanager, nullcontext
from pathlib import Path
from typing import Any

import psutil
import tensorflow as tf

from myxtts.data.open_engine import NATIVE_IN_FORCE
from myxtts.devices.nvml import MIB
from myxtts.devices.plan import DevicePlan, Mode
from myxtts.devices.runtime import read_pool
from myxtts.monitoring.metrics_log import FILE_NAME, LOG_NAME, read_metrics
from myxtts.monitoring.metrics_rows import EventRow, Row
from myxtts.pipeline.batch_meters import BatchMeters
from myxtts.pipeline.sources import open_source
from myxtts.training.devices_in_force import apply_devices
from myxtts.training.placement import check_batch, check_variables
from myxtts.training.profiling.setup import set_up_profile
from myxtts.training.selfcheck.situation import Situation, choose_two_process_mode, plan_mode
from myxtts.training.selfcheck.small_run import make_config, read_falling_losses
from myxtts.training.selfcheck.work import CheckFailedError, Seen
from myxtts.training.step import TrainStep
from myxtts.training.trainer import XTTSTrainer
from myxtts.utils.commons import get_device_context, setup_logging

KILL = "kill producer"
RUN_OUT = "out of memory"
PRODUCER = "myxtts.pipeline.producer_main"
SMALLEST_PIECE = 64 * 1024
"""Bytes; far less than the gradients of a step."""


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
    cache: str = "off",
    is_native: bool = False,
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
        cache=cache,
        is_native=is_native,
    )
    trainer = XTTSTrainer(config, plan=plan, command=("myxtts", "selfcheck"))
    with _inject(fault, plan) if fault else nullcontext():
        trainer.train()
    folder = situation.root / name
    losses = read_falling_losses(folder)
    happened = _require_effect(fault, trainer, read_metrics(folder / FILE_NAME).rows)
    if cache != "off":
        happened += _require_hits(trainer)
    if is_native:
        happened += _require_native(folder)
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


def _require_hits(trainer: XTTSTrainer) -> str:
    """How many clips had their codes ready; an error where none did, for then nothing was kept."""
    source = None if trainer._stage is None else trainer._stage.source
    meters = BatchMeters() if source is None else source.read_facts().meters
    if not meters.cache_hits:
        raise CheckFailedError("Codes were to be kept, but those of no clip were found again.")
    clips = meters.cache_hits + meters.cache_misses
    return f"; the codes of {meters.cache_hits} of {clips} clips were found again"


def _require_native(folder: Path) -> str:
    if NATIVE_IN_FORCE not in (folder / LOG_NAME).read_text(encoding="utf-8"):
        raise CheckFailedError(
            "TensorFlow was to read the clips by itself, but the log of the run says that it did not."
        )
    return "; tf.data read the clips"


def _read_speed(trainer: XTTSTrainer, plan: DevicePlan) -> dict[str, Any]:
    pool = read_pool(plan.model.device)
    times = sorted(trainer.step_times)
    return {
        "step_s": times[len(times) // 2] if times else None,
        "pool_peak_mib": None if pool is None else round(pool.peak_mib),
    }


def _shorten_device(device: str) -> str:
    return device.rpartition("device:")[2] or Path(device).name
