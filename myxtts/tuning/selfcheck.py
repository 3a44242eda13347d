"""`myxtts selfcheck`: what has to be seen on real cards, check by check, each in a process of its own with a time limit.

One that fails, crashes or hangs ends no other. What a check does on devices is in `selfcheck_work`: TensorFlow is imported there only."""

from __future__ import annotations

import json
import os
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from datetime import datetime
from enum import StrEnum
from pathlib import Path
from typing import Any

import numpy as np

from myxtts import __version__
from myxtts.config.settings import nearest_name
from myxtts.data.task_processes import ProcessTask, Work
from myxtts.devices.machine import prepare_environment, read_machine, select_visible
from myxtts.errors import CommandLineError, DevicePlanError, MachineError
from myxtts.monitoring.machine_facts import describe_hardware, describe_software, fence
from myxtts.monitoring.metrics import name_infinities
from myxtts.training.mode import ask_process
from myxtts.units import format_duration

LIMIT_S = 1200.0
"""A card newer than TensorFlow's build has all its kernels compiled at first use, which takes minutes."""

Seen = tuple[str, dict[str, Any]]
"""What a check saw when nothing was wrong, in words and in figures."""


class CheckFailedError(MachineError):
    """What a check looked at is not as it must be."""


@dataclass(frozen=True)
class Situation:
    """What checks run on: cards of this machine, or logical CPU devices that stand for them."""

    rehearsal: bool
    data_gpu: int
    model_gpu: int
    """The same as `data_gpu` where there is one card."""
    root: str
    """Where checks may write, each in a folder with its name."""
    check: str = ""

    @property
    def folder(self) -> Path:
        return Path(self.root, self.check)

    @property
    def cards(self) -> int:
        """Cards that take part, or logical devices that stand for them."""
        return len({self.data_gpu, self.model_gpu})


def choose_devices(rehearsal: bool, data_gpu: int | None, model_gpu: int | None, folder: str) -> Situation:
    """The cards that take part: those given, else the first two in sight. Without a card there must be a rehearsal."""
    if (data_gpu is None) != (model_gpu is None):
        raise CommandLineError("--data-gpu and --model-gpu are given together, but only one is. Give both, or neither.")
    machine, visible = read_machine(), [1, 0]
    if not rehearsal:
        visible = [int(card.physical_id) for card in select_visible(machine.cards, machine.environ)]
    if not visible:
        reason = machine.scan.problem or "no NVIDIA driver shows a card, or CUDA_VISIBLE_DEVICES hides them"
        raise DevicePlanError(
            f"The self-check needs a GPU, but there is none: {reason}. `myxtts diagnose` says what is missing; --rehearsal runs "
            "the same list on the CPU."
        )
    if data_gpu is None or model_gpu is None:
        model_gpu, data_gpu = visible[0], visible[:2][-1]
    if not rehearsal and not {data_gpu, model_gpu} <= set(visible):
        raise DevicePlanError(
            f"GPU {data_gpu} and GPU {model_gpu} were given, but in sight are only {', '.join(map(str, visible))}. Give ids of those."
        )
    return Situation(rehearsal, data_gpu, model_gpu, folder)


Tolerance = tuple[float, float]
"""How far losses may differ, relative: on cards, in rehearsal."""
# Another device prepares, or another process: in rehearsal not a bit may differ. Two cards may round differently.
SAME: Tolerance = (1e-3, 0.0)
# The same sums in another order.
ROUNDING: Tolerance = (1e-2, 1e-3)
# Sixteen bits instead of thirty-two.
HALF: Tolerance = (5e-2, 5e-2)
BITS: Tolerance = (0.0, 0.0)


@dataclass(frozen=True)
class Check:
    """One check.

    Attributes:
        proves: what is known when it has passed.
        work: a function of `selfcheck_work`, called with the situation and the settings; gives `Seen`.
        cards: how many it needs.
        after: the check that must have passed before, because its files are used.
        tolerance: how far its losses may lie from those of that one; None where they are its own.
    """

    name: str
    proves: str
    work: str = "train"
    cards: int = 1
    settings: Mapping[str, Any] = field(default_factory=dict)
    after: str | None = None
    tolerance: Tolerance | None = None


def _train(
    name: str, proves: str, tolerance: Tolerance = SAME, *, like: str = "train-single", cards: int = 1, **settings: Any
) -> Check:
    """A check whose losses must be those of another."""
    return Check(name, proves, "train", cards, settings, like, tolerance)


