"""What the checks of `myxtts selfcheck` do, each in a process of its own: devices, copies, short trainings, speech."""

from __future__ import annotations

import itertools
import logging
import math
import os
import re
import shutil
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import soundfile
import tensorflow as tf
import yaml

from myxtts.cluster.launch import Command, ProcessGroup, has_private_network
from myxtts.config import XTTSConfig
from myxtts.data.ljspeech import demo_corpus_path
from myxtts.data.loaders import NATIVE_IN_FORCE
from myxtts.devices import runtime
from myxtts.devices.machine import is_same_bus_id, read_machine, select_visible
from myxtts.devices.nvml import MIB, Nvml, PhysicalId
from myxtts.devices.plan import CONTEXT_MIB, DevicePlan, Mode
from myxtts.inference.speech import SpeechSettings
from myxtts.inference.synthesizer import load_synthesizer
from myxtts.monitoring.metrics import FILE_NAME, LOG_NAME, EventRow, list_losses, read_metrics
from myxtts.processes import lift_own_memory_limit, limit_own_memory, make_importable
from myxtts.training.mode import PlannedRun, plan_run
from myxtts.training.model import apply_devices, check_batch, check_variables
from myxtts.training.run_folder import read_record
from myxtts.training.step import TrainStep
from myxtts.training.trainer import XTTSTrainer
from myxtts.tuning.profiling import set_up_profile
from myxtts.tuning.selfcheck import POOL_MIB, CheckFailedError, Seen, Situation
from myxtts.units import SAMPLE_RATE_HZ
from myxtts.utils.commons import get_device_context, setup_logging

_log = logging.getLogger(__name__)


BLOCK_MIB, CHUNK_MIB, COPY_MIB = 512, 64, 64
COPIES = 8
OTHERS_MIB = 128
"""What others may take on a card meanwhile."""
REHEARSED_LIMIT_MIB = 512
PRODUCER = "myxtts.pipeline.producer"
SMALLEST_PIECE = 64 * 1024
"""Bytes; far less than the gradients of a step."""
LAST_LINES = 12
CLOSED = (
    "its workers can have no network of their own here, as in most containers. Where nobody else has a login, "
    "`myxtts selfcheck --open-ports` lets them use the machine's"
)


def compare_order(situation: Situation) -> Seen:
    """TensorFlow lists the cards in the driver's order: same number, same PCI addresses."""
    if situation.rehearsal:
        plan, devices = _apply(situation, Mode.DUAL), runtime.list_logical_devices()
        named = {plan.data.device, plan.model.device}
        _require(named <= set(devices), f"The plan names {sorted(named)}, TensorFlow has {devices}.")
        return f"TensorFlow has {', '.join(devices)}", {"devices": devices}
    machine = read_machine()
    ours, found = [card.bus_id for card in select_visible(machine.cards, machine.environ)], runtime.read_bus_ids()
    is_same = len(ours) == len(found) and all(map(is_same_bus_id, ours, found))
    _require(is_same, f"The driver lists {ours}, TensorFlow {found}: ids would name other cards.")
    return f"{len(found)} cards at {', '.join(found)}, in this order for both", {"driver": ours, "tensorflow": found}


def watch_growth(situation: Situation) -> Seen:
    """Memory is taken as it is needed, and on the right card."""
    device, gpu = _apply(situation, Mode.SINGLE).model.device, situation.model_gpu
    before = _read_used(situation, gpu)
    _allocate(device, 1)
    start = _read_used(situation, gpu) - before
    (grown,) = _watch_block(situation, device, gpu)
    is_right = BLOCK_MIB - OTHERS_MIB <= grown <= 4 * BLOCK_MIB
    _require(is_right, f"{BLOCK_MIB} MB on {device} made it grow by {grown} MB.")
    facts = {"start_mib": start, "grown_mib": grown, "block_mib": BLOCK_MIB, "device": device}
    return f"starting took {start} MB, {BLOCK_MIB} MB more took {grown} MB", facts


