"""From what was asked and what the machine has to a `DevicePlan`. Pure, no TensorFlow."""

from __future__ import annotations

from collections.abc import Sequence

from myxtts.devices import memory
from myxtts.devices.environment import ALLOCATOR, VISIBLE_DEVICES, select_visible
from myxtts.devices.machine import Machine
from myxtts.devices.memory import Growth, Limit, Memory
from myxtts.devices.nvml import Card, PhysicalId
from myxtts.devices.plan import DevicePlan, Mode, PlanRequest, Process, ProcessPlan, Role, RolePlan, VisibleCard
from myxtts.devices.plan_words import explain_insufficient, explain_no_gpu, note_unused_cards, note_unused_limits
from myxtts.errors import DevicePlanError

HOST_CPUS = 1
"""Logical CPU 0 stays the host's in every rehearsal, so that work that falls off its device is seen to land there."""


def plan_devices(request: PlanRequest, machine: Machine, in_process: bool = False) -> DevicePlan:
    """The plan for this request on this machine. Raises `DevicePlanError` when it cannot be had.

    Args:
        in_process: isolate two cards inside the calling process instead of starting a producer process.
    """
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
    data, model = _choose_cards(request, machine, visible)
    if mode is Mode.DUAL:
        return _plan_one_process(mode, visible, (data, model), (Growth(), Growth()), note_unused_limits(request))
    limits, notes = _choose_limits(request, mode, machine, data, model)
    if in_process:
        return _plan_one_process(mode, visible, (data, model), limits, notes)
    return _plan_two_processes(mode, visible, (data, model), limits, notes)


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
    notes = list(note_unused_limits(request))
    if request.model_gpu is not None and request.model_gpu not in {card.physical_id for card in visible}:
        raise DevicePlanError(explain_insufficient(request, machine, visible, [PhysicalId(request.model_gpu)]))
    if not visible:
        notes.append(explain_no_gpu(request.task, machine))
        data, model = (RolePlan(role, Process.TRAINER, "/CPU:0", None, None) for role in Role)
        return DevicePlan(Mode.SINGLE, False, data, model, (ProcessPlan(Process.TRAINER, ()),), tuple(notes))
    # Ids are given together with this mode only where it was chosen by measuring: then the card that was to train does.
    card = next((card for card in visible if card.physical_id == request.model_gpu), visible[0])
    others = [other for other in visible if other is not card]
    if others:
        notes.append(note_unused_cards(request, card, others))
    data, model = (RolePlan(role, Process.TRAINER, "/GPU:0", card.physical_id, Growth()) for role in Role)
    visible_card = VisibleCard(Role.MODEL, card.physical_id, visible.index(card), Growth())
    trainer = ProcessPlan(Process.TRAINER, (visible_card,))
    return DevicePlan(Mode.SINGLE, False, data, model, (trainer,), tuple(notes))


def _plan_one_process(
    mode: Mode, visible: Sequence[Card], pair: tuple[Card, Card], memories: Sequence[Memory], notes: Sequence[str]
) -> DevicePlan:
    cards = [
        VisibleCard(role, card.physical_id, visible.index(card), memory)
        for role, card, memory in zip(Role, pair, memories, strict=True)
    ]
    # TensorFlow numbers visible cards by their own order, whatever order they are asked for in: --data-gpu 3
    # --model-gpu 1 makes card 1 /GPU:0. Assuming data = /GPU:0 would swap the roles.
    ordered = sorted(cards, key=lambda card: card.tf_index)
    data, model = (
        RolePlan(role, Process.TRAINER, f"/GPU:{ordered.index(card)}", card.physical_id, card.memory)
        for role, card in zip(Role, cards, strict=True)
    )
    return DevicePlan(mode, False, data, model, (ProcessPlan(Process.TRAINER, tuple(ordered)),), tuple(notes))


def _plan_two_processes(
    mode: Mode, visible: Sequence[Card], pair: tuple[Card, Card], limits: tuple[Limit, Limit], notes: Sequence[str]
) -> DevicePlan:
    data, model = pair
    # The producer starts with only its card in sight, by UUID: a number could be counted anew inside a container.
    producer = ProcessPlan(
        Process.PRODUCER,
        (VisibleCard(Role.DATA, data.physical_id, 0, limits[0]),),
        environ=((VISIBLE_DEVICES, data.uuid),),
    )
    model_card = VisibleCard(Role.MODEL, model.physical_id, visible.index(model), limits[1])
    trainer = ProcessPlan(Process.TRAINER, (model_card,))
    return DevicePlan(
        mode=mode,
        rehearsal=False,
        data=RolePlan(Role.DATA, Process.PRODUCER, "/GPU:0", data.physical_id, limits[0]),
        model=RolePlan(Role.MODEL, Process.TRAINER, "/GPU:0", model.physical_id, limits[1]),
        processes=(trainer, producer),
        notes=tuple(notes),
    )


