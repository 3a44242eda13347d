"""`myxtts selfcheck`: what has to be seen on real cards, check by check, each in a process of its own with a time limit.

One that fails, crashes or hangs ends no other. What a check does on devices is in `selfcheck_work`: TensorFlow is imported there only."""

from __future__ import annotations

import importlib
import json
import os
import textwrap
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from datetime import datetime
from enum import StrEnum
from pathlib import Path
from typing import Any

from myxtts import __version__
from myxtts.config.settings import nearest_name
from myxtts.data.task_processes import ProcessTask, Work
from myxtts.devices.machine import prepare_environment, read_links, read_machine
from myxtts.devices.nvml import Nvml
from myxtts.devices.plan import DevicePlan, Mode, PlanRequest
from myxtts.devices.planning import plan_devices
from myxtts.errors import CommandLineError, MachineError
from myxtts.monitoring.machine_facts import describe_hardware, describe_software, fence
from myxtts.monitoring.metrics import name_infinities
from myxtts.training.mode import ask_process
from myxtts.units import format_duration, wrap_titled

POOL_MIB = 2048
"""Of each role where limits are in force: far more than the small model needs, and free on every card worth training on."""
DEVICE_LIMIT_S = 300.0
TRAINING_LIMIT_S = 1200.0
"""A card newer than TensorFlow's build has all its kernels compiled at first use, which takes minutes."""
_WORK = "myxtts.tuning.selfcheck_work"

Seen = tuple[str, dict[str, Any] | None]
"""What a check saw when nothing was wrong, in words and in figures. No figures: the machine does not allow it, and the words say why."""


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
    opens_ports: bool = False
    check: str = ""

    @property
    def folder(self) -> Path:
        return Path(self.root, self.check)

    @property
    def cards(self) -> int:
        """Cards that take part, or logical devices that stand for them."""
        return 1 if self.data_gpu == self.model_gpu else 2

    def plan(self, mode: Mode) -> DevicePlan:
        """The plan of a mode on these devices."""
        limit_mib = POOL_MIB if mode in (Mode.ISOLATED, Mode.SPLIT) else None
        data_gpu = {Mode.SINGLE: None, Mode.SPLIT: self.model_gpu}.get(mode, self.data_gpu)
        request = PlanRequest(
            mode="single" if mode is Mode.SINGLE else None, data_gpu=data_gpu, model_gpu=self.model_gpu, isolation=mode is Mode.ISOLATED,
            data_limit_mib=limit_mib, model_limit_mib=limit_mib, rehearsal=self.rehearsal, command=("myxtts", "selfcheck"),
        )  # fmt: skip
        return plan_devices(request, read_machine())


