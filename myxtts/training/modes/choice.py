"""The mode that `--mode auto` takes, and why, as a record that a run keeps and a page that a person reads."""

from __future__ import annotations

import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from typing import Any

from myxtts.errors import DevicePlanError
from myxtts.monitoring.words import format_step_time, wrap_titled
from myxtts.training.modes.prediction import (
    Candidate,
    Circumstances,
    Layout,
    Prediction,
    StageCosts,
    predict_all,
)

WORTHWHILE = 1.03
"""A mode with more parts must be faster than a simpler one by more than two short measurements differ by themselves."""
_WIDTH = 80
_wrap = partial(wrap_titled, width=_WIDTH, indent=8)


@dataclass(frozen=True)
class ModeChoice:
    """What was chosen, on which devices, and what was predicted."""

    layout: Layout
    keeps_codes: bool
    step_s: float | None
    """Predicted, per update; None where there was nothing to choose from, so nothing was measured."""
    reason: str
    devices: tuple[str, ...]
    """What it was chosen for: another set of devices needs another choice."""
    codes: str = ""
    """Whether codes are kept, where and why, as the end of a sentence about them; empty where nothing was measured."""
    cache: str | None = None
    """The `--cache` that goes with it; None where that was not weighed, so that the run decides."""
    predictions: tuple[Prediction, ...] = ()
    costs: StageCosts | None = None
    is_parallel_faster: bool = False
    """Whether both devices training would be faster, and only how the program was started was against it."""

    def dump(self) -> dict[str, Any]:
        """As JSON values."""
        return asdict(self)


def load_choice(values: Mapping[str, Any]) -> ModeChoice:
    """The choice that `ModeChoice.dump` was given.

    Raises:
        KeyError, TypeError, ValueError: it is none.
    """
    return ModeChoice(
        layout=Layout(values["layout"]),
        keeps_codes=values["keeps_codes"],
        step_s=values["step_s"],
        reason=values["reason"],
        devices=tuple(values["devices"]),
        codes=values["codes"],
        cache=values["cache"],
        predictions=tuple(_load_prediction(each) for each in values["predictions"]),
        costs=None if values["costs"] is None else StageCosts(**values["costs"]),
        # A run that was begun before this was recorded keeps its mode all the same.
        is_parallel_faster=values.get("is_parallel_faster", False),
    )


def choose_mode(costs: StageCosts, around: Circumstances, devices: Sequence[str]) -> ModeChoice:
    """The simplest of the fastest candidates that can be had. Raises `DevicePlanError` where none can."""
    predictions = predict_all(costs, around)
    open_ones = [each for each in predictions if each.obstacle is None]
    if not open_ones:
        raise DevicePlanError(_explain_none(predictions))
    best_s = min(each.step_s for each in open_ones)
    chosen = next(each for each in open_ones if each.step_s <= best_s * WORTHWHILE)
    faster = _find_faster_parallel(around, chosen, predictions)
    return ModeChoice(
        layout=chosen.candidate.layout,
        keeps_codes=chosen.candidate.keeps_codes,
        step_s=chosen.step_s,
        reason=_compare(costs, chosen, predictions) + _mention_parallel(around, faster),
        devices=tuple(devices),
        codes=_explain_codes(around, chosen),
        cache=around.policy if chosen.candidate.keeps_codes else "off",
        predictions=tuple(predictions),
        costs=costs,
        is_parallel_faster=faster is not None,
    )


def format_choice(choice: ModeChoice) -> str:
    """The choice in a few lines: the mode, the reason, and what each mode was predicted to take."""
    lines = [f"Auto    {Candidate(choice.layout, choice.keeps_codes)}", *_wrap("Reason", choice.reason)]
    if choice.costs is not None:
        lines += _wrap("Costs", _format_costs(choice.costs))
    if choice.codes:
        lines += _wrap("Codes", choice.codes)
    if choice.predictions:
        lines += ["", f"{'mode':<28}{'predicted step':>15}"]
        lines += [_format_row(each, choice) for each in choice.predictions]
    return "\n".join(lines)


