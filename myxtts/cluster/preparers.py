"""The trainer's side of preparers, which are actors of a Ray cluster: a source of the batches that they make.

A batch is a pure function of its position, so any preparer can make it, and more than one may: the first answer counts. What was asked
of one that died is asked of another, and so is what one owes that has not answered for too long, as behind a cable that was
pulled: whether it is dead need not be known. So every position is handed on once and in order, whoever comes and goes. Ray's own
retries are not used: they wait for ever where no machine has room.
"""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from myxtts.cluster.preparer import Failed, Made, PreparerActor
from myxtts.cluster.ray_setup import HeadWatch
from myxtts.errors import ProducerFailedError
from myxtts.pipeline.producer_client import ExitCause, FilledSlot, PreparedBatches, ProducerExit
from myxtts.pipeline.recipe import Kit
from myxtts.pipeline.threads import SLOTS, EndOfStream, HandoffFacts, Stopped, TimeLimits, WaitMeter

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
"""By which Ray tells the death of a machine, which is no batch's fault, from that of a process."""
_BEGIN = -1
"""What is asked first, in the place of a number: to load and warm up."""


@dataclass(eq=False)
class _Handle:
    """One preparer as the trainer knows it."""

    name: str
    actor: Any
    meter: WaitMeter
    heard_s: float = field(default_factory=time.perf_counter)
    """When it last answered, or was asked while it had nothing to do; when it was started, until it is ready."""
    is_ready: bool = False
    is_late: bool = False
    refs: dict[Any, int] = field(default_factory=dict)
    """What it was asked and has not answered: numbers to make, or `_BEGIN`."""
    made: set[int] = field(default_factory=set)
    """What waits to be taken."""

    @property
    def owed(self) -> set[int]:
        return set(self.refs.values()) - {_BEGIN}