def exceed_limit(situation: Situation) -> Seen:
    """Going past a limit is an error that can be caught, and the process works on afterwards."""
    device = _apply(situation, Mode.SPLIT).model.device
    limit_mib = REHEARSED_LIMIT_MIB if situation.rehearsal else POOL_MIB
    before = _read_used(situation, situation.model_gpu)
    _allocate(device, 1)
    if situation.rehearsal:
        # In rehearsal a producer is limited by the operating system: TensorFlow cannot limit a CPU device.
        limit_own_memory(limit_mib * MIB, psutil.Process().memory_info().rss)
    chunks, error = list[Any](), None
    while error is None and len(chunks) * CHUNK_MIB < 2 * limit_mib:
        try:
            chunks.append(_allocate(device, CHUNK_MIB))
        except (tf.errors.ResourceExhaustedError, MemoryError) as caught:
            error = type(caught).__name__
    taken_mib, grown = len(chunks) * CHUNK_MIB, _read_used(situation, situation.model_gpu) - before
    chunks.clear()
    if situation.rehearsal:
        lift_own_memory_limit()
    _require(
        error is not None and limit_mib // 2 <= taken_mib <= limit_mib,
        f"{taken_mib} MB could be taken before {error or 'no error'} came; the limit is {limit_mib} MB.",
    )
    _allocate(device, CHUNK_MIB)
    said = f"{taken_mib} of {limit_mib} MB, then {error}, then work went on"
    if not situation.rehearsal:
        said += f"; the card holds {grown - limit_mib} MB more ({CONTEXT_MIB} are kept for it)"
    return said, {"limit_mib": limit_mib, "taken_mib": taken_mib, "grown_mib": grown, "context_mib": grown - limit_mib}


def watch_roles(situation: Situation, *, is_reversed: bool = False) -> Seen:
    """What each role allocates appears on the card whose id it was given, and not on the other."""
    if is_reversed:
        situation = replace(situation, data_gpu=situation.model_gpu, model_gpu=situation.data_gpu)
    plan = _apply(situation, Mode.DUAL)
    data_gpu, model_gpu = situation.data_gpu, situation.model_gpu
    facts: dict[str, Any] = {"data": plan.data.device, "model": plan.model.device}
    for role in (plan.data, plan.model):
        # The driver's own part of a card is taken now, and not while memory is watched.
        _allocate(role.device, 1)
    for role, own, other in ((plan.data, data_gpu, model_gpu), (plan.model, model_gpu, data_gpu)):
        grown = _watch_block(situation, role.device, own, other)
        facts[f"{role.role}_grown_mib"] = grown
        _require(
            situation.rehearsal or (grown[0] >= BLOCK_MIB - OTHERS_MIB and grown[1] <= OTHERS_MIB),
            f"The {role.role} role has {role.device} for GPU {own}; {BLOCK_MIB} MB there made GPU {own} grow by {grown[0]} MB and "
            f"GPU {other} by {grown[1]} MB.",
        )
    return f"data on GPU {data_gpu} ({plan.data.device}), model on GPU {model_gpu} ({plan.model.device})", facts


