"""From what was asked and what the machine has to a `DevicePlan`. Pure, no TensorFlow."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from dataclasses import replace
from pathlib import PurePath

from myxtts.config import XTTSConfig
from myxtts.devices import plan
from myxtts.devices.machine import ALLOCATOR, VISIBLE_DEVICES, Machine, explain_unserved, select_visible
from myxtts.devices.nvml import Card, PhysicalId
from myxtts.devices.plan import (
    DevicePlan,
    DeviceUse,
    Growth,
    Limit,
    Memory,
    Mode,
    PlanRequest,
    Process,
    ProcessPlan,
    Role,
    RolePlan,
    VisibleCard,
)
from myxtts.errors import DevicePlanError


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
    if request.task is not DeviceUse.TRAIN:
        advice = f"For another one set {VISIBLE_DEVICES}={other}."
    elif request.command:
        advice = f"For two cards add --data-gpu {other} --model-gpu {card.physical_id}."
    else:
        advice = f"For two cards give data.data_gpu {other} and data.model_gpu {card.physical_id}."
    return f"{request.task} on GPU {card.physical_id} alone; other cards stay unused ({_list_ids(others)}). {advice}"


def explain_no_gpu(task: DeviceUse, machine: Machine) -> str:
    """Why the CPU does the job."""
    for problem in (machine.scan.problem, *(reason for _, reason in machine.scan.lost)):
        if problem:
            return f"{task} on the CPU. {problem}"
    if machine.cards:
        return f"{task} on the CPU: {VISIBLE_DEVICES}={machine.environ.get(VISIBLE_DEVICES)} hides every GPU."
    return f"{task} on the CPU: this machine has no NVIDIA GPU."


def explain_insufficient(
    request: PlanRequest, machine: Machine, visible: Sequence[Card], asked: Sequence[int]
) -> DevicePlanError:
    """Why the cards asked for cannot be had, and what can."""
    beside = ", and one more that prepares" if request.other_gpus and choose_mode(request) is not Mode.SINGLE else ""
    wanted = f"asked for {' and '.join(f'GPU {id}' for id in asked)}" if asked else "two cards are needed"
    wanted += beside if request.data_gpu is None else ""
    present = f"this machine has {_list_ids(visible)}" if visible else "this machine has no GPU"
    if len(visible) < len(machine.cards):
        shown = _list_ids(visible) if visible else "none"
        present = (
            f"{VISIBLE_DEVICES}={machine.environ.get(VISIBLE_DEVICES)} shows {shown} of {_list_ids(machine.cards)}"
        )
    reasons = [*(reason for _, reason in machine.scan.lost), *filter(None, [machine.scan.problem])]
    return DevicePlanError(
        f"Insufficient GPUs for Multi-GPU Mode: {' '.join([f'{wanted}, but {present}.', *reasons])} "
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


_PAIR_FLAGS = ("--data-gpu", "--model-gpu", "--model-gpus", "--data-gpu-memory", "--model-gpu-memory", "--mode")
_PAIR_SETTINGS = (
    *("data.data_gpu", "data.model_gpu", "data.enable_memory_isolation", "training.mode", "training.model_gpus"),
)
_UNDO_FILE = (
    *("--data-gpu", "null", "--model-gpu", "null", "--model-gpus", "null", "--mode", "single"),
    "--no-enable-memory-isolation",
)


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
    has_file = any(word.partition("=")[0] == "--config" for word in command)
    return shlex.join([*kept, *_UNDO_FILE] if has_file else kept)


def _list_ids(cards: Sequence[Card]) -> str:
    return ", ".join(f"GPU {card.physical_id} ({card.name})" for card in cards)


HOST_CPUS = 1
"""Logical CPU 0 stays the host's in every rehearsal, so that work that falls off its device is seen to land there."""


def plan_devices(request: PlanRequest, machine: Machine, in_process: bool = False) -> DevicePlan:
    """The plan for this request on this machine. Raises `DevicePlanError` when it cannot be had.

    With `in_process` two cards are isolated inside the calling process, without a producer process.
    """
    made = _plan_roles(request, machine, in_process)
    ids = {role.physical_id for role in made.own_roles if role.is_gpu}
    training = {role.physical_id for role in made.trainers if role.is_gpu}
    models = [card for card in machine.cards if card.physical_id in training]
    serves_xla = bool(models) and (machine.built is None or all(map(machine.built.can_compile_for, models)))
    unserved = explain_unserved(machine, [card for card in machine.cards if card.physical_id in ids]) if ids else []
    if models and request.wants_xla and not serves_xla:
        raise DevicePlanError(
            f"XLA was asked for (data.enable_xla). {unserved[0]} Give --no-enable-xla, or leave out what asked for it."
        )
    return replace(made, notes=(*made.notes, *map(str, unserved)), serves_xla=serves_xla)


