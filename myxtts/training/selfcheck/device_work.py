"""Checks of what TensorFlow makes of the devices: order, roles, memory, copies."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import psutil
import tensorflow as tf

from myxtts.devices import runtime
from myxtts.devices.environment import select_visible
from myxtts.devices.machine import read_machine
from myxtts.devices.memory import CONTEXT_MIB, Limit
from myxtts.devices.nvml import MIB, Nvml, PhysicalId
from myxtts.devices.plan import DevicePlan, Mode
from myxtts.devices.topology import is_same_bus_id
from myxtts.pipeline.process_memory import lift_own_memory_limit, limit_own_memory
from myxtts.training.selfcheck.situation import Situation, plan_mode
from myxtts.training.selfcheck.work import CheckFailedError, Seen
from myxtts.utils.commons import get_device_context

BLOCK_MIB = 512
CHUNK_MIB = 64
COPY_MIB = 64
COPIES = 8
OTHERS_MIB = 128
"""What others may take on a card meanwhile."""
REHEARSED_LIMIT_MIB = 512


def compare_order(situation: Situation) -> Seen:
    """TensorFlow lists the cards in the driver's order: same number, same PCI addresses."""
    if situation.rehearsal:
        plan = _apply(situation, Mode.DUAL)
        devices = runtime.list_logical_devices()
        if not {plan.data.device, plan.model.device} <= set(devices):
            raise CheckFailedError(
                f"The plan names {plan.data.device} and {plan.model.device}, TensorFlow has {devices}."
            )
        return Seen(f"TensorFlow has {', '.join(devices)}", {"devices": devices})
    machine = read_machine()
    visible = select_visible(machine.cards, machine.environ)
    found = runtime.read_bus_ids()
    facts = {"driver": [card.bus_id for card in visible], "tensorflow": found}
    if len(visible) != len(found) or not all(map(is_same_bus_id, facts["driver"], found)):
        raise CheckFailedError(f"The driver lists {facts['driver']}, TensorFlow {found}: ids would name other cards.")
    return Seen(f"{len(found)} cards at {', '.join(found)}, in this order for both", facts)


def watch_roles(situation: Situation, *, is_reversed: bool = False) -> Seen:
    """What each role allocates appears on the card whose id it was given, and not on the other."""
    if is_reversed:
        situation = Situation(situation.rehearsal, situation.model_gpu, situation.data_gpu, situation.folder)
    plan = _apply(situation, Mode.DUAL)
    ids = (situation.data_gpu, situation.model_gpu)
    facts: dict[str, Any] = {"data": plan.data.device, "model": plan.model.device}
    roles = ((plan.data, ids), (plan.model, ids[::-1]))
    for role, _ in roles:
        # The driver's own part of a card is taken now, and not while memory is watched.
        _allocate(role.device, 1)
    for role, (own, other) in roles:
        before = _read_used(situation, own), _read_used(situation, other)
        block = _allocate(role.device, BLOCK_MIB)
        if not block.device.endswith(role.device.removeprefix("/")):
            raise CheckFailedError(f"What was asked for on {role.device} is on {block.device}.")
        grown = _read_used(situation, own) - before[0], _read_used(situation, other) - before[1]
        facts[f"{role.role}_grown_mib"] = grown
        if not situation.rehearsal and (grown[0] < BLOCK_MIB - OTHERS_MIB or grown[1] > OTHERS_MIB):
            raise CheckFailedError(
                f"The {role.role} role has {role.device} for GPU {own}; {BLOCK_MIB} MB there made GPU {own} grow by {grown[0]} MB and "
                f"GPU {other} by {grown[1]} MB."
            )
    return Seen(f"data on GPU {ids[0]} ({plan.data.device}), model on GPU {ids[1]} ({plan.model.device})", facts)


def watch_growth(situation: Situation) -> Seen:
    """Memory is taken as it is needed, and on the right card."""
    plan = _apply(situation, Mode.SINGLE)
    before = _read_used(situation, situation.model_gpu)
    _allocate(plan.model.device, 1)
    started = _read_used(situation, situation.model_gpu)
    # Written to and kept: host memory that nobody touches is not taken.
    block = _allocate(plan.model.device, BLOCK_MIB)
    grown = _read_used(situation, situation.model_gpu) - started
    facts = {"start_mib": started - before, "grown_mib": grown, "block_mib": BLOCK_MIB, "device": block.device}
    if not BLOCK_MIB - OTHERS_MIB <= grown <= 4 * BLOCK_MIB:
        raise CheckFailedError(f"{BLOCK_MIB} MB on {plan.model.device} made it grow by {grown} MB.")
    return Seen(f"starting took {started - before} MB, {BLOCK_MIB} MB more took {grown} MB", facts)


