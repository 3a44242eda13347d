"""The trainer's side of preparers, which are actors of a Ray cluster: a source of the batches that they make.

A batch is a pure function of its position, so any preparer can make it, and more than one may: the first answer counts. What was asked
of one that died is asked of another, and so is what one owes that has not answered for too long, as behind a cable that was
pulled: whether it is dead need not be known. So every position is handed on once and in order, whoever comes and goes. Ray's own
retries are not used: they wait for ever where no machine has room.
"""

from __future__ import annotations

import logging
import os
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING, Any

from myxtts.cluster.preparer import Failed, Made, PreparerActor
from myxtts.cluster.ray_setup import LOCAL, HeadWatch, join_cluster
from myxtts.config import XTTSConfig
from myxtts.data.run_data import RunData
from myxtts.devices.machine import read_machine, select_visible
from myxtts.devices.plan import DevicePlan
from myxtts.errors import ProducerFailedError
from myxtts.pipeline.producer_client import ExitCause, FilledSlot, ProducerEvent, ProducerExit, Recovery
from myxtts.pipeline.recipe import BatchRecipe, Kit, pack_kit
from myxtts.pipeline.threads import SLOTS, EndOfStream, HandoffFacts, Stopped, TimeLimits, WaitMeter

if TYPE_CHECKING:
    from myxtts.pipeline.batches import OpenRemote

_log = logging.getLogger(__name__)

LATE_S = 3.0
"""Without an answer, and several times what the slowest batch took: then what a preparer owes is asked of others."""
_LATE_BATCHES = 3
_LISTEN_S = 1.0
"""At a time: a batch that comes from another machine must get through in it."""
_CLOSE_S = 5.0
_ROOM_WARNING_S = 30.0
_LONGEST_REASON = 400
_NODE_WORDS = ("node has died", "node was terminated")
"""By which Ray tells the death of a machine from that of a process, which a batch may be to blame for."""


@dataclass(eq=False)
class _Handle:
    """One preparer as the trainer knows it."""

    number: int
    actor: Any
    meter: WaitMeter
    begun_s: float = field(default_factory=time.perf_counter)
    host: str | None = None
    """None until a machine has room for it."""
    is_ready: bool = False
    is_late: bool = False
    heard_s: float = 0.0
    """When it last answered, or was asked while it had nothing to do."""
    refs: dict[Any, int | None] = field(default_factory=dict)
    """What it was asked and has not answered: a number to make, or None for something else."""
    made: set[int] = field(default_factory=set)
    """What waits to be taken."""

    @property
    def owed(self) -> set[int]:
        return {number for number in self.refs.values() if number is not None}

    def __str__(self) -> str:
        return f"Preparer {self.number}" + ("" if self.host is None else f" on {self.host}")