def _plan_roles(request: PlanRequest, machine: Machine, in_process: bool) -> DevicePlan:
    if request.is_remote:
        alone = _plan_roles(replace(request, is_remote=False, mode="single"), machine, in_process)
        elsewhere = RolePlan(Role.DATA, Process.PRODUCER, "/CPU:0", None, None)
        return replace(alone, mode=Mode.REMOTE, data=elsewhere)
    mode = choose_mode(request)
    if in_process and mode is not Mode.ISOLATED:
        raise DevicePlanError(
            f"Isolation inside one process needs two cards, but got GPU {request.data_gpu} for both roles. "
            "Give two ids from `nvidia-smi -L`; one card is split only between processes."
        )
    if request.rehearsal:
        return _plan_rehearsal(request, mode, machine, in_process)
    visible = select_visible(machine.cards, machine.environ)
    if mode is Mode.SINGLE:
        return _plan_single(request, machine, visible)
    cards = _choose_cards(request, machine, visible)
    if mode is Mode.DUAL:
        return _plan_cards(mode, visible, cards, [Growth()] * len(cards), note_unused_limits(request))
    limits, notes = _choose_limits(request, mode, machine, cards)
    return _plan_cards(mode, visible, cards, limits, notes, has_producer=not in_process)


def plan_preparing_device(config: XTTSConfig, machine: Machine, command: Sequence[str] = ()) -> DevicePlan:
    """The one device that prepares what a run would prepare: `--data-gpu`, or the first GPU there is, or the CPU."""
    alone = PlanRequest(
        mode="single",
        model_gpu=config.data.data_gpu,
        rehearsal=config.training.rehearsal,
        command=tuple(command),
        task=DeviceUse.PREPARE,
    )
    return plan_devices(alone, machine)


def choose_mode(request: PlanRequest) -> Mode:
    """The mode the request stands for, before looking at the machine."""
    if request.mode == "auto":
        raise DevicePlanError(
            "--mode auto is chosen by measuring before a run is trained; this needs a mode. "
            "Give --mode single, dual or isolated, or leave --mode out."
        )
    if request.mode == "single":
        return Mode.SINGLE
    if request.data_gpu is not None and request.data_gpu == request.model_gpu:
        return Mode.SPLIT
    if request.isolation or request.mode == "isolated":
        return Mode.ISOLATED
    if request.data_gpu is not None or request.mode == "dual":
        return Mode.DUAL
    return Mode.SINGLE


def _plan_single(request: PlanRequest, machine: Machine, visible: Sequence[Card]) -> DevicePlan:
    notes, by_id = note_unused_limits(request), {card.physical_id: card for card in visible}
    asked = [] if request.model_gpu is None else [PhysicalId(id) for id in (request.model_gpu, *request.other_gpus)]
    if any(id not in by_id for id in asked):
        raise explain_insufficient(request, machine, visible, asked)
    if not visible:
        return _plan_cpu([*notes, explain_no_gpu(request.task, machine)])
    cards = [by_id[id] for id in asked] or [visible[0]]
    unused = [card for card in visible if card not in cards]
    if unused and len(cards) == 1:
        notes.append(note_unused_cards(request, cards[0], unused))
    return _plan_cards(Mode.SINGLE, visible, (cards[0], *cards), [Growth()] * (1 + len(cards)), notes)


def _plan_cpu(notes: Sequence[str], *, rehearsal: bool = False) -> DevicePlan:
    place = HOST_CPUS if rehearsal else 0
    data, model = (RolePlan(role, Process.TRAINER, f"/CPU:{place}", None, None) for role in Role)
    trainer = ProcessPlan(Process.TRAINER, (), logical_cpus=place + 1)
    return DevicePlan(Mode.SINGLE, rehearsal, data, model, (trainer,), tuple(notes))


