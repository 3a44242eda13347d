"""What the checks of `myxtts selfcheck` do, each in a process of its own: devices, copies, short trainings, speech."""

from __future__ import annotations

import itertools
import math
import re
import time
from contextlib import AbstractContextManager, nullcontext
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import psutil
import tensorflow as tf

from myxtts.config import XTTSConfig
from myxtts.data.ljspeech import demo_corpus_path
from myxtts.devices import runtime
from myxtts.devices.machine import read_machine
from myxtts.devices.nvml import MIB, Nvml, PhysicalId
from myxtts.devices.plan import CONTEXT_MIB, DevicePlan, Mode, PlanRequest
from myxtts.devices.planning import plan_devices
from myxtts.inference.speech import SpeechSettings
from myxtts.inference.synthesizer import load_synthesizer
from myxtts.monitoring.metrics import FILE_NAME, LOG_NAME, EventRow, list_losses, read_metrics
from myxtts.processes import lift_own_memory_limit, limit_own_memory
from myxtts.training.mode import PlannedRun, name_layout, plan_run
from myxtts.training.model import check_variables
from myxtts.training.step import TrainStep
from myxtts.training.trainer import XTTSTrainer
from myxtts.tuning.selfcheck import CheckFailedError, Seen, Situation
from myxtts.utils.commons import get_device_context, setup_logging

POOL_MIB, REHEARSED_LIMIT_MIB = 2048, 512
"""Of each role where limits are in force: far more than the small model needs, and free on every card worth training on."""
BLOCK_MIB, CHUNK_MIB = 512, 64
OTHERS_MIB = 128
"""What others may take on a card meanwhile."""
PRODUCER = "myxtts.pipeline.producer"
SMALLEST_PIECE = 64 * 1024
"""Bytes; far less than the gradients of a step."""
COMMAND = ("myxtts", "selfcheck")


def read_driver(situation: Situation) -> Seen:
    """Every card answers, and what it says of itself can be true."""
    machine = read_machine()
    problem = machine.scan.problem or next((reason for _, reason in machine.scan.lost), "")
    _require(not problem, problem)
    if not machine.cards:
        return f"no card; {machine.host_free_mib} MB of host memory are free", {"cards": []}
    with Nvml() as nvml:
        driver = nvml.read_driver_version()
        cards = [asdict(card) | asdict(nvml.read_activity(card.physical_id)) for card in machine.cards]
    for card in machine.cards:
        can_be = card.total_mib is None or card.free_mib is None or 0 <= card.free_mib <= card.total_mib
        _require(
            can_be, f"Of {card.total_mib} MB GPU {card.physical_id} says {card.free_mib} are free, which cannot be."
        )
    unknown = sorted({name for card in cards for name, value in card.items() if value is None})
    told = f"not told: {', '.join(unknown)}" if unknown else "everything asked is told"
    return f"{len(cards)} cards, driver {driver}; {told}", {"cards": cards, "driver": driver}


def watch_memory(situation: Situation, *, is_reversed: bool = False) -> Seen:
    """What each role allocates appears on the card whose id it was given, is about that much, and is not on the other."""
    if is_reversed:
        situation = replace(situation, data_gpu=situation.model_gpu, model_gpu=situation.data_gpu)
    plan = _plan(situation, Mode.DUAL if situation.cards == 2 else Mode.SINGLE, applies=True)
    roles = {situation.data_gpu: plan.data, situation.model_gpu: plan.model}
    for role in roles.values():
        # The driver's own part of a card is taken now, and not while memory is watched.
        _allocate(role.device, 1)
    facts: dict[str, Any] = {}
    for own, role in roles.items():
        before = {gpu: _read_used(situation, gpu) for gpu in roles}
        # Kept while it is looked at, and written to: host memory that nobody touches is not taken.
        block = _allocate(role.device, BLOCK_MIB)
        is_there = block.device.endswith(role.device.removeprefix("/"))
        _require(is_there, f"What was asked for on {role.device} is on {block.device}.")
        grown = {gpu: _read_used(situation, gpu) - used for gpu, used in before.items()}
        facts[str(role.role)] = {"device": role.device, "grown_mib": grown}
        # Logical devices share the memory of this process.
        is_alone = situation.rehearsal or all(mib <= OTHERS_MIB for gpu, mib in grown.items() if gpu != own)
        told = " and ".join(f"GPU {gpu} grow by {mib} MB" for gpu, mib in grown.items())
        said = f"The {role.role} role has {role.device} for GPU {own}; {BLOCK_MIB} MB there made {told}."
        _require(BLOCK_MIB - OTHERS_MIB <= grown[own] <= 4 * BLOCK_MIB and is_alone, said)
    return ", ".join(f"{role.role} on GPU {gpu} ({role.device})" for gpu, role in roles.items()), facts