class PreparerPool(PreparedBatches):
    """Batches, or whatever else, that preparers make by number, for a process that has joined a cluster.

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
        super().__init__("preparers", rows)
        self._ray, self._head, self._kit = ray, HeadWatch(ray), ray.put(kit)
        self._actor = ray.remote(PreparerActor).options(
            num_cpus=1,
            num_gpus=int(uses_gpu),
            max_concurrency=SLOTS,
            scheduling_strategy="SPREAD",
            # Ray would give NumPy one thread.
            runtime_env={"env_vars": {"OMP_NUM_THREADS": os.environ.get("OMP_NUM_THREADS", "")}},
        )
        self._needs = "GPU" if uses_gpu else "processor"
        self._count, self._room, self._follows, self._limits = count, room, follows, limits
        self._jobs, self._handed_on, self._asked = jobs, 0, 0
        """Of the jobs, how many were handed on, and how many asked for."""
        self._lost: set[int] = set()
        """What was asked for and is to be asked for again."""
        self._made: dict[int, tuple[Made, _Handle]] = {}
        self._handles: list[_Handle] = []
        self._started, self._slowest_s = 0, 0.0
        self._owner: _Handle | None = None
        """Who was asked last."""
        self._keep_count()

    def release(self) -> None:
        """Nothing: Ray keeps a batch for as long as anybody shows it."""

    def list_preparers(self) -> tuple[HandoffFacts, ...]:
        return tuple(replace(each.meter.read(), name=each.name) for each in list(self._handles) if each.is_ready)

    def close(self) -> None:
        """Ends the preparers; those that can be asked end by themselves."""
        self.stop()
        with self._lock:
            leaving = [each.actor.close.remote() for each in self._list_able()]
            handles, self._handles = self._handles, []
            if leaving:
                self._ray.wait(leaving, num_returns=len(leaving), timeout=_CLOSE_S)
            self._head.end(each.actor for each in handles)
            self._made.clear()
            self._kit = None

    def _take(self) -> FilledSlot:
        began_s = time.perf_counter()
        for each in self._list_able():
            # The silence of a time in which nobody listened is not theirs.
            each.heard_s = began_s
        while not self._is_stopped:
            self._head.look()
            if self._handed_on == len(self._jobs):
                raise EndOfStream
            if self._jobs[self._handed_on] in self._made:
                return self._hand_on(self._jobs[self._handed_on], time.perf_counter() - began_s)
            self._keep_count()
            self._ask()
            self._listen()
            self._look_after_late()
        raise Stopped

    def _hand_on(self, number: int, waited_s: float) -> FilledSlot:
        made, handle = self._made.pop(number)
        handle.made.discard(number)
        handle.meter.note_taken(waited_s)
        self._meter.note_taken()
        self._recovery.note_progress(number)
        self._handed_on += 1
        # Now rather than at the next call: it shall have something to do while this one is trained on.
        self._ask()
        return FilledSlot(number, dict(made.arrays))

    def _keep_count(self) -> None:
        """Starts as many preparers as are missing. They need not find room now."""
        while len(self._handles) < self._count:
            self._started += 1
            name, actor = f"Preparer {self._started}", self._actor.remote()
            handle = _Handle(name, actor, WaitMeter(name, time.perf_counter))
            handle.refs[actor.begin.remote(self._kit, self._recovery.preparation_batch)] = _BEGIN
            self._handles.append(handle)
            self._note("started", None, name, logging.DEBUG)

    def _ask(self) -> None:
        """Asks preparers for what comes next, what was lost first."""
        while self._lost or self._asked < len(self._jobs):
            number = min(self._lost) if self._lost else self._jobs[self._asked]
            handle = self._choose(number)
            if handle is None:
                return
            self._asked += not self._lost
            self._lost.discard(number)
            if not handle.owed:
                handle.heard_s = time.perf_counter()
            handle.refs[handle.actor.prepare.remote(number, tuple(self._replaced))] = number
            self._owner = handle

    def _choose(self, number: int) -> _Handle | None:
        """Who is asked for a number; None where nobody has room for it."""
        able = [each for each in self._list_able() if number not in each.owed]
        if self._owner in able and self._follows(number):
            able = [self._owner]
        # One that was lost needs no room: it is waited for, and all others may be full of later ones.
        if number not in self._lost:
            able = [each for each in able if len(each.refs) + len(each.made) < self._room]
        return min(able, key=lambda each: len(each.refs) + len(each.made), default=None)

    def _listen(self) -> None:
        """Hears one answer, or none within a moment."""
        asked = [(number, ref, each) for each in self._handles for ref, number in each.refs.items()]
        # By number: of one that died, what it made before is heard first, so that what it was at is known.
        by_ref = {ref: (each, number) for number, ref, each in sorted(asked, key=lambda entry: entry[0])}
        for ref in self._ray.wait(list(by_ref), timeout=_LISTEN_S)[0]:
            handle, number = by_ref[ref]
            try:
                answer = self._ray.get(ref)
            except self._ray.exceptions.RayError as error:
                reason = " ".join(str(error).split())[:_LONGEST_REASON]
                cause = None if any(words in reason for words in _NODE_WORDS) else ExitCause.SIGNAL
                self._end(handle, cause, reason, min(handle.refs.values()))
            else:
                self._hear(handle, number, answer)
                del handle.refs[ref]

    def _hear(self, handle: _Handle, number: int, answer: Any) -> None:
        handle.heard_s, handle.is_late = time.perf_counter(), False
        match answer:
            case str(host), str(device):
                handle.is_ready, handle.name = True, f"{handle.name} on {host}"
                self._note("ready", None, f"{handle.name} is ready ({device}).", logging.INFO)
            case Made() if self._is_wanted(number):
                self._slowest_s = max(self._slowest_s, answer.busy_s)
                self._made[number] = (answer, handle)
                handle.made.add(number)
                self._lost.discard(number)
                for meter in (self._meter, handle.meter):
                    meter.note_ready(handle.heard_s, answer.waited_s)
            case Failed(ran_out=True):
                self._end(handle, ExitCause.OUT_OF_MEMORY, answer.summary, number)
            case Failed():
                where = "while it was loading" if number == _BEGIN else f"at batch {number}"
                raise ProducerFailedError(f"{handle.name} failed {where}: {answer.summary}\n{answer.trace}")

    def _end(self, handle: _Handle, cause: ExitCause | None, reason: str, at: int) -> None:
        """Goes on without a preparer, and decides what its end means for what it was at; nothing where it has no cause there."""
        self._head.end([handle.actor])
        self._handles.remove(handle)
        self._lost |= set(filter(self._is_wanted, handle.owed))
        position = None if at == _BEGIN or cause is None else at
        self._note("died", position, f"{handle.name} died: {reason}. What it owed is asked of others.")
        if (
            cause is not None
            and (end := self._decide(ProducerExit(cause, reason, "prepare", position, None, ""))) is not None
        ):
            self._note("replaced", end, f"Two preparers died at batch {end}: its clips are replaced.")

    def _list_able(self) -> list[_Handle]:
        return [each for each in self._handles if each.is_ready and not each.is_late]

    def _is_wanted(self, number: int) -> bool:
        return number not in self._made and self._handed_on < len(self._jobs) and number >= self._jobs[self._handed_on]

    def _look_after_late(self) -> None:
        """Asks others for what one owes that does not answer, and ends one that hangs. Raises where none comes at all."""
        now, able = time.perf_counter(), self._list_able()
        for each in list(self._handles):
            silent_s = now - each.heard_s if each.owed else 0.0
            if silent_s > self._limits.steady_s:
                self._end(each, ExitCause.HANG, f"said nothing for {silent_s:.0f} s", min(each.owed))
            elif silent_s > max(LATE_S, _LATE_BATCHES * self._slowest_s) and not each.is_late and able != [each]:
                each.is_late = True
                self._lost |= set(filter(self._is_wanted, each.owed))
                self._note("late", None, f"{each.name} has not answered for {silent_s:.0f} s: others are asked too.")
        oldest_s = now - min((each.heard_s for each in self._handles if not each.is_ready), default=now)
        if not able and oldest_s > self._limits.longest_s:
            raise ProducerFailedError(
                f"No preparer was ready within {oldest_s:.0f} s. Each needs a free {self._needs}: `ray status` tells whether the cluster has "
                "one, and the logs of Ray on its machine why it does not begin."
            )
        if not able and oldest_s > _ROOM_WARNING_S and all(event.kind != "slow" for event in self._events):
            self._note("slow", None, f"No preparer is ready yet. Each needs a free {self._needs} (`ray status`).")

    def _note(self, kind: str, position: int | None, text: str, level: int = logging.WARNING) -> None:
        self._record(kind, position, text)
        _log.log(level, "%s", text)