def copy_from_host(situation: Situation) -> Seen:
    """Blocks of the host to the device and back."""
    device = _apply(situation, Mode.SINGLE).model.device
    block = np.random.default_rng(0).random(COPY_MIB * MIB // 4, np.float32)
    to_rate, there = _time_copies(lambda: tf.identity(tf.constant(block)), device)
    from_rate, back = _time_copies(lambda: there.numpy(), device)
    _require(np.array_equal(back, block), f"What came back from {device} is not what was sent there.")
    facts = {"to_device_gb_per_s": to_rate, "from_device_gb_per_s": from_rate, "device": there.device}
    return f"to {device} {to_rate:.1f} GB/s, back {from_rate:.1f} GB/s", facts


def copy_between(situation: Situation) -> Seen:
    """Blocks of the data device to the model device."""
    plan = _apply(situation, Mode.DUAL)
    data, model = plan.data.device, plan.model.device
    block = np.random.default_rng(1).random(COPY_MIB * MIB // 4, np.float32)
    with get_device_context(data):
        source = tf.identity(tf.constant(block))
    rate, arrived = _time_copies(lambda: tf.identity(source), model)
    _require_on(arrived, model)
    _require(np.array_equal(arrived.numpy(), block), f"What arrived on {model} is not what was on {data}.")
    return f"{data} to {model} {rate:.1f} GB/s", {"gb_per_s": rate}


def inspect_placement(situation: Situation) -> Seen:
    """Every variable of model and optimizer, and every float tensor of a batch, is on the model's device."""
    plan = situation.plan(Mode.DUAL if situation.cards == 2 else Mode.SINGLE)
    config, device = make_config(situation, training={"codec": None}), plan.model.device
    apply_devices(config, plan)
    situation.folder.mkdir()
    setup = set_up_profile(config, plan, situation.folder)
    with get_device_context(device), closing(setup.open_batches()) as source:
        variables, tensors = list(setup.build_model().list_variables()), source.take().tensors
        check_variables(variables, device)
        check_batch(tensors, device)
        places = {"variables": [each for _, each in variables], "batch": tensors.values()}
        facts = {name: Counter(each.device.rpartition("/")[2] for each in things) for name, things in places.items()}
    return f"{len(variables)} variables and {len(tensors)} tensors of a batch on {device}", dict(facts)


def speak(situation: Situation) -> Seen:
    """A sentence of the model that `train-single` made, with its weights on the model's device."""
    device = _apply(situation, Mode.SINGLE).model.device
    clip = sorted((demo_corpus_path() / "wavs").iterdir())[0]
    with get_device_context(device):
        synthesizer = load_synthesizer(Path(situation.root, "train-single"))
        check_variables(((each.path, each.value) for each in synthesizer.xtts.gpt.variables), device)
        voice = synthesizer.clone_voice([clip])
        began = time.perf_counter()
        samples = synthesizer.speak("The device speaks.", voice, "en", SpeechSettings(seed=0)).samples
        taken_s = time.perf_counter() - began
    is_heard = bool(samples.size and np.isfinite(samples).all() and np.abs(samples).max() > 0)
    _require(is_heard, f"Speech must be finite and not silent, but {samples.size} samples are not.")
    speech_s = samples.size / (synthesizer.rate_hz or SAMPLE_RATE_HZ)
    facts = {"seconds_of_speech": speech_s, "seconds_taken": taken_s, "device": device}
    return f"{speech_s:.1f} s of speech in {taken_s:.1f} s on {device}", facts


def train(situation: Situation, *, mode: str = "single", fault: str = "", **sections: Any) -> Seen:
    """A short training in a mode. Its losses are finite and fall; whether they are the right ones is for who compares."""
    setup_logging()
    config, command = make_config(situation, **sections), ("myxtts", "selfcheck")
    if mode == "auto":
        ids = {} if situation.rehearsal else {"data_gpu": situation.data_gpu, "model_gpu": situation.model_gpu}
        config = config.replace(training={"mode": "auto"}, data=ids)
        planned = plan_run(config, command)
    else:
        apart = Mode.ISOLATED if situation.cards == 2 else Mode.SPLIT
        planned = PlannedRun(situation.plan(apart if mode == "two processes" else Mode(mode)))
    plan, choice = planned.plan, planned.choice
    trainer = XTTSTrainer(config, plan=plan, command=command, choice=choice)
    with _inject(fault, plan) if fault else nullcontext():
        trainer.train()
    happened = _describe_effects(situation, trainer, config, fault)
    if choice is not None:
        record, happened = read_record(situation.folder), f"it chose the {choice.layout} mode"
        _require(record is not None and record.choice is not None, "A mode was chosen, but not kept with the run.")
    seen, facts = _describe_losses(situation, happened)
    pool, times = runtime.read_pool(plan.model.device), sorted(trainer.step_times)
    return seen, facts | {
        "mode": str(plan.mode),
        "model_device": plan.model.device,
        "data_device": plan.data.device,
        "step_s": times[len(times) // 2] if times else None,
        "pool_peak_mib": None if pool is None else round(pool.peak_mib),
    }


def train_parallel(situation: Situation) -> Seen:
    """A short training by `myxtts train --model-gpus`: both devices train, and share every batch."""
    if not situation.opens_ports and not has_private_network():
        return CLOSED, None
    setup_logging()
    path, lines = situation.folder.with_suffix(".yaml"), list[str]()
    config = make_config(situation, training={"model_gpus": f"{situation.model_gpu},{situation.data_gpu}"})
    path.write_text(yaml.safe_dump(config.given_values()), encoding="utf-8")

    def hear(_: int, line: str) -> None:
        _log.info("%s", line)
        lines.append(line)

    words = [sys.executable, "-P", "-m", "myxtts.cli.main", "train", "--config", str(path)]
    words += ["--open-ports"] if situation.opens_ports else []
    (code,) = ProcessGroup([Command(words, make_importable(os.environ))], hear).run()
    said = "\n".join(lines[-LAST_LINES:])
    _require(code == 0, f"`myxtts train` ended with exit code {code}:\n{said}")
    _require((situation.folder / "worker-1").is_dir(), f"Two workers were to train, but only one did:\n{said}")
    return _describe_losses(situation, "two workers")


def make_config(situation: Situation, **sections: Any) -> XTTSConfig:
    """The configuration of a check that trains a small model for a few updates, in its folder."""
    stage, others = sections.get("training", {}).get("stage", "gpt"), Path(situation.root)
    is_decoder = stage == "decoder"
    # All else of a decoder's model is that of the GPT which it speaks for. Without dropout an update in parts is the same up to rounding.
    model = {"decoder_width": 32} if is_decoder else {
        "size": "tiny", "gpt_layers": 2, "gpt_width": 64, "gpt_heads": 2, "dvae_width": 32, "audio_codes": 64, "dropout": 0.0,
        "enable_gradient_checkpointing": False,
    }  # fmt: skip
    base: dict[str, dict[str, Any]] = {
        "model": model,
        "data": {
            # All in one bucket, so that one shape is traced, and so few that every clip comes twice.
            "batch_size": 4, "min_clip_seconds": 2.61, "max_clip_seconds": 2.81, "cache": "off", "num_workers": 0,
            **({} if is_decoder else {"prompt_seconds": 1.0}),
            "train_data": str(_keep_wav_corpus(others / "wav-corpus")), "model_start_delay": 0.0,
            "mixed_precision": "float32", "enable_xla": False, "use_tf_native_loading": False,
        },
        "training": {
            "rehearsal": situation.rehearsal, "max_steps": 4 if stage == "codec" else 6, "warmup_steps": 0, "log_interval": 1,
            "codec": str(others / "train-codec") if stage == "gpt" else None,
            "init_from": str(others / "train-single") if is_decoder else None,
            "learning_rate": 2e-4 if is_decoder else 0.003, "speak": False, "on_oom": "retry",
            # In a rehearsal not a bit may differ between modes, whatever the number of threads.
            "deterministic": situation.rehearsal, "checkpoint_dir": str(situation.folder),
        },
    }  # fmt: skip
    return XTTSConfig(**{section: {**values, **sections.get(section, {})} for section, values in base.items()})


def _require(is_so: bool, otherwise: str) -> None:
    if not is_so:
        raise CheckFailedError(otherwise)


def _require_on(tensor: Any, device: str) -> None:
    is_there = tensor.device.endswith(device.removeprefix("/"))
    _require(is_there, f"What was asked for on {device} is on {tensor.device}.")


def _apply(situation: Situation, mode: Mode) -> DevicePlan:
    plan = situation.plan(mode)
    runtime.apply_plan(plan)
    return plan


def _allocate(device: str, mib: int) -> Any:
    """So much memory on a device, written to and there before this returns."""
    with get_device_context(device):
        block = tf.fill([mib * MIB // 4], tf.constant(1.0))
    # Fetching an element waits until the device has done it.
    assert float(block[-1]) == 1.0
    return block


def _watch_block(situation: Situation, device: str, *gpus: int) -> list[int]:
    """By how many MiB the memory in use of cards grows when a block is taken on a device."""
    before = [_read_used(situation, gpu) for gpu in gpus]
    # Kept while it is looked at, and written to: host memory that nobody touches is not taken.
    block = _allocate(device, BLOCK_MIB)
    _require_on(block, device)
    return [_read_used(situation, gpu) - used for gpu, used in zip(gpus, before, strict=True)]


def _read_used(situation: Situation, physical_id: int) -> int:
    """Memory in use, in MiB: of a card, or of this process in a rehearsal."""
    if situation.rehearsal:
        return int(psutil.Process().memory_info().rss) // MIB
    with Nvml() as nvml:
        used = nvml.read_memory(PhysicalId(physical_id)).used_mib
    if used is None:
        raise CheckFailedError(f"The driver does not say how much memory of GPU {physical_id} is in use.")
    return used


def _time_copies(copy: Callable[[], Any], device: str) -> tuple[float, Any]:
    """GB per second of a copy, the mean of some, waited for; and what was copied."""
    with get_device_context(device):
        copy()
        began = time.perf_counter()
        for _ in range(COPIES):
            last = copy()
        # Copies of one device are done in order: the last element of the last one comes after all.
        np.asarray(last[-1])
        return COPY_MIB * MIB * COPIES / 1e9 / (time.perf_counter() - began), last


@contextmanager
def _inject(fault: str, plan: DevicePlan) -> Iterator[None]:
    """Lets something go wrong with the second micro-batch."""
    whole, calls = TrainStep.compute, itertools.count(1)

    def compute(step: TrainStep, *arguments: Any, **options: Any) -> Any:
        held = _strike(fault, plan) if next(calls) == 2 else []
        try:
            return whole(step, *arguments, **options)
        finally:
            # An error that is still looked at would keep them alive with its frames.
            held.clear()

    # The step is made deep inside the run that is to be checked as it is.
    TrainStep.compute = compute  # type: ignore[method-assign, assignment]
    try:
        yield
    finally:
        TrainStep.compute = whole  # type: ignore[method-assign]


def _strike(fault: str, plan: DevicePlan) -> list[Any]:
    """Kills the producer, or takes what is free in the model device's pool: the tensors that hold it."""
    if fault == "kill producer":
        producers = [child for child in psutil.Process().children(recursive=True) if PRODUCER in child.cmdline()]
        _require(bool(producers), "There is no producer process that could be killed.")
        for producer in producers:
            producer.kill()
        return []
    if plan.rehearsal:
        raise tf.errors.ResourceExhaustedError(None, None, "made up: a CPU device has no limit")
    held, size = list[Any](), 512 * MIB
    with get_device_context(plan.model.device):
        while size >= SMALLEST_PIECE:
            try:
                held.append(tf.fill([size // 4], tf.constant(0.0)))
            except tf.errors.ResourceExhaustedError:
                size //= 2
    return held


def _describe_effects(situation: Situation, trainer: XTTSTrainer, config: XTTSConfig, fault: str) -> str:
    """What a fault or a setting did; an error where it did nothing, for then nothing was checked."""
    log = (situation.folder / LOG_NAME).read_text(encoding="utf-8")
    if fault == "kill producer":
        rows = read_metrics(situation.folder / FILE_NAME).rows
        deaths = [row.text for row in rows if isinstance(row, EventRow) and row.name == "producer died"]
        _require(bool(deaths), "The producer was killed, but the run has noted no death.")
        return f"the producer was killed and replaced ({deaths[0][:60]})"
    if fault:
        parts = re.findall(r"batches cut into (\d+) parts", log)
        _require(bool(parts), "The device was full, but no batch was cut into parts.")
        return f"after running out of memory, in {parts[-1]} parts"
    if config.data.cache != "off":
        meters = None if trainer._source is None else trainer._source.read_facts().meters
        if meters is None or not meters.cache_hits:
            raise CheckFailedError("Codes were to be kept, but those of no clip were found again.")
        return f"the codes of {meters.cache_hits} of {meters.cache_hits + meters.cache_misses} clips were found again"
    if config.data.use_tf_native_loading:
        _require(
            NATIVE_IN_FORCE in log,
            "TensorFlow was to read the clips by itself, but the log of the run says that it did not.",
        )
        return "tf.data read the clips"
    return ""


def _describe_losses(situation: Situation, happened: str) -> tuple[str, dict[str, Any]]:
    """The losses of a run, which must be finite and fall."""
    losses = [loss for _, loss in list_losses(read_metrics(situation.folder / FILE_NAME))]
    _require(bool(losses) and all(map(math.isfinite, losses)), f"Losses must be finite numbers, but are {losses}.")
    change = f"{len(losses)} updates, loss {losses[0]:.4f} to {losses[-1]:.4f}"
    _require(losses[-1] < losses[0], f"The loss must fall, but: {change}.")
    return f"{change}; {happened}".removesuffix("; "), {"losses": losses, "how": happened}


def _keep_wav_corpus(folder: Path) -> Path:
    """The demo corpus as plain wav, the only format that TensorFlow reads by itself; made by the first check that needs it."""
    if folder.exists():
        return folder
    source, unfinished = demo_corpus_path(), folder.with_suffix(".new")
    shutil.rmtree(unfinished, ignore_errors=True)
    (unfinished / "wavs").mkdir(parents=True)
    for path in (source / "wavs").iterdir():
        samples, rate_hz = soundfile.read(path, dtype="int16")
        soundfile.write(unfinished / "wavs" / f"{path.stem}.wav", samples, rate_hz, subtype="PCM_16")
    shutil.copy(source / "metadata.csv", unfinished)
    return unfinished.rename(folder)