Tolerance = tuple[float, float]
"""How far losses may lie from those of the check they are compared with, relative: on cards, in rehearsal."""
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
        work: a function of `selfcheck_work`, or `package.module:function`; called in a process of its own with the situation and the
            settings, gives `Seen`.
        cards: how many it needs.
        after: the check that must have passed before, because its files are used.
        like: the same, and its losses must be those of that one.
        compared: how many of the first losses; all of them by default.
        is_quick: whether it belongs to `--quick`.
    """

    name: str
    proves: str
    work: str = "train"
    cards: int = 1
    settings: Mapping[str, Any] = field(default_factory=dict)
    after: str | None = None
    like: str | None = None
    tolerance: Tolerance = SAME
    compared: int | None = None
    is_quick: bool = False

    @property
    def needed(self) -> str | None:
        return self.like or self.after


def _look(name: str, proves: str, work: str, cards: int = 1, **settings: Any) -> Check:
    return Check(name, proves, work, cards, settings, is_quick=True)


def _train(name: str, proves: str, tolerance: Tolerance = SAME, *, cards: int = 1, work: str = "train",
           like: str = "train-single", compared: int | None = None, **settings: Any) -> Check:  # fmt: skip
    return Check(name, proves, work, cards, settings, like=like, tolerance=tolerance, compared=compared)


CHECKS: tuple[Check, ...] = (
    _look("driver", "the driver's readings of the cards make sense", f"{__name__}:read_driver"),
    _look("order", "TensorFlow counts the cards as nvidia-smi does", "compare_order"),
    _look("growth", "memory is taken as it is needed, on the card that was asked for", "watch_growth"),
    _look("limit", "a memory limit holds, and going past it is an error, not a crash", "exceed_limit"),
    _look("visible", "each role works on the card it was given", "watch_roles", 2),
    _look("visible-reversed", "the same with the ids the other way round", "watch_roles", 2, is_reversed=True),
    _look("topology", "how the cards are connected is known", f"{__name__}:read_topology", 2),
    _look("transfer-host", "what is copied between host and card arrives whole", "copy_from_host"),
    _look("transfer-cards", "what is copied from card to card arrives whole", "copy_between", 2),
    Check("placement", "every variable and every batch is on the model's device", "inspect_placement"),
    Check("train-codec", "the codec trains", settings={"training": {"stage": "codec"}}),
    Check("train-single", "one device prepares and trains", after="train-codec"),
    _train("train-dual", "two devices in one process give the same losses", cards=2, mode="dual"),
    _train("train-isolated", "a producer process of its own gives the same losses", cards=2, mode="isolated"),
    _train("train-split", "two processes on one card give the same losses", mode="split"),
    _train("train-parallel", "both devices train (--model-gpus), and the losses are those of one", ROUNDING, cards=2, work="train_parallel"),
    _train("train-auto", "--mode auto measures, chooses and trains", ROUNDING, cards=2, mode="auto"),
    _train("train-cached", "codes that are kept are those that would be made again", data={"cache": "memory"}),
    _train("train-native", "clips that TensorFlow reads by itself give the same losses", data={"use_tf_native_loading": True}),
    Check("train-decoder", "the decoder trains (--stage decoder)", settings={"training": {"stage": "decoder"}}, after="train-single"),
    _train("deterministic", "--deterministic can be had", ROUNDING, training={"deterministic": True}),
    _train("deterministic-again", "and gives the same bits twice", BITS, like="deterministic", training={"deterministic": True}),
    # The first loss alone: while a loss scale is found that fits, updates are skipped.
    _train("mixed-float16", "16-bit floats with loss scaling train", HALF, compared=1, data={"mixed_precision": "mixed_float16"}),
    _train("mixed-bfloat16", "bfloat16 follows 32-bit floats", HALF, data={"mixed_precision": "mixed_bfloat16"}),
    _train("xla", "steps compiled by XLA give the same losses", ROUNDING, data={"enable_xla": True}),
    _train("gradient-checkpointing", "computing activations twice gives the same losses", ROUNDING, model={"enable_gradient_checkpointing": True}),
    _train("out-of-memory", "a step that runs out of memory is done again in parts", ROUNDING, mode="split", fault="out of memory"),
    _train("producer-killed", "a producer that is killed is replaced, and nothing is lost", mode="two processes", fault="kill producer"),
    Check("speak", "a trained checkpoint speaks on the device", "speak", after="train-single"),
)  # fmt: skip
"""In the order in which they run."""


def select_checks(only: Collection[str], *, is_quick: bool) -> list[Check]:
    """The checks that were asked for, with those whose files or losses they need before them."""
    by_name = {check.name: check for check in CHECKS}
    for name in only:
        if name not in by_name:
            near = nearest_name(name, by_name)
            hint = f"Did you mean {near}?" if near else f"Checks: {', '.join(by_name)}."
            raise CommandLineError(f"There is no check {name!r}. {hint}")
    wanted = set(only) or {check.name for check in CHECKS if check.is_quick or not is_quick}
    # What a check needs stands before it.
    for check in reversed(CHECKS):
        if check.name in wanted and check.needed:
            wanted.add(check.needed)
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

    name: str
    proves: str
    status: CheckStatus
    detail: str
    seconds: float = 0.0
    facts: Mapping[str, Any] = field(default_factory=dict)
    last_words: str = ""
    """The end of what the process of a failed check wrote."""

    @property
    def is_good(self) -> bool:
        return self.status in (CheckStatus.PASSED, CheckStatus.REHEARSED)


def run_checks(
    checks: Sequence[Check], situation: Situation, run: Callable[[Check, Situation], CheckOutcome] | None = None
) -> Iterator[CheckOutcome]:
    """The outcome of each check, in order, as soon as it is there; `run` does one, by default in a process of its own."""
    done: dict[str, CheckOutcome] = {}
    for check in checks:
        is_missing = check.needed is not None and (check.needed not in done or not done[check.needed].is_good)
        if check.cards > situation.cards or is_missing:
            why = f"needs what {check.needed} makes, which did not pass" if is_missing else "needs two GPUs"
            outcome = CheckOutcome(check.name, check.proves, CheckStatus.NOT_RUN, why)
        else:
            outcome = (run or run_check)(check, situation)
            if check.like is not None and outcome.is_good:
                outcome = _judge_losses(check, situation, outcome, done[check.like].facts["losses"])
        done[check.name] = outcome
        yield outcome


def run_check(check: Check, situation: Situation) -> CheckOutcome:
    """Does a check in a process of its own, which is ended when the check's time is over."""
    here = asdict(replace(situation, check=check.name))
    order = {"function": check.work, "situation": here, "settings": check.settings}
    limit_s, began = DEVICE_LIMIT_S if check.is_quick else TRAINING_LIMIT_S, time.monotonic()
    found = ask_process(ProcessTask(f"{__name__}:make_check", order), None, limit_s)
    seconds = time.monotonic() - began
    if found.content is None:
        return CheckOutcome(
            check.name, check.proves, CheckStatus.FAILED, found.ending, seconds, last_words=found.output
        )
    detail, facts = found.content["seen"]
    if facts is None:
        return CheckOutcome(check.name, check.proves, CheckStatus.NOT_RUN, detail)
    status = CheckStatus.REHEARSED if situation.rehearsal else CheckStatus.PASSED
    return CheckOutcome(check.name, check.proves, status, detail, seconds, facts)