def exceed_limit(situation: Situation) -> Seen:
    """Going past a limit is an error that can be caught, and the process works on afterwards."""
    plan = _apply(situation, Mode.SPLIT)
    limit_mib = _find_limit(plan, situation)
    before = _read_used(situation, situation.model_gpu)
    _allocate(plan.model.device, 1)
    if situation.rehearsal:
        # In rehearsal a producer is limited by the operating system: TensorFlow cannot limit a CPU device.
        limit_own_memory(limit_mib * MIB, psutil.Process().memory_info().rss)
    taken_mib, error = _fill(plan.model.device, 2 * limit_mib)
    grown = _read_used(situation, situation.model_gpu) - before
    if situation.rehearsal:
        lift_own_memory_limit()
    facts = {"limit_mib": limit_mib, "taken_mib": taken_mib, "grown_mib": grown, "context_mib": grown - limit_mib}
    if error is None:
        raise CheckFailedError(f"{taken_mib} MB could be taken although the limit is {limit_mib} MB.")
    if taken_mib > limit_mib or taken_mib < limit_mib // 2:
        raise CheckFailedError(f"{taken_mib} MB could be taken before {error} came; the limit is {limit_mib} MB.")
    _allocate(plan.model.device, CHUNK_MIB)
    context = (
        "" if situation.rehearsal else f"; the card holds {grown - limit_mib} MB more ({CONTEXT_MIB} are kept for it)"
    )
    return Seen(f"{taken_mib} of {limit_mib} MB, then {error}, then work went on{context}", facts)


def copy_from_host(situation: Situation) -> Seen:
    """Blocks of the host to the device and back."""
    device = _apply(situation, Mode.SINGLE).model.device
    block = np.random.default_rng(0).random(COPY_MIB * MIB // 4, np.float32)

    def copy_there() -> Any:
        with get_device_context(device):
            return tf.identity(tf.constant(block))

    there = copy_there()
    to_s = _time(copy_there, device)
    from_s = _time(lambda: there.numpy(), device)
    if not np.array_equal(there.numpy(), block):
        raise CheckFailedError(f"What came back from {device} is not what was sent there.")
    facts = {"to_device_gb_per_s": _rate(to_s), "from_device_gb_per_s": _rate(from_s), "device": there.device}
    return Seen(f"to {device} {_rate(to_s):.1f} GB/s, back {_rate(from_s):.1f} GB/s", facts)


def copy_between(situation: Situation) -> Seen:
    """Blocks of the data device to the model device."""
    plan = _apply(situation, Mode.DUAL)
    data, model = plan.data.device, plan.model.device
    block = np.random.default_rng(1).random(COPY_MIB * MIB // 4, np.float32)
    with get_device_context(data):
        source = tf.identity(tf.constant(block))

    def copy() -> Any:
        with get_device_context(model):
            return tf.identity(source)

    arrived = copy()
    seconds = _time(copy, model)
    if not arrived.device.endswith(model.removeprefix("/")):
        raise CheckFailedError(f"What was copied to {model} is on {arrived.device}.")
    if not np.array_equal(arrived.numpy(), block):
        raise CheckFailedError(f"What arrived on {model} is not what was on {data}.")
    return Seen(f"{data} to {model} {_rate(seconds):.1f} GB/s", {"gb_per_s": _rate(seconds)})


def _apply(situation: Situation, mode: Mode) -> DevicePlan:
    plan = plan_mode(situation, mode)
    runtime.apply_plan(plan)
    return plan


def _allocate(device: str, mib: int) -> Any:
    """So much memory on a device, written to and there before this returns."""
    with get_device_context(device):
        block = tf.fill([mib * MIB // 4], tf.constant(1.0))
    # Fetching an element waits until the device has done it.
    assert float(block[-1]) == 1.0
    return block


def _fill(device: str, most_mib: int) -> tuple[int, str | None]:
    """Takes chunk after chunk. How much could be taken, and the error that ended it; None where none came."""
    chunks: list[Any] = []
    while len(chunks) * CHUNK_MIB < most_mib:
        try:
            chunks.append(_allocate(device, CHUNK_MIB))
        except (tf.errors.ResourceExhaustedError, MemoryError) as error:
            return len(chunks) * CHUNK_MIB, type(error).__name__
    return len(chunks) * CHUNK_MIB, None


def _find_limit(plan: DevicePlan, situation: Situation) -> int:
    memory = plan.model.memory
    assert isinstance(memory, Limit)
    return REHEARSED_LIMIT_MIB if situation.rehearsal else memory.mib


def _read_used(situation: Situation, physical_id: int) -> int:
    """Memory in use: of a card, or of this process in a rehearsal."""
    if situation.rehearsal:
        return int(psutil.Process(os.getpid()).memory_info().rss) // MIB
    with Nvml() as nvml:
        used = nvml.read_memory(PhysicalId(physical_id)).used_mib
    if used is None:
        raise CheckFailedError(f"The driver does not say how much memory of GPU {physical_id} is in use.")
    return used


def _time(copy: Callable[[], Any], device: str) -> float:
    """Seconds of one copy, the mean of some, waited for."""
    with get_device_context(device):
        began = time.perf_counter()
        for _ in range(COPIES):
            last = copy()
        # Copies of one device are done in order: the last element of the last one comes after all.
        np.asarray(last[-1])
        return (time.perf_counter() - began) / COPIES


def _rate(seconds: float) -> float:
    return COPY_MIB * MIB / 1e9 / seconds
