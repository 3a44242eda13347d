"""Runs checks, each in a process of its own with a time limit. One that fails, crashes or hangs ends no other."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

from myxtts.data.workers import Task, WorkerProcess
from myxtts.errors import MyXTTSError
from myxtts.processes import IMPORT_S
from myxtts.training.modes.measuring_process import await_answer
from myxtts.training.selfcheck.checks import Check
from myxtts.training.selfcheck.outcome import Outcome, Status
from myxtts.training.selfcheck.situation import Situation

WORKER = "myxtts.training.selfcheck.work:make_work"


@dataclass(frozen=True)
class Answer:
    """What the process of a check said, or why it said nothing."""

    detail: str
    facts: Mapping[str, Any]
    is_good: bool
    last_words: str = ""
    is_done: bool = True
    """False where the machine does not allow the check."""


Ask = Callable[[Check, Situation], Answer]


def ask_process(check: Check, situation: Situation) -> Answer:
    """Does a check in a process of its own, which is ended when the check's time is over. Loading its code has a limit of its own."""
    order = {"function": check.work, "situation": situation.dump(), "settings": dict(check.settings)}
    worker = WorkerProcess(Task(WORKER))
    try:
        worker.give([order])
        said = await_answer(worker, IMPORT_S, check.limit_s)
    except TimeoutError:
        late = f"it was not done after {check.limit_s:.0f} s"
        if not worker.is_ready:
            late = f"its process had not loaded its code after {IMPORT_S:.0f} s"
        worker.write_stacks()
        return Answer(late, {}, False, worker.read_report())
    except MyXTTSError as error:
        return Answer(str(error), {}, False, worker.read_report())
    else:
        if said is not None:
            return Answer(said["detail"], said["facts"], is_good=True, is_done=said["is_done"])
        code, words = worker.await_exit_code(), worker.read_report()
        return Answer(_describe_end(code, words), {}, False, words)
    finally:
        worker.kill()


def _describe_end(exit_code: int, last_words: str) -> str:
    if exit_code >= 0:
        # The last line of a traceback is the error.
        return f"its process ended with exit code {exit_code}: {last_words.rpartition(chr(10))[2]}"
    number = -exit_code
    name = signal.Signals(number).name if number in set(signal.Signals) else f"signal {number}"
    return f"its process was killed by {name}"


def run_checks(checks: Sequence[Check], situation: Situation, ask: Ask = ask_process) -> Iterator[Outcome]:
    """The outcome of each check, in order, as soon as it is there."""
    done: dict[str, Outcome] = {}
    for check in checks:
        done[check.name] = outcome = _run_check(check, situation, done, ask)
        yield outcome


def _run_check(check: Check, situation: Situation, done: Mapping[str, Outcome], ask: Ask) -> Outcome:
    outcome = Outcome(check.name, check.proves, Status.NOT_RUN, "")
    if check.cards > situation.cards:
        return replace(outcome, detail="needs two GPUs")
    missing = [
        name for name in check.after if name not in done or done[name].status not in (Status.PASSED, Status.REHEARSED)
    ]
    if missing:
        return replace(outcome, detail=f"needs what {missing[0]} makes, which did not pass")
    began = time.monotonic()
    answer = ask(check, situation)
    if not answer.is_done:
        return replace(outcome, detail=answer.detail)
    outcome = replace(outcome, facts=answer.facts, seconds=time.monotonic() - began)
    judgement = _judge_losses(check, answer, situation, done) if answer.is_good else Judgement(False, answer.detail)
    if not judgement.is_good:
        return replace(outcome, status=Status.FAILED, detail=judgement.detail, last_words=answer.last_words)
    status = Status.REHEARSED if situation.rehearsal else Status.PASSED
    return replace(outcome, status=status, detail=judgement.detail)


class Judgement(NamedTuple):
    """Whether a check's losses are what they must be, and what to say of it."""

    is_good: bool
    detail: str


def _judge_losses(check: Check, answer: Answer, situation: Situation, done: Mapping[str, Outcome]) -> Judgement:
    """Compares the losses of a check with those it must be like, if there are such."""
    if check.like is None:
        return Judgement(True, answer.detail)
    ours, theirs = answer.facts["losses"], done[check.like].facts["losses"]
    if len(ours) != len(theirs):
        return Judgement(False, f"it made {len(ours)} updates, {check.like} made {len(theirs)}")
    most = check.tolerance.in_rehearsal if situation.rehearsal else check.tolerance.on_cards
    worst = measure_difference(ours[: check.compared], theirs[: check.compared])
    # Not "worst > most": what is not a number is larger than nothing.
    if worst <= most:
        which = "losses" if check.compared is None else f"the first {check.compared} of the losses"
        same = "to the last bit" if worst == 0 else f"within {worst:.1g} ({most:.1g} is allowed)"
        return Judgement(True, f"{answer.detail}; {which} as in {check.like} {same}")
    return Judgement(
        False,
        f"its losses differ from those of {check.like} by up to {worst:.2g} of their value; {most:.2g} is allowed "
        f"({_show(ours)} against {_show(theirs)})",
    )


def measure_difference(ours: Sequence[float], theirs: Sequence[float]) -> float:
    """The largest relative difference between two lists of losses; what is not a number stays that."""
    differences = [abs(one - other) / abs(other) for one, other in zip(ours, theirs, strict=True)]
    return next((each for each in differences if each != each), max(differences, default=0.0))


def _show(losses: Sequence[float]) -> str:
    return ", ".join(f"{loss:.6g}" for loss in losses[:3]) + (", ..." if len(losses) > 3 else "")
