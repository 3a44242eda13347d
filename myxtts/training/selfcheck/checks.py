"""The list of checks: what each proves, what it needs, and how long it may take."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Any

from myxtts.config.section import nearest_name
from myxtts.errors import CommandLineError

DEVICE_LIMIT_S = 300.0
TRAINING_LIMIT_S = 1200.0
"""A card newer than TensorFlow's build has all its kernels compiled at first use, which takes minutes."""

_DRIVER = "myxtts.training.selfcheck.driver_work"
_DEVICES = "myxtts.training.selfcheck.device_work"
_TRAINING = "myxtts.training.selfcheck.training_work"
_COMMAND = "myxtts.training.selfcheck.command_work"
_SPEAKING = "myxtts.training.selfcheck.speaking_work"


@dataclass(frozen=True)
class Tolerance:
    """How far losses may lie from those of the check they are compared with, relative."""

    on_cards: float
    in_rehearsal: float


SAME = Tolerance(on_cards=1e-3, in_rehearsal=0.0)
"""Another device prepares, or another process: in rehearsal not a bit may differ. Two cards may round differently."""
ROUNDING = Tolerance(on_cards=1e-2, in_rehearsal=1e-3)
"""The same sums in another order."""
HALF = Tolerance(on_cards=5e-2, in_rehearsal=5e-2)
"""Sixteen bits instead of thirty-two."""
BITS = Tolerance(on_cards=0.0, in_rehearsal=0.0)


@dataclass(frozen=True)
class Check:
    """One check.

    Attributes:
        proves: what is known when it has passed.
        work: `package.module:function`; called in a process of its own with the situation and the settings.
        cards: how many it needs.
        after: checks that must have passed before, because their files are used.
        like: the check whose losses its own must equal.
        compared: how many of the first losses; all of them by default.
        is_quick: whether it belongs to `--quick`.
    """

    name: str
    proves: str
    work: str
    cards: int = 1
    settings: Mapping[str, Any] = field(default_factory=dict)
    after: tuple[str, ...] = ()
    like: str | None = None
    tolerance: Tolerance = SAME
    compared: int | None = None
    is_quick: bool = False
    limit_s: float = DEVICE_LIMIT_S


def _train(
    name: str,
    proves: str,
    *,
    cards: int = 1,
    tolerance: Tolerance = SAME,
    compared: int | None = None,
    like: str = "train-single",
    work: str = f"{_TRAINING}:train",
    **settings: Any,
) -> Check:
    return Check(
        name,
        proves,
        work,
        cards,
        {"name": name, **settings},
        after=("train-codec", like),
        like=like,
        tolerance=tolerance,
        compared=compared,
        limit_s=TRAINING_LIMIT_S,
    )


CHECKS: tuple[Check, ...] = (
    Check("driver", "the driver's readings of the cards make sense", f"{_DRIVER}:read_driver", is_quick=True),
    Check("order", "TensorFlow counts the cards as nvidia-smi does", f"{_DEVICES}:compare_order", is_quick=True),
    Check("growth", "memory is taken as it is needed, on the card that was asked for", f"{_DEVICES}:watch_growth", is_quick=True),
    Check("limit", "a memory limit holds, and going past it is an error, not a crash", f"{_DEVICES}:exceed_limit", is_quick=True),
    Check("visible", "each role works on the card it was given", f"{_DEVICES}:watch_roles", 2, is_quick=True),
    Check("visible-reversed", "the same with the ids the other way round", f"{_DEVICES}:watch_roles", 2, {"is_reversed": True}, is_quick=True),
    Check("topology", "how the cards are connected is known", f"{_DRIVER}:read_topology", 2, is_quick=True),
    Check("transfer-host", "what is copied between host and card arrives whole", f"{_DEVICES}:copy_from_host", is_quick=True),
    Check("transfer-cards", "what is copied from card to card arrives whole", f"{_DEVICES}:copy_between", 2, is_quick=True),
    Check("placement", "every variable and every batch is on the model's device", f"{_TRAINING}:inspect_placement", limit_s=TRAINING_LIMIT_S),
    Check("train-codec", "the codec trains", f"{_TRAINING}:train", settings={"name": "train-codec", "stage": "codec"}, limit_s=TRAINING_LIMIT_S),
    Check("train-single", "one device prepares and trains", f"{_TRAINING}:train", settings={"name": "train-single"},
          after=("train-codec",), limit_s=TRAINING_LIMIT_S),
    _train("train-dual", "two devices in one process give the same losses", cards=2, mode="dual"),
    _train("train-isolated", "a producer process of its own gives the same losses", cards=2, mode="isolated"),
    _train("train-split", "two processes on one card give the same losses", mode="split"),
    _train("train-parallel", "both devices train (--model-gpus), and the losses are those of one", cards=2, tolerance=ROUNDING,
           work=f"{_COMMAND}:train_parallel"),
    _train("train-auto", "--mode auto measures, chooses and trains", cards=2, tolerance=ROUNDING, work=f"{_COMMAND}:train_auto"),
    _train("train-cached", "codes that are kept are those that would be made again", cache="memory"),
    _train("train-native", "clips that TensorFlow reads by itself give the same losses", is_native=True),
    Check("train-decoder", "the decoder trains (--stage decoder)", f"{_TRAINING}:train",
          settings={"name": "train-decoder", "stage": "decoder"}, after=("train-codec", "train-single"), limit_s=TRAINING_LIMIT_S),
    _train("deterministic", "--deterministic can be had", is_deterministic=True, tolerance=ROUNDING),
    _train("deterministic-again", "and gives the same bits twice", is_deterministic=True, like="deterministic", tolerance=BITS),
    # The first loss alone: while a loss scale is found that fits, updates are skipped.
    _train("mixed-float16", "16-bit floats with loss scaling train", precision="mixed_float16", tolerance=HALF, compared=1),
    _train("mixed-bfloat16", "bfloat16 follows 32-bit floats", precision="mixed_bfloat16", tolerance=HALF),
    _train("xla", "steps compiled by XLA give the same losses", xla=True, tolerance=ROUNDING),
    _train("gradient-checkpointing", "computing activations twice gives the same losses", checkpointing=True, tolerance=ROUNDING),
    _train("out-of-memory", "a step that runs out of memory is done again in parts", mode="split", fault="out of memory", tolerance=ROUNDING),
    _train("producer-killed", "a producer that is killed is replaced, and nothing is lost", mode="two processes", fault="kill producer"),
    Check("speak", "a trained checkpoint speaks on the device", f"{_SPEAKING}:speak", after=("train-codec", "train-single"), limit_s=TRAINING_LIMIT_S),
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
    pending = list(wanted)
    while pending:
        needed = set(by_name[pending.pop()].after) - wanted
        wanted |= needed
        pending += needed
    return [check for check in CHECKS if check.name in wanted]
