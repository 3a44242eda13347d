"""What a plan says to a person: what it leaves unused, why it cannot be had, and the command that would work."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from pathlib import PurePath

from myxtts.devices.environment import VISIBLE_DEVICES
from myxtts.devices.machine import Machine
from myxtts.devices.nvml import Card, PhysicalId
from myxtts.devices.plan import PlanRequest, Task


def note_unused_limits(request: PlanRequest) -> list[str]:
    """That limits were given to a mode without any; none where they were not."""
    given = [limit.flag for limit in request.limits if limit.asked_mib is not None]
    if not given:
        return []
    return [
        f"{' and '.join(given)} {'has' if len(given) == 1 else 'have'} no effect in this mode: it lets memory grow as needed. "
        f"Limits apply with {'--enable-memory-isolation' if request.command else 'enable_memory_isolation'} or a split card."
    ]


def note_unused_cards(request: PlanRequest, card: Card, others: Sequence[Card]) -> str:
    """That cards stay unused, and how to use them."""
    other = others[0].physical_id
    if request.task is not Task.TRAIN:
        advice = f"For another one set {VISIBLE_DEVICES}={other}."
    elif request.command:
        advice = f"For two cards add --data-gpu {other} --model-gpu {card.physical_id}."
    else:
        advice = f"For two cards give data.data_gpu {other} and data.model_gpu {card.physical_id}."
    return f"{request.task} on GPU {card.physical_id} alone; other cards stay unused ({_list_ids(others)}). {advice}"


def explain_no_gpu(task: Task, machine: Machine) -> str:
    """Why the CPU does the job."""
    if machine.scan.problem:
        return f"{task} on the CPU. {machine.scan.problem}"
    if machine.scan.lost:
        return f"{task} on the CPU. {machine.scan.lost[0][1]}"
    if machine.cards:
        return f"{task} on the CPU: {VISIBLE_DEVICES}={machine.environ.get(VISIBLE_DEVICES)} hides every GPU."
    return f"{task} on the CPU: this machine has no NVIDIA GPU."


def explain_insufficient(
    request: PlanRequest, machine: Machine, visible: Sequence[Card], asked: Sequence[PhysicalId]
) -> str:
    """Why the cards asked for cannot be had, and what can."""
    wanted = f"asked for {' and '.join(f'GPU {id}' for id in asked)}" if asked else "two cards are needed"
    present = f"this machine has {_list_ids(visible)}" if visible else "this machine has no GPU"
    if len(visible) < len(machine.cards):
        shown = _list_ids(visible) if visible else "none"
        present = (
            f"{VISIBLE_DEVICES}={machine.environ.get(VISIBLE_DEVICES)} shows {shown} of {_list_ids(machine.cards)}"
        )
    lost = "".join(f" {reason}" for _, reason in machine.scan.lost)
    problem = f" {machine.scan.problem}" if machine.scan.problem else ""
    return (
        f"Insufficient GPUs for Multi-GPU Mode: {wanted}, but {present}.{lost}{problem} "
        f"Give ids from `nvidia-smi -L`, {_suggest_other_ways(request)}"
    )


def _suggest_other_ways(request: PlanRequest) -> str:
    if not request.command:
        return (
            "leave out data.data_gpu, data.model_gpu and memory isolation to train on one device, or rehearse both roles on the CPU with "
            "training.rehearsal or MYXTTS_REHEARSAL=1."
        )
    what = "train" if "train" in PurePath(request.command[1]).stem else "do the same"
    return (
        f"{what} on one device with\n  {suggest_single_command(request.command)}\n"
        "or rehearse both roles on the CPU by adding --rehearsal."
    )


_PAIR_FLAGS = ("--data-gpu", "--model-gpu", "--data-gpu-memory", "--model-gpu-memory", "--mode")
_PAIR_SETTINGS = ("data.data_gpu", "data.model_gpu", "data.enable_memory_isolation", "training.mode")
_UNDO_FILE = ("--data-gpu", "null", "--model-gpu", "null", "--mode", "single", "--no-enable-memory-isolation")


def suggest_single_command(command: Sequence[str]) -> str:
    """The same command without what asks for two devices, whether flags or a file ask for them."""
    kept: list[str] = []
    words = iter(command)
    for word in words:
        if word in _PAIR_FLAGS:
            next(words, None)
        elif word == "--set":
            assignment = next(words, "")
            kept += [] if assignment.startswith(_PAIR_SETTINGS) else [word, assignment]
        elif word != "--enable-memory-isolation" and word.partition("=")[0] not in _PAIR_FLAGS:
            kept.append(word)
    if any(word.partition("=")[0] == "--config" for word in command):
        kept += _UNDO_FILE
    return shlex.join(kept)


def _list_ids(cards: Sequence[Card]) -> str:
    return ", ".join(f"GPU {card.physical_id} ({card.name})" for card in cards)