class PreparerPool:
    """Batches, or whatever else, that preparers make by number: `PreparedBatches` for a process that has joined a cluster.

    Args:
        ray: the module.
        kit: what preparers are sent.
        jobs: the numbers to make, each larger than the one before it.
        count: preparers to keep; they begin to work as soon as machines have room for them, and may come and go.
        uses_gpu: whether each is to have a GPU of its own.
        rows: clips that are prepared together, as long as memory suffices.
        room: results that one may owe or have ready.
        follows: whether a number is best made by who makes the one before it.
    """

    def __init__(
        self,
        ray: Any,
        kit: Kit,
        jobs: Sequence[int],
        count: int,
        *,
        uses_gpu: bool,
        limits: TimeLimits,
        rows: int | None = None,
        room: int = SLOTS,
        follows: Callable[[int], bool] = lambda number: False,
    ):
        self._ray, self._actor, self._kit = ray, ray.remote(PreparerActor), ray.put(kit)
        self._jobs, self._handed_on, self._asked = jobs, 0, 0
        """Of the jobs, how many were handed on, and how many asked for."""
        self._lost: set[int] = set()
        """What was asked for and is to be asked for again."""
        self._count, self._room, self._follows, self._limits = count, room, follows, limits
        self._needs = {"num_cpus": 1, "num_gpus": int(uses_gpu)}
        self._handles: list[_Handle] = []
        self._started = 0
        self._owner: _Handle | None = None
        """Who was asked last."""
        self._made: dict[int, tuple[Made, _Handle]] = {}
        self._taken: deque[FilledSlot] = deque()
        self._recovery, self._replaced = Recovery(rows), list[int]()
        self._slowest_s = 0.0
        self._events: list[ProducerEvent] = []
        self._failure: ProducerFailedError | None = None
        self._lock = threading.Lock()
        self._is_stopped = False
        self._meter = WaitMeter("preparers", time.perf_counter)
        self._head = HeadWatch(ray.get_runtime_context().gcs_address)
        self._keep_count()

    @property
    def events(self) -> list[ProducerEvent]:
        return list(self._events)

    def take(self) -> FilledSlot:
        with self._lock, self._meter.waiting("taker"):
            try:
                return self._take()
            except ProducerFailedError as error:
                self._failure = error
                raise

    def release(self) -> None:
        with self._lock:
            self._taken.popleft()

    def stop(self) -> None:
        self._is_stopped = True

    def read_facts(self) -> HandoffFacts:
        return self._meter.read()

    def list_preparers(self) -> tuple[HandoffFacts, ...]:
        return tuple(replace(each.meter.read(), name=str(each)) for each in list(self._handles) if each.is_ready)

    def close(self) -> None:
        """Ends the preparers; those that can be asked end by themselves."""
        self.stop()
        with self._lock:
            handles, self._handles = self._handles, []
            leaving = [each.actor.close.remote() for each in handles if each.is_ready and not each.is_late]
            if leaving:
                self._ray.wait(leaving, num_returns=len(leaving), timeout=_CLOSE_S)
            for each in handles:
                self._ray.kill(each.actor)
            self._made.clear()
            self._taken.clear()
            self._kit = None

    def _take(self) -> FilledSlot:
        began_s = time.perf_counter()
        self._head.look()
        for each in self._handles:
            # The silence of a time in which nobody listened is not theirs.
            each.heard_s = each.heard_s if each.is_late else began_s
        while True:
            if self._is_stopped:
                raise Stopped
            if self._failure is not None:
                raise self._failure
            if self._handed_on == len(self._jobs):
                raise EndOfStream
            if self._jobs[self._handed_on] in self._made:
                return self._hand_on(self._jobs[self._handed_on], time.perf_counter() - began_s)
            self._head.look()
            self._keep_count()
            self._ask()
            self._listen()
            self._look_after_late()

    def _hand_on(self, number: int, waited_s: float) -> FilledSlot:
        made, handle = self._made.pop(number)
        handle.made.discard(number)
        handle.meter.note_taken(waited_s)
        self._meter.note_taken()
        self._recovery.note_progress(number)
        self._handed_on += 1
        self._taken.append(FilledSlot(number, dict(made.arrays)))
        # Now rather than at the next call: it shall have something to do while this one is trained on.
        self._ask()
        return self._taken[-1]

    def _keep_count(self) -> None:
        """Starts as many preparers as are missing. They need not find room now."""
        while len(self._handles) < self._count:
            self._started += 1
            actor = self._actor.options(
                **self._needs,
                max_concurrency=SLOTS,
                max_restarts=0,
                max_task_retries=0,
                scheduling_strategy="SPREAD",
                # Ray would give NumPy one thread.
                runtime_env={"env_vars": {"OMP_NUM_THREADS": os.environ.get("OMP_NUM_THREADS", "")}},
            ).remote()
            handle = _Handle(self._started, actor, WaitMeter("preparer", time.perf_counter))
            handle.refs[actor.find_host.remote()] = None
            self._handles.append(handle)
            self._note("started", None, str(handle), logging.DEBUG)

    def _ask(self) -> None:
        """Asks preparers for what comes next, what was lost first."""
        while self._lost or self._asked < len(self._jobs):
            number = min(self._lost) if self._lost else self._jobs[self._asked]
            handle = self._choose(number)
            if handle is None:
                return
            if self._lost:
                self._lost.discard(number)
            else:
                self._asked += 1
            if not handle.owed:
                handle.heard_s = time.perf_counter()
            handle.refs[handle.actor.prepare.remote(number, tuple(self._replaced))] = number
            self._owner = handle

    def _choose(self, number: int) -> _Handle | None:
        """Who is asked for a number; None where nobody has room for it."""
        able = [each for each in self._handles if each.is_ready and not each.is_late and number not in each.owed]
        if self._owner in able and self._follows(number):
            able = [self._owner]
        # One that was lost needs no room: it is waited for, and all others may be full of later ones.
        if number not in self._lost:
            able = [each for each in able if len(each.owed | each.made) < self._room]
        return min(able, key=lambda each: len(each.owed | each.made), default=None)

    def _listen(self) -> None:
        """Hears one answer, or none within a moment."""
        asked = [
            (-1 if number is None else number, ref, each) for each in self._handles for ref, number in each.refs.items()
        ]
        # By number: of one that died, what it made before is heard first, so that what it was at is known.
        by_ref = {ref: each for _, ref, each in sorted(asked, key=lambda entry: entry[0])}
        ready, _ = self._ray.wait(list(by_ref), timeout=_LISTEN_S)
        for ref in ready:
            handle = by_ref[ref]
            try:
                answer = self._ray.get(ref)
            except self._ray.exceptions.RayError as error:
                reason = " ".join(str(error).split())[:_LONGEST_REASON]
                # A machine's death is no batch's fault.
                at = None if any(words in reason for words in _NODE_WORDS) else min(handle.owed, default=-1)
                self._end(handle, ExitCause.SIGNAL, reason, at)
            else:
                self._hear(handle, handle.refs.pop(ref), answer)

    def _hear(self, handle: _Handle, number: int | None, answer: Any) -> None:
        handle.heard_s, handle.is_late = time.perf_counter(), False
        match answer:
            case str() if handle.host is None:
                handle.host = answer
                handle.refs[handle.actor.begin.remote(self._kit, self._recovery.preparation_batch)] = None
            case str():
                handle.is_ready = True
                self._note("ready", None, f"{handle} is ready ({answer}).", logging.INFO)
            case Made() if number is not None and self._is_wanted(number):
                self._slowest_s = max(self._slowest_s, answer.busy_s)
                self._made[number] = (answer, handle)
                handle.made.add(number)
                self._lost.discard(number)
                for meter in (self._meter, handle.meter):
                    meter.note_ready(handle.heard_s, answer.waited_s)
            case Failed(ran_out=True):
                self._end(handle, ExitCause.OUT_OF_MEMORY, answer.summary, -1 if number is None else number)
            case Failed():
                where = "while it was loading" if number is None else f"at batch {number}"
                raise ProducerFailedError(f"{handle} failed {where}: {answer.summary}\nThere:\n{answer.trace}")

    def _end(self, handle: _Handle, cause: ExitCause, reason: str, at: int | None) -> None:
        """Goes on without a preparer, and decides what its end means for what it was at.

        Args:
            at: what it was making, -1 for nothing; None where no blame is to be laid on that.
        """
        self._ray.kill(handle.actor)
        self._handles.remove(handle)
        position = at if at is not None and at >= 0 else None
        self._lose(handle.owed | ({position} if position is not None else set()))
        self._note("died", position, f"{handle} died: {reason}. What it owed is asked of others.")
        if at is None:
            return
        before = self._recovery.preparation_batch
        replaced = self._recovery.decide(ProducerExit(cause, reason, "prepare", position, None, ""))
        rows = self._recovery.preparation_batch
        if rows != before:
            self._note("shrunk", position, f"Preparing {rows} rows at a time instead of {before}.")
        if replaced is not None:
            self._replaced.append(replaced)
            self._note("replaced", replaced, f"Two preparers died at batch {replaced}: its clips are replaced.")

    def _lose(self, numbers: set[int]) -> None:
        self._lost |= set(filter(self._is_wanted, numbers))

    def _is_wanted(self, number: int) -> bool:
        is_due = self._handed_on < len(self._jobs) and number >= self._jobs[self._handed_on]
        return is_due and number not in self._made

    def _look_after_late(self) -> None:
        """Asks others for what one owes that does not answer, and ends one that hangs. Raises where none comes at all."""
        now = time.perf_counter()
        late_s = max(LATE_S, _LATE_BATCHES * self._slowest_s)
        able = [each for each in self._handles if each.is_ready and not each.is_late]
        for each in list(self._handles):
            silent_s = now - each.heard_s if each.owed else 0.0
            if silent_s > self._limits.steady_s:
                self._end(each, ExitCause.HANG, f"said nothing for {silent_s:.0f} s", min(each.owed))
            elif silent_s > late_s and not each.is_late and able != [each]:
                each.is_late = True
                self._lose(each.owed)
                self._note("late", None, f"{each} has not answered for {silent_s:.0f} s: others are asked too.")
        waiting = [each for each in self._handles if not each.is_ready]
        oldest_s = now - min((each.begun_s for each in waiting), default=now)
        needs = "GPU" if self._needs["num_gpus"] else "processor"
        if not able and oldest_s > self._limits.longest_s:
            raise ProducerFailedError(
                f"No preparer was ready within {oldest_s:.0f} s. Each needs a free {needs}: `ray status` tells whether the cluster has one, "
                "and the logs of Ray on its machine why it does not begin."
            )
        if not able and oldest_s > _ROOM_WARNING_S and all(event.kind != "slow" for event in self._events):
            self._note("slow", None, f"No preparer is ready yet. Each needs a free {needs} (`ray status`).")

    def _note(self, kind: str, position: int | None, text: str, level: int = logging.WARNING) -> None:
        self._events.append(ProducerEvent(time.time(), kind, position, text))
        _log.log(level, "%s", text)