def exceed_limit(situation: Situation) -> Seen:
    """Going past a limit is an error that can be caught, and the process works on afterwards."""
    device, before = _plan(situation, Mode.SPLIT, applies=True).model.device, _read_used(situation, situation.model_gpu)
    limit_mib = REHEARSED_LIMIT_MIB if situation.rehearsal else POOL_MIB
    _allocate(device, 1)
    if situation.rehearsal:
        # In rehearsal a producer is limited by the operating system: TensorFlow cannot limit a CPU device.
        limit_own_memory(limit_mib * MIB, psutil.Process().memory_info().rss)
    chunks, error = list[Any](), "no error"
    try:
        while len(chunks) * CHUNK_MIB < 2 * limit_mib:
            chunks.append(_allocate(device, CHUNK_MIB))
    except (tf.errors.ResourceExhaustedError, MemoryError) as caught:
        error = type(caught).__name__
    taken_mib, grown = len(chunks) * CHUNK_MIB, _read_used(situation, situation.model_gpu) - before
    chunks.clear()
    if situation.rehearsal:
        lift_own_memory_limit()
    is_right = limit_mib // 2 <= taken_mib <= limit_mib
    _require(is_right, f"{taken_mib} MB could be taken before {error} came; the limit is {limit_mib} MB.")
    _allocate(device, CHUNK_MIB)
    kept = (
        "" if situation.rehearsal else f"; the card holds {grown - limit_mib} MB more ({CONTEXT_MIB} are kept for it)"
    )
    facts = {"limit_mib": limit_mib, "taken_mib": taken_mib, "grown_mib": grown}
    return f"{taken_mib} of {limit_mib} MB, then {error}, then work went on{kept}", facts


def speak(situation: Situation) -> Seen:
    """A sentence of the model that `train-single` made, with its weights on the model's device."""
    device = _plan(situation, Mode.SINGLE, applies=True).model.device
    with get_device_context(device):
        synthesizer = load_synthesizer(Path(situation.root, "train-single"), engine="float32")
        check_variables(((each.path, each.value) for each in synthesizer.xtts.gpt.variables), [device])
        voice = synthesizer.clone_voice([min((demo_corpus_path() / "wavs").iterdir())])
        began = time.perf_counter()
        samples = synthesizer.speak("The device speaks.", voice, "en", SpeechSettings(seed=0)).samples
        taken_s = time.perf_counter() - began
    is_heard = bool(samples.size and np.isfinite(samples).all() and np.abs(samples).max() > 0)
    _require(is_heard, f"Speech must be finite and not silent, but {samples.size} samples are not.")
    speech_s = samples.size / synthesizer.rate_hz
    facts = {"seconds_of_speech": speech_s, "seconds_taken": taken_s, "device": device}
    return f"{speech_s:.1f} s of speech in {taken_s:.1f} s on {device}", facts