def _plan_cards(
    mode: Mode,
    visible: Sequence[Card],
    cards: Sequence[Card],
    memories: Sequence[Memory | None],
    notes: Sequence[str],
    *,
    has_producer: bool = False,
    rehearsal: bool = False,
) -> DevicePlan:
    """The first of the cards prepares, all others train."""
    roles = [Role.DATA, *[Role.MODEL] * (len(cards) - 1)]
    owners = [Process.PRODUCER if has_producer and role is Role.DATA else Process.TRAINER for role in roles]
    kind, place = ("CPU", HOST_CPUS) if rehearsal else ("GPU", 0)
    # TensorFlow numbers visible cards by their own order, whatever order they are asked for in: --data-gpu 3
    # --model-gpu 1 makes card 1 /GPU:0. Assuming data = /GPU:0 would swap the roles.
    seen = {
        process: sorted(
            {card for card, owner in zip(cards, owners, strict=True) if owner is process}, key=visible.index
        )
        for process in Process
        if process in owners
    }
    data, model, *others = (
        RolePlan(role, owner, f"/{kind}:{place + seen[owner].index(card)}", card.physical_id, memory)
        for role, owner, card, memory in zip(roles, owners, cards, memories, strict=True)
    )

    def plan_process(process: Process) -> ProcessPlan:
        if rehearsal:
            return ProcessPlan(process, (), logical_cpus=HOST_CPUS + len(seen[process]))
        # The producer starts with only its card in sight, by UUID: a number could be counted anew inside a container.
        is_alone = process is Process.PRODUCER
        own = {role.physical_id: role for role in (data, model, *others) if role.process is process}
        shown = tuple(
            VisibleCard(
                own[card.physical_id].role,
                card.physical_id,
                0 if is_alone else visible.index(card),
                own[card.physical_id].memory or Growth(),
            )
            for card in seen[process]
        )
        return ProcessPlan(process, shown, environ=((VISIBLE_DEVICES, cards[0].uuid),) if is_alone else ())

    processes = tuple(map(plan_process, seen))
    return DevicePlan(mode, rehearsal, data, model, processes, tuple(notes), others=tuple(others))


def _plan_rehearsal(request: PlanRequest, mode: Mode, machine: Machine, in_process: bool) -> DevicePlan:
    models = [1 if request.model_gpu is None else request.model_gpu, *request.other_gpus]
    free = next(id for id in range(1 + len(models)) if id not in models)
    ids = [free if request.data_gpu is None else request.data_gpu, *models]
    # Ranked like real cards, so that any order of ids takes the way it would take on GPUs.
    visible = [Card(PhysicalId(id), "rehearsed", "", "", None, None) for id in sorted(set(ids))]
    data, *training = (next(card for card in visible if card.physical_id == id) for id in ids)
    notes = note_unused_limits(request)
    if mode is Mode.SINGLE and not request.other_gpus:
        # Ids only tell several devices apart, and nothing would be told by that of one.
        return _plan_cpu(notes, rehearsal=True)
    if mode in (Mode.SINGLE, Mode.DUAL):
        cards = (training[0] if mode is Mode.SINGLE else data, *training)
        return _plan_cards(mode, visible, cards, [None] * len(cards), notes, rehearsal=True)
    if mode is Mode.SPLIT and None in (request.data_limit_mib, request.model_limit_mib):
        raise DevicePlanError(
            f"Both roles are to be on GPU {ids[0]}. Give two different ids, or both "
            f"{' and '.join(limit.flag for limit in request.limits)} to rehearse a split card."
        )
    data_limit, model_limit = plan.choose_rehearsal_limits(*request.limits, machine.host_free_mib)
    limits = [data_limit, *[model_limit] * len(training)]
    unlimited = "Rehearsal inside one process: TensorFlow cannot limit the memory of logical CPU devices, so no limit is enforced."
    notes = [unlimited] if in_process else []
    return _plan_cards(mode, visible, (data, *training), limits, notes, rehearsal=True, has_producer=not in_process)


def _choose_cards(request: PlanRequest, machine: Machine, visible: Sequence[Card]) -> tuple[Card, ...]:
    """The cards that prepare and train: those asked for, else the one with most free memory trains and the next prepares."""
    ranked = sorted(visible, key=lambda card: (-(card.free_mib or 0), card.physical_id))
    asked = [id for id in (request.data_gpu, request.model_gpu, *request.other_gpus) if id is not None]
    by_id = {card.physical_id: card for card in visible}
    named = [by_id[PhysicalId(id)] for id in asked if id in by_id]
    if request.data_gpu is None:
        free = [card for card in ranked if card not in named]
        named = named or free[:1]
        named[:0] = [card for card in free if card not in named][:1]
    if len(named) < len(asked) + (request.data_gpu is None) + (request.model_gpu is None):
        raise explain_insufficient(request, machine, visible, asked)
    return tuple(named)


def _choose_limits(
    request: PlanRequest, mode: Mode, machine: Machine, cards: Sequence[Card]
) -> tuple[tuple[Limit, ...], list[str]]:
    if machine.environ.get(ALLOCATOR) == "cuda_malloc_async":
        raise DevicePlanError(
            f"{ALLOCATOR}=cuda_malloc_async ignores memory limits, which the {mode} mode stands on. "
            f"Unset {ALLOCATOR}, or leave isolation out."
        )
    data_request, model_request = request.limits
    if mode is Mode.SPLIT:
        return plan.check_split_card(data_request, model_request, cards[0]), []
    requests = [data_request, *[model_request] * (len(cards) - 1)]
    limits, notes = zip(*map(plan.choose_own_card_limit, requests, cards), strict=True)
    return limits, [note for note in notes if note]