def make_check(function: str, situation: Mapping[str, Any], settings: Mapping[str, Any]) -> Work:
    """The work of a check's process: finds what it does, and does it."""
    prepare_environment(os.environ)
    module, _, name = function.rpartition(":")
    check: Callable[..., Seen] = getattr(importlib.import_module(module or _WORK), name)
    return lambda _: {"seen": check(Situation(**situation), **settings)}


def _judge_losses(check: Check, situation: Situation, outcome: CheckOutcome, theirs: Sequence[float]) -> CheckOutcome:
    """The outcome after its losses were compared with those of the check that it must be like."""
    ours = outcome.facts["losses"]
    if len(ours) != len(theirs):
        wrong = f"it made {len(ours)} updates, {check.like} made {len(theirs)}"
        return replace(outcome, status=CheckStatus.FAILED, detail=wrong)
    on_cards, in_rehearsal = check.tolerance
    most = in_rehearsal if situation.rehearsal else on_cards
    differences = [abs(one - other) / abs(other) for one, other in zip(ours, theirs, strict=True)][: check.compared]
    # What is not a number is larger than nothing, and `max` may pass over it.
    worst = next((each for each in differences if each != each), max(differences, default=0.0))
    if worst <= most:
        which = "losses" if check.compared is None else f"the first {check.compared} of the losses"
        same = "to the last bit" if worst == 0 else f"within {worst:.1g} ({most:.1g} is allowed)"
        return replace(outcome, detail=f"{outcome.detail}; {which} as in {check.like} {same}")
    shown = [", ".join(f"{each:.6g}" for each in losses[:3]) + ", ..." * (len(losses) > 3) for losses in (ours, theirs)]
    wrong = (
        f"its losses differ from those of {check.like} by up to {worst:.2g} of their value; {most:.2g} is allowed "
        f"({shown[0]} against {shown[1]})"
    )
    return replace(outcome, status=CheckStatus.FAILED, detail=wrong)