def train(situation: Situation, *, mode: str = "single", fault: str = "", **sections: Any) -> Seen:
    """A short training in a mode. Its losses are finite and fall; whether they are the right ones is for who compares."""
    setup_logging()
    config, ids = make_config(situation, **sections), {"data_gpu": situation.data_gpu, "model_gpu": situation.model_gpu}
    if mode == "auto":
        config = config.replace(training={"mode": mode}, data={} if situation.rehearsal else ids)
    elif mode == "parallel":
        config = config.replace(training={"model_gpus": f"{situation.model_gpu},{situation.data_gpu}"})
    elif mode == "two processes":
        mode = Mode.ISOLATED if situation.cards == 2 else Mode.SPLIT
    planned = plan_run(config, COMMAND) if mode in ("auto", "parallel") else PlannedRun(_plan(situation, Mode(mode)))
    plan, choice = planned.plan, planned.choice
    devices = [role.device for role in plan.trainers]
    several = mode == "parallel" or (choice is not None and choice.cards > 1)
    _require(len(devices) == 1 + several, f"As {mode} the plan has {', '.join(devices)} train.")
    trainer = XTTSTrainer(config, plan=plan, command=COMMAND, choice=choice)
    with _inject(fault, plan) if fault else nullcontext():
        trainer.train()
    metrics, happened = (
        read_metrics(situation.folder / FILE_NAME),
        "" if choice is None else f"it chose {name_layout(choice.layout, choice.cards)}",
    )
    # A fault that did nothing has checked nothing.
    if fault == "kill producer":
        deaths = [row.text for row in metrics.rows if isinstance(row, EventRow) and row.name == "producer died"]
        _require(bool(deaths), "The producer was killed, but the run has noted no death.")
        happened = f"the producer was killed and replaced ({deaths[0][:60]})"
    elif fault:
        parts = re.findall(r"batches cut into (\d+) parts", (situation.folder / LOG_NAME).read_text(encoding="utf-8"))
        _require(bool(parts), "The device was full, but no batch was cut into parts.")
        happened = f"after running out of memory, in {parts[-1]} parts"
    losses = [loss for _, loss in list_losses(metrics)]
    _require(bool(losses) and all(map(math.isfinite, losses)), f"Losses must be finite numbers, but are {losses}.")
    change = f"{len(losses)} updates, loss {losses[0]:.4f} to {losses[-1]:.4f}"
    _require(losses[-1] < losses[0], f"The loss must fall, but: {change}.")
    pool, times = runtime.read_pool(plan.model.device), sorted(trainer.step_times)
    facts = {
        "losses": losses, "how": happened, "mode": str(plan.mode), "data": plan.data.device, "trainers": devices,
        "step_s": times[len(times) // 2] if times else None, "pool_peak_mib": None if pool is None else round(pool.peak_mib),
    }  # fmt: skip
    return f"{change}; {happened}".removesuffix("; "), facts


def make_config(situation: Situation, **sections: Any) -> XTTSConfig:
    """The configuration of a check that trains a small model for a few updates, in its folder."""
    stage, others = sections.get("training", {}).get("stage", "gpt"), Path(situation.root)
    # Without dropout an update in parts is the same up to rounding.
    model: dict[str, Any] = {
        "size": "tiny", "gpt_layers": 2, "gpt_width": 64, "gpt_heads": 2, "dvae_width": 32, "audio_codes": 64, "dropout": 0.0,
    }  # fmt: skip
    # All in one bucket, so that one shape is traced.
    data: dict[str, Any] = {
        "batch_size": 4, "min_clip_seconds": 2.61, "max_clip_seconds": 2.81, "cache": "off", "num_workers": 0, "prompt_seconds": 1.0,
        "train_data": str(demo_corpus_path()), "model_start_delay": 0.0,
    }  # fmt: skip
    training: dict[str, Any] = {
        "rehearsal": situation.rehearsal, "max_steps": 4 if stage == "codec" else 6, "warmup_steps": 0, "log_interval": 1,
        "codec": str(others / "train-codec") if stage == "gpt" else None, "learning_rate": 0.003, "speak": False,
        # In a rehearsal not a bit may differ between modes, whatever the number of threads.
        "deterministic": situation.rehearsal, "checkpoint_dir": str(situation.folder),
    }  # fmt: skip
    if stage == "decoder":
        # All else of its model is that of the GPT which it speaks for.
        model = {"decoder_width": 32}
        training |= {"init_from": str(others / "train-single"), "learning_rate": 2e-4}
        del data["prompt_seconds"]
    base = {"model": model, "data": data, "training": training}
    return XTTSConfig(**{section: {**values, **sections.get(section, {})} for section, values in base.items()})


def _require(is_so: bool, otherwise: str) -> None:
    if not is_so:
        raise CheckFailedError(otherwise)


def _plan(situation: Situation, mode: Mode, *, applies: bool = False) -> DevicePlan:
    limit_mib = POOL_MIB if mode in (Mode.ISOLATED, Mode.SPLIT) else None
    data_gpu = {Mode.SINGLE: None, Mode.SPLIT: situation.model_gpu}.get(mode, situation.data_gpu)
    request = PlanRequest(
        mode="single" if mode is Mode.SINGLE else None, data_gpu=data_gpu, model_gpu=situation.model_gpu,
        isolation=mode is Mode.ISOLATED, data_limit_mib=limit_mib, model_limit_mib=limit_mib, rehearsal=situation.rehearsal, command=COMMAND,
    )  # fmt: skip
    plan = plan_devices(request, read_machine())
    if applies:
        runtime.apply_plan(plan)
    return plan


def _allocate(device: str, mib: int) -> Any:
    """So much memory on a device, written to and there before this returns."""
    with get_device_context(device):
        block = tf.fill([mib * MIB // 4], tf.constant(1.0))
    # Fetching an element waits until the device has done it.
    assert float(block[-1]) == 1.0
    return block


def _read_used(situation: Situation, physical_id: int) -> int:
    """Memory in use, in MiB: of a card, or of this process in a rehearsal."""
    if situation.rehearsal:
        return int(psutil.Process().memory_info().rss) // MIB
    with Nvml() as nvml:
        used = nvml.read_memory(PhysicalId(physical_id)).used_mib
    if used is None:
        raise CheckFailedError(f"The driver does not say how much memory of GPU {physical_id} is in use.")
    return used


def _inject(fault: str, plan: DevicePlan) -> AbstractContextManager[Any]:
    """A block in which something goes wrong with the second micro-batch: the producer is killed, or the model device is full."""
    whole, calls = TrainStep.compute, itertools.count(1)

    def compute(step: TrainStep, *arguments: Any, **options: Any) -> Any:
        held = _strike(fault, plan) if next(calls) == 2 else []
        try:
            return whole(step, *arguments, **options)
        finally:
            # An error that is still looked at would keep them alive with its frames.
            held.clear()

    # The step is made deep inside the run that is to be checked as it is.
    return patch.object(TrainStep, "compute", compute)


def _strike(fault: str, plan: DevicePlan) -> list[Any]:
    """Kills the producer, or takes what is free in the model device's pool: the tensors that hold it."""
    held, size = list[Any](), 512 * MIB
    if fault == "kill producer":
        producers = [child for child in psutil.Process().children(recursive=True) if PRODUCER in child.cmdline()]
        _require(bool(producers), "There is no producer process that could be killed.")
        for producer in producers:
            producer.kill()
        return held
    if plan.rehearsal:
        raise tf.errors.ResourceExhaustedError(None, None, "made up: a CPU device has no limit")
    with get_device_context(plan.model.device):
        while size >= SMALLEST_PIECE:
            try:
                held.append(tf.fill([size // 4], tf.constant(0.0)))
            except tf.errors.ResourceExhaustedError:
                size //= 2
    return held