CHECKS: tuple[Check, ...] = (
    Check("driver", "the driver's readings of the cards make sense", "read_driver"),
    Check("visible", "memory is taken as it is needed, on the card that was asked for", "watch_memory"),
    Check("visible-reversed", "the same with the ids the other way round", "watch_memory", 2, {"is_reversed": True}),
    Check("limit", "a memory limit holds, and going past it is an error, not a crash", "exceed_limit"),
    Check("train-codec", "the codec trains", settings={"training": {"stage": "codec"}}),
    Check("train-single", "one device prepares and trains", after="train-codec"),
    _train("train-dual", "two devices in one process give the same losses", cards=2, mode="dual"),
    _train("train-isolated", "a producer process of its own gives the same losses", cards=2, mode="isolated"),
    _train("train-split", "two processes on one card give the same losses", mode="split"),
    _train("train-parallel", "both devices train (--model-gpus), and the losses are those of one", ROUNDING, cards=2, mode="parallel"),
    _train("train-auto", "--mode auto measures, chooses and trains", ROUNDING, cards=2, mode="auto"),
    Check("train-decoder", "the decoder trains (--stage decoder)", settings={"training": {"stage": "decoder"}}, after="train-single"),
    _train("deterministic", "--deterministic can be had", ROUNDING, training={"deterministic": True}),
    _train("deterministic-again", "and gives the same bits twice", BITS, like="deterministic", training={"deterministic": True}),
    # While a loss scale is found that fits, updates are skipped: its losses are its own.
    Check("mixed-float16", "16-bit floats with loss scaling train", settings={"data": {"mixed_precision": "mixed_float16"}}, after="train-codec"),
    _train("mixed-bfloat16", "bfloat16 follows 32-bit floats", HALF, data={"mixed_precision": "mixed_bfloat16"}),
    _train("xla", "steps compiled by XLA give the same losses", ROUNDING, data={"enable_xla": True}),
    _train("gradient-checkpointing", "computing activations twice gives the same losses", ROUNDING, model={"enable_gradient_checkpointing": True}),
    _train("out-of-memory", "a step that runs out of memory is done again in parts", ROUNDING, mode="split", fault="out of memory"),
    _train("producer-killed", "a producer that is killed is replaced, and nothing is lost", mode="two processes", fault="kill producer"),
    Check("speak", "a trained checkpoint speaks on the device", "speak", after="train-single"),
)  # fmt: skip
"""In the order in which they run."""


def select_checks(only: Collection[str], *, is_quick: bool) -> list[Check]:
    """The checks that were asked for, with those whose files or losses they need before them. Where none is
    named, all, or those that are quick: they look at devices only, and train nothing."""
    names = [check.name for check in CHECKS]
    for name in only:
        if name not in names:
            raise CommandLineError(
                f"There is no check {name!r}. Did you mean {nearest_name(name, names) or 'one of --list'}?"
            )
    quick = {check.name for check in CHECKS if check.work != "train" and check.after is None}
    wanted = set(only) or (quick if is_quick else set(names))
    # What a check needs stands before it.
    for check in reversed(CHECKS):
        if check.name in wanted and check.after:
            wanted.add(check.after)
    return [check for check in CHECKS if check.name in wanted]


class CheckStatus(StrEnum):
    PASSED = "passed"
    REHEARSED = "rehearsed"
    """It passed on logical CPU devices, which says nothing about cards."""
    FAILED = "FAILED"
    NOT_RUN = "not run"


@dataclass(frozen=True)
class CheckOutcome:
    """The end of one check."""

    check: Check
    status: CheckStatus
    detail: str
    seconds: float = 0.0
    facts: Mapping[str, Any] = field(default_factory=dict)
    last_words: str = ""
    """The end of what the process of a failed check wrote."""


def run_checks(
    checks: Sequence[Check], situation: Situation, run: Callable[[Check, Situation], CheckOutcome] | None = None
) -> Iterator[CheckOutcome]:
    """The outcome of each check, in order, as soon as it is there; `run` does one, by default in a process of its own."""
    good: dict[str | None, CheckOutcome] = {}
    for check in checks:
        if check.after is not None and check.after not in good:
            detail = f"needs what {check.after} makes, which did not pass"
            outcome = CheckOutcome(check, CheckStatus.NOT_RUN, detail)
        elif check.cards > situation.cards:
            outcome = CheckOutcome(check, CheckStatus.NOT_RUN, "needs two GPUs")
        else:
            outcome = (run or run_check)(check, situation)
            if check.tolerance is not None and outcome.status is not CheckStatus.FAILED:
                most, theirs = check.tolerance[situation.rehearsal], good[check.after].facts["losses"]
                outcome = _judge_losses(outcome, theirs, most)
        if outcome.status in (CheckStatus.PASSED, CheckStatus.REHEARSED):
            good[check.name] = outcome
        yield outcome