def _format_costs(costs: StageCosts) -> str:
    measured = (
        f"per batch: prepare {format_step_time(costs.prepare_s)}, transfer {format_step_time(costs.transfer_s)}, "
        f"train {format_step_time(costs.train_s)}"
    )
    if not costs.exchange_s:
        return measured
    return (
        f"{measured}. Adding up the gradients of two devices: about {format_step_time(costs.exchange_s)} a step, estimated from "
        "their size."
    )


def _format_row(prediction: Prediction, choice: ModeChoice) -> str:
    is_chosen = prediction.candidate == Candidate(choice.layout, choice.keeps_codes)
    note = "<- taken" if is_chosen else prediction.obstacle or ""
    row = f"{prediction.candidate!s:<28}{format_step_time(prediction.step_s):>15}  "
    return textwrap.fill(row + note, _WIDTH, subsequent_indent=" " * len(row), break_on_hyphens=False).rstrip()


def _explain_codes(around: Circumstances, chosen: Prediction) -> str:
    if around.kept_obstacle is not None:
        return f"are not kept. {around.kept_obstacle}"
    if chosen.candidate.keeps_codes:
        return f"are made in the first epoch and kept: {around.place}."
    return f"are not kept: {around.place} would make no step noticeably faster."


def _compare(costs: StageCosts, chosen: Prediction, predictions: Sequence[Prediction]) -> str:
    """Why this layout and not a simpler or a faster-looking one."""
    rivals = {
        each.candidate.layout: each
        for each in predictions
        if each.candidate.keeps_codes == chosen.candidate.keeps_codes
    }
    single = rivals[Layout.SINGLE]
    gain = f"{format_step_time(chosen.step_s)} a step instead of {format_step_time(single.step_s)} on one."
    if single.obstacle is not None:
        gain = f"{format_step_time(chosen.step_s)} a step. One device cannot do everything: {single.obstacle}."
    match chosen.candidate.layout:
        case Layout.SINGLE:
            return _explain_one(costs, rivals)
        case Layout.DATA_PARALLEL:
            return f"Both devices prepare and train, each half the clips of every batch: {gain}"
        case _:
            return f"Preparing and training overlap on two devices: {gain}"


def _explain_one(costs: StageCosts, rivals: Mapping[Layout, Prediction]) -> str:
    """Why a second device is left alone."""
    open_two = [each for layout, each in rivals.items() if layout is not Layout.SINGLE and each.obstacle is None]
    if not open_two:
        return f"Two devices cannot be had: {rivals[Layout.DUAL].obstacle}."
    two = min(open_two, key=lambda each: each.step_s)
    share = costs.prepare_s / costs.train_s
    return (
        f"Preparing takes {share:.0%} of the time of training; a second device would not pay: "
        f"{format_step_time(two.step_s)} a step, {format_step_time(rivals[Layout.SINGLE].step_s)} on one."
    )


def _find_faster_parallel(
    around: Circumstances, chosen: Prediction, predictions: Sequence[Prediction]
) -> Prediction | None:
    """Training on both devices, where that would be faster and only has to be started otherwise."""
    parallel = next(
        each for each in predictions if each.candidate == Candidate(Layout.DATA_PARALLEL, chosen.candidate.keeps_codes)
    )
    is_faster = parallel.step_s * WORTHWHILE < chosen.step_s
    return parallel if is_faster and around.parallel_remedy is not None else None


def _mention_parallel(around: Circumstances, faster: Prediction | None) -> str:
    if faster is None:
        return ""
    return (
        f" Both devices training ({Layout.DATA_PARALLEL}) would be faster, about {format_step_time(faster.step_s)} a step: "
        f"{around.parallel_remedy}."
    )


def _explain_none(predictions: Sequence[Prediction]) -> str:
    obstacles = {each.candidate.layout: each.obstacle for each in predictions}
    rows = [f"  {layout}: {obstacle}" for layout, obstacle in obstacles.items()]
    return "\n".join(
        [
            "--mode auto needs a mode that can be had on this machine, but something is against each:",
            *rows,
            "Give a smaller --batch-size with more --grad-accum, or make room on the devices.",
        ]
    )


def _load_prediction(values: Mapping[str, Any]) -> Prediction:
    candidate = values["candidate"]
    return Prediction(
        Candidate(Layout(candidate["layout"]), candidate["keeps_codes"]), values["step_s"], values["obstacle"]
    )