def _plan_rehearsal(request: PlanRequest, mode: Mode, machine: Machine, in_process: bool) -> DevicePlan:
    ids = (
        PhysicalId(0 if request.data_gpu is None else request.data_gpu),
        PhysicalId(1 if request.model_gpu is None else request.model_gpu),
    )
    if mode is Mode.SINGLE:
        data, model = (RolePlan(role, Process.TRAINER, f"/CPU:{HOST_CPUS}", None, None) for role in Role)
        trainer = ProcessPlan(Process.TRAINER, (), logical_cpus=HOST_CPUS + 1)
        return DevicePlan(mode, True, data, model, (trainer,), tuple(note_unused_limits(request)))
    if mode is Mode.DUAL:
        return _rehearse_one_process(mode, ids, (None, None), note_unused_limits(request))
    if mode is Mode.SPLIT and None in (request.data_limit_mib, request.model_limit_mib):
        raise DevicePlanError(
            f"Both roles are to be on GPU {ids[0]}. Give two different ids, or both "
            f"{' and '.join(limit.flag for limit in request.limits)} to rehearse a split card."
        )
    limits = memory.choose_rehearsal_limits(*request.limits, machine.host_free_mib)
    if in_process:
        note = "Rehearsal inside one process: TensorFlow cannot limit the memory of logical CPU devices, so no limit is enforced."
        return _rehearse_one_process(mode, ids, limits, [note])
    device = f"/CPU:{HOST_CPUS}"
    return DevicePlan(
        mode=mode,
        rehearsal=True,
        data=RolePlan(Role.DATA, Process.PRODUCER, device, ids[0], limits[0]),
        model=RolePlan(Role.MODEL, Process.TRAINER, device, ids[1], limits[1]),
        processes=tuple(ProcessPlan(process, (), logical_cpus=HOST_CPUS + 1) for process in Process),
    )


def _rehearse_one_process(
    mode: Mode, ids: tuple[PhysicalId, PhysicalId], memories: Sequence[Memory | None], notes: Sequence[str]
) -> DevicePlan:
    # Ranked like real cards, so that any order of ids takes the way it would take on GPUs.
    ranks = sorted(ids)
    data, model = (
        RolePlan(role, Process.TRAINER, f"/CPU:{HOST_CPUS + ranks.index(id)}", id, memory)
        for role, id, memory in zip(Role, ids, memories, strict=True)
    )
    trainer = ProcessPlan(Process.TRAINER, (), logical_cpus=HOST_CPUS + len(ids))
    return DevicePlan(mode, True, data, model, (trainer,), tuple(notes))


def _choose_cards(request: PlanRequest, machine: Machine, visible: Sequence[Card]) -> tuple[Card, Card]:
    """The cards of both roles: those asked for, else the one with most free memory trains and the next prepares."""
    by_id = {card.physical_id: card for card in visible}
    if request.data_gpu is not None and request.model_gpu is not None:
        asked = [PhysicalId(request.data_gpu), PhysicalId(request.model_gpu)]
        if all(id in by_id for id in asked):
            return by_id[asked[0]], by_id[asked[1]]
        raise DevicePlanError(explain_insufficient(request, machine, visible, asked))
    if len(visible) < 2:
        raise DevicePlanError(explain_insufficient(request, machine, visible, []))
    ranked = sorted(visible, key=lambda card: (-(card.free_mib or 0), card.physical_id))
    return ranked[1], ranked[0]


def _choose_limits(
    request: PlanRequest, mode: Mode, machine: Machine, data: Card, model: Card
) -> tuple[tuple[Limit, Limit], list[str]]:
    if machine.environ.get(ALLOCATOR) == "cuda_malloc_async":
        raise DevicePlanError(
            f"{ALLOCATOR}=cuda_malloc_async ignores memory limits, which the {mode} mode stands on. "
            f"Unset {ALLOCATOR}, or leave isolation out."
        )
    data_request, model_request = request.limits
    if mode is Mode.SPLIT:
        return memory.check_split_card(data_request, model_request, data), []
    data_limit, data_note = memory.choose_own_card_limit(data_request, data)
    model_limit, model_note = memory.choose_own_card_limit(model_request, model)
    return (data_limit, model_limit), [note for note in (data_note, model_note) if note]