def read_driver(situation: Situation) -> Seen:
    """Every card answers, and what it says of itself can be true."""
    machine = read_machine()
    if machine.scan.problem or machine.scan.lost:
        raise CheckFailedError(machine.scan.problem or machine.scan.lost[0][1])
    facts: dict[str, Any] = {"host_free_mib": machine.host_free_mib, "cards": []}
    if not machine.cards:
        return f"no card; {machine.host_free_mib} MB of host memory are free", facts
    with Nvml() as nvml:
        for card in machine.cards:
            if card.total_mib is not None and card.free_mib is not None and not 0 <= card.free_mib <= card.total_mib:
                raise CheckFailedError(
                    f"GPU {card.physical_id} says it has {card.free_mib} MB free of {card.total_mib} MB, which cannot be."
                )
        facts["cards"] = [
            asdict(replace(card, uuid="not shown")) | asdict(nvml.read_activity(card.physical_id))
            for card in machine.cards
        ]
        facts["driver"] = nvml.read_driver_version()
    unknown = sorted({name for card in facts["cards"] for name, value in card.items() if value is None})
    told = f"not told: {', '.join(unknown)}" if unknown else "everything asked is told"
    return f"{len(machine.cards)} cards, driver {facts['driver']}; {told}", facts


def read_topology(situation: Situation) -> Seen:
    """How every two cards are connected."""
    links = [link.explain() for link in read_links([card.physical_id for card in read_machine().cards])]
    return "; ".join(links) or "logical devices have no link: nothing to read", {"links": links}


def format_outcome(outcome: CheckOutcome) -> str:
    """One check in two lines or three."""
    took = f"  {format_duration(outcome.seconds)}" if outcome.seconds else ""
    detail = wrap_titled("", outcome.detail, indent=11, breaks_words=False)
    return "\n".join([f"{outcome.status:<11}{outcome.name}{took}", *detail])


def format_report(outcomes: Sequence[CheckOutcome], *, rehearsal: bool) -> tuple[str, str, str]:
    """How it ended, for a terminal; the report to post, as Markdown; all facts, as JSON with null for what is unknown.

    What is private is still in it.
    """
    failed = [each for each in outcomes if each.status is CheckStatus.FAILED]
    seconds, numbers = sum(each.seconds for each in outcomes), Counter(each.status for each in outcomes)
    count = ", ".join(f"{numbers[status]} {status}" for status in CheckStatus if numbers[status])
    meaning = "Please post the report all the same: nobody may have run this on such cards before."
    if failed:
        names = ", ".join(each.name for each in failed)
        meaning = f"Failed: {names}. Please post the report: it says what was seen instead."
    elif rehearsal:
        meaning = "A rehearsal shows that the checks themselves work; it says nothing about cards."
    meaning = f"in {format_duration(seconds)}. {meaning}"
    now, machine = (
        datetime.now().astimezone().isoformat(timespec="seconds"),
        [*describe_hardware(Path.cwd()), *describe_software()],
    )
    rows = ["| check | result | time | what was seen |", "|---|---|---:|---|"]
    for each in outcomes:
        seen = f"{each.proves}: {each.detail}".replace("|", "\\|").replace("\n", " ")
        rows.append(f"| {each.name} | {each.status} | {each.seconds:.1f} s | {seen} |")
    figures = [json.dumps({each.name: name_infinities(each.facts)}) for each in outcomes if each.facts]
    words = {each.name: fence(each.last_words) for each in failed if each.last_words}
    title = "rehearsal on logical CPU devices" if rehearsal else "on GPUs"
    parts = [
        f"# MyXTTS {__version__}: self-check {title}, {now}",
        f"**{count}** {meaning}",
        "\n".join(f"- {line}" for line in machine),
        "\n".join(rows),
        *(f"## {name}: what its process wrote last\n\n{last}" for name, last in words.items()),
        "## Figures\n\n" + fence("\n".join(figures), "json"),
    ]
    content = {"version": __version__, "time": now, "rehearsal": rehearsal, "seconds": seconds, "machine": machine}
    content = name_infinities({**content, "checks": [asdict(each) for each in outcomes]})
    end = textwrap.fill(f"{count} {meaning}", 80, break_on_hyphens=False)
    return end, "\n\n".join(parts) + "\n", json.dumps(content, ensure_ascii=False, allow_nan=False, indent=1) + "\n"