@contextmanager
def open_preparers(config: XTTSConfig, plan: DevicePlan) -> Iterator[OpenRemote | None]:
    """What opens the batches of preparers, for as long as the block lasts; None where the run has none.

    Args:
        plan: of this process. Preparers that it starts on this machine do not see the cards that train.
    """
    if not config.training.preparers:
        yield None
        return
    with join_for_preparers(config, plan) as ray:
        yield partial(open_pool, ray, config.training.preparers)


@contextmanager
def join_for_preparers(config: XTTSConfig, plan: DevicePlan | None = None) -> Iterator[Any]:
    """The module `ray`, while this process is part of the cluster that a configuration names."""
    address, count, gpus = config.training.cluster, config.training.preparers, None
    assert address is not None, "a rule of the configuration"
    if plan is not None and plan.model.is_gpu:
        machine, training = read_machine(), {role.physical_id for role in plan.trainers}
        cards = select_visible(machine.cards, machine.environ)
        gpus = ",".join(card.uuid for card in cards if card.physical_id not in training)
    with join_cluster(address, cpus=max(os.cpu_count() or 1, count), visible_gpus=gpus) as ray:
        where = "this machine alone" if address == LOCAL else address
        _log.info("Preparers: up to %d, on the Ray cluster of %s.", count, where)
        yield ray


def open_pool(ray: Any, count: int, recipe: BatchRecipe, data: RunData) -> PreparerPool:
    """The batches of a run, made by so many preparers."""
    from myxtts.devices.runtime import read_execution

    order = recipe.make_order(data)
    return PreparerPool(
        ray,
        pack_kit(recipe, data, read_execution(), "myxtts.pipeline.factory:open_task"),
        range(order.first_number, order.end_number),
        count,
        uses_gpu=choose_gpu(ray, recipe.config),
        limits=TimeLimits.from_setting(recipe.config.training.watchdog_seconds),
        rows=max(bucket.rows for bucket in recipe.list_buckets(data)),
        room=max(SLOTS, 2 * data.sampler.accumulation),
        # Who makes the beginning of a step has read the clips of all of it.
        follows=lambda number: order.find_place(number).position.micro_batch > 0,
    )


def choose_gpu(ray: Any, config: XTTSConfig) -> bool:
    """Whether preparers are to have a GPU each: where the cluster has any, in no rehearsal."""
    return not config.training.rehearsal and ray.cluster_resources().get("GPU", 0) > 0