def run_check(check: Check, situation: Situation) -> CheckOutcome:
    """Does a check in a process of its own, which is ended when the check's time is over."""
    here, began = asdict(replace(situation, check=check.name)), time.monotonic()
    order = {"function": check.work, "situation": here, "settings": check.settings}
    found = ask_process(ProcessTask(f"{__name__}:make_check", order), None, LIMIT_S)
    seconds = time.monotonic() - began
    if found.content is None:
        return CheckOutcome(check, CheckStatus.FAILED, found.ending, seconds, last_words=found.output)
    detail, facts = found.content["seen"]
    status = CheckStatus.REHEARSED if situation.rehearsal else CheckStatus.PASSED
    return CheckOutcome(check, status, detail, seconds, facts)


def make_check(function: str, situation: Mapping[str, Any], settings: Mapping[str, Any]) -> Work:
    """The work of a check's process: finds what it does, and does it."""
    prepare_environment(os.environ)
    # TensorFlow is imported only once its variables are set.
    from myxtts.tuning import selfcheck_work

    check: Callable[..., Seen] = getattr(selfcheck_work, function)
    return lambda _: {"seen": check(Situation(**situation), **settings)}


def _judge_losses(outcome: CheckOutcome, theirs: Sequence[float], most: float) -> CheckOutcome:
    """The outcome after its losses were compared with those of the check that it must be like."""
    ours, other = outcome.facts["losses"], outcome.check.after
    if len(ours) != len(theirs):
        wrong = f"it made {len(ours)} updates, {other} made {len(theirs)}"
        return replace(outcome, status=CheckStatus.FAILED, detail=wrong)
    worst = float(np.max(np.abs(np.subtract(ours, theirs)) / np.abs(theirs)))
    # Not the other way round: what is not a number would be passed over.
    if worst <= most:
        same = "to the last bit" if worst == 0 else f"within {worst:.1g} ({most:.1g} is allowed)"
        return replace(outcome, detail=f"{outcome.detail}; losses as in {other} {same}")
    shown = " against ".join(", ".join(f"{each:.6g}" for each in losses[:3]) for losses in (ours, theirs))
    wrong = f"losses differ from those of {other} by up to {worst:.2g} ({most:.2g} is allowed), as {shown}"
    return replace(outcome, status=CheckStatus.FAILED, detail=wrong)


def format_report(outcomes: Sequence[CheckOutcome], *, rehearsal: bool) -> tuple[str, str]:
    """How it ended, and the report to post, as Markdown. What is private is still in it."""
    failed = [each for each in outcomes if each.status is CheckStatus.FAILED]
    meaning = "Please post the report all the same: nobody may have run this on such cards before."
    if failed:
        names = ", ".join(each.check.name for each in failed)
        meaning = f"Failed: {names}. Please post the report: it says what was seen instead."
    elif rehearsal:
        meaning = "A rehearsal shows that the checks themselves work; it says nothing about cards."
    numbers = Counter(each.status for each in outcomes)
    count = ", ".join(f"{numbers[status]} {status}" for status in CheckStatus if numbers[status])
    end = f"{count} in {format_duration(sum(each.seconds for each in outcomes))}. {meaning}"
    kind, now = "rehearsal on logical CPU devices" if rehearsal else "on GPUs", datetime.now().astimezone()
    rows = ["| check | result | time | what was seen |", "|---|---|---:|---|"]
    for each in outcomes:
        seen = f"{each.check.proves}: {each.detail}".replace("|", "\\|").replace("\n", " ")
        rows.append(f"| {each.check.name} | {each.status} | {each.seconds:.1f} s | {seen} |")
    figures = [json.dumps({each.check.name: name_infinities(each.facts)}) for each in outcomes if each.facts]
    parts = [
        f"# MyXTTS {__version__}: self-check {kind}, {now.isoformat(timespec='seconds')}",
        end,
        "\n".join(f"- {line}" for line in (*describe_hardware(Path.cwd()), *describe_software())),
        "\n".join(rows),
        *(f"## {each.check.name}: what its process wrote last\n\n{fence(each.last_words)}" for each in failed),
        "## Figures\n\n" + fence("\n".join(figures), "json"),
    ]
    return end, "\n\n".join(parts) + "\n"
