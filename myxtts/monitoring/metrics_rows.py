"""The rows of a run's metrics file: what each kind holds, as JSON and back."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, ClassVar

from myxtts.monitoring.card_summary import CardSummary, HostSummary
from myxtts.monitoring.flow import Flow
from myxtts.monitoring.time_ledger import Cause
from myxtts.pipeline.stage import StageFacts
from myxtts.pipeline.waiting import HandoffFacts


@dataclass(frozen=True, kw_only=True)
class RunRow:
    """A session of the run begins: at the start, and again at every resume."""

    kind: ClassVar[str] = "run"
    time_s: float
    """Seconds since the epoch, as in all rows."""
    step: int
    """Updates done, as in all rows."""
    end_step: int
    stage: str
    mode: str
    devices: Mapping[str, str]
    """Role to device."""
    settings: Mapping[str, Any] = field(default_factory=dict)
    """The config in force, by section and name, with what was computed for `auto`."""
    environment: Mapping[str, Any] = field(default_factory=dict)
    around: Mapping[str, Any] = field(default_factory=dict)
    """The machine, as far as advice depends on it (`settings_in_force.Surroundings`)."""
    lost_s: float = 0.0
    """Time of the session before that went into steps after its last checkpoint."""
    predicted_step_s: float | None = None
    """What `--mode auto` expected of this mode; None where nothing was predicted."""


@dataclass(frozen=True)
class MemoryUse:
    """Memory of one device at one moment, in bytes."""

    device: str
    """Role and logical device, or `host` and whose process."""
    used_bytes: int | None
    limit_bytes: int | None
    pool_bytes: int | None = None
    """What TensorFlow itself holds on the device."""
    process_bytes: int | None = None
    """What the process holds there, as the driver sees it: a limited pool as a whole, and the CUDA context."""
    context_bytes: int | None = None
    """Of that, the CUDA context and the libraries' own; no limit holds for it."""


@dataclass(frozen=True, kw_only=True)
class TrainRow:
    """The steps since the row before."""

    kind: ClassVar[str] = "train"
    time_s: float
    step: int
    epoch: int
    losses: tuple[float, ...]
    """Of every step, the last one being that of `step`."""
    learning_rate: float | None
    scalars: Mapping[str, float] = field(default_factory=dict)
    """Anything else worth a curve, by name."""
    step_times_s: tuple[float, ...]
    """Of the steps that count."""
    left_out: int
    spent: Mapping[Cause, float]
    batches: int
    traced_batches: int = 0
    """Of them, those that something was traced for."""
    clips: int
    samples: int
    padded_samples: int
    """Samples with their padding."""
    clips_per_s: float | None
    audio_seconds_per_s: float | None
    """Both without batches that something was traced for; None where there are no others."""
    retraces: int
    """Batches whose bucket had another shape before, or for which something was traced again."""
    flow: Flow | None
    memory: tuple[MemoryUse, ...] = ()

    @property
    def loss(self) -> float | None:
        """The mean over the steps."""
        return math.fsum(self.losses) / len(self.losses) if self.losses else None

    @property
    def loss_parts(self) -> dict[str, float]:
        """The losses that stand beside the loss, by what they are of."""
        return {name.removesuffix("_loss"): value for name, value in self.scalars.items() if name.endswith("_loss")}

    @property
    def step_s(self) -> float | None:
        """The mean time of the steps that count."""
        return math.fsum(self.step_times_s) / len(self.step_times_s) if self.step_times_s else None

    @property
    def data_stall(self) -> float | None:
        """Share of the time after start-up in which the training waited for a batch."""
        loop_s = math.fsum(seconds for cause, seconds in self.spent.items() if cause is not Cause.START_UP)
        return self.spent.get(Cause.DATA_STALL, 0.0) / loop_s if loop_s > 0 else None


@dataclass(frozen=True, kw_only=True)
class ValidationRow:
    """A round of validation."""

    kind: ClassVar[str] = "validation"
    time_s: float
    step: int
    loss: float
    scalars: Mapping[str, float] = field(default_factory=dict)
    is_best: bool = False


@dataclass(frozen=True, kw_only=True)
class EventRow:
    """Something worth telling happened."""

    kind: ClassVar[str] = "event"
    time_s: float
    step: int
    name: str
    """In a word or two: checkpoint, producer died, shrunk, set aside, skipped update."""
    text: str


@dataclass(frozen=True, kw_only=True)
class SummaryRow:
    """A session of the run ended in order."""

    kind: ClassVar[str] = "summary"
    time_s: float
    step: int
    status: str
    """finished, stopped, failed."""
    spent: Mapping[Cause, float]
    """Since the last train row."""
    figures: Mapping[str, Any] = field(default_factory=dict)
    """What the summary said."""


@dataclass(frozen=True, kw_only=True)
class MachineRow:
    """What cards and host did since the row of this kind before."""

    kind: ClassVar[str] = "machine"
    time_s: float
    step: int
    cards: tuple[CardSummary, ...]
    """Of the run; none in a rehearsal."""
    host: HostSummary


Row = RunRow | TrainRow | ValidationRow | EventRow | SummaryRow | MachineRow


def dump_row(row: Row) -> dict[str, Any]:
    """A row as JSON. Numbers that JSON does not know (a loss that is not finite) become their names."""
    return {"kind": row.kind, **name_infinities(asdict(row))}


def load_row(content: Mapping[str, Any]) -> Row:
    """A row from JSON; keys of other versions are ignored.

    Raises:
        KeyError, TypeError, ValueError: something is missing or is no row.
    """
    return _LOADERS[content["kind"]](content)


def name_infinities(value: Any) -> Any:
    """JSON values without numbers that JSON does not know."""
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    if isinstance(value, Mapping):
        return {str(key): name_infinities(entry) for key, entry in value.items()}
    if isinstance(value, list | tuple):
        return [name_infinities(entry) for entry in value]
    return value


_LATER_RUN_KEYS = ("settings", "environment", "around", "lost_s", "predicted_step_s")


def _load_run(content: Mapping[str, Any]) -> RunRow:
    names = ("time_s", "step", "end_step", "stage", "mode", "devices")
    optional = {name: content[name] for name in _LATER_RUN_KEYS if name in content}
    return RunRow(**{name: content[name] for name in names}, **optional)


def _load_train(content: Mapping[str, Any]) -> TrainRow:
    plain = ("time_s", "step", "epoch", "left_out", "batches", "clips", "samples", "padded_samples", "retraces")
    return TrainRow(
        **{name: content[name] for name in plain},
        traced_batches=content.get("traced_batches", 0),
        losses=tuple(float(loss) for loss in content["losses"]),
        learning_rate=_load_float(content["learning_rate"]),
        scalars=_load_floats(content["scalars"]),
        step_times_s=tuple(content["step_times_s"]),
        spent=_load_spent(content["spent"]),
        clips_per_s=content["clips_per_s"],
        audio_seconds_per_s=content["audio_seconds_per_s"],
        flow=_load_flow(content["flow"]) if content["flow"] is not None else None,
        memory=tuple(_load_memory(use) for use in content["memory"]),
    )


def _load_memory(use: Mapping[str, Any]) -> MemoryUse:
    later = {name: use.get(name) for name in ("pool_bytes", "process_bytes", "context_bytes")}
    return MemoryUse(use["device"], use["used_bytes"], use["limit_bytes"], **later)


def _load_validation(content: Mapping[str, Any]) -> ValidationRow:
    return ValidationRow(
        time_s=content["time_s"],
        step=content["step"],
        loss=float(content["loss"]),
        scalars=_load_floats(content["scalars"]),
        is_best=content["is_best"],
    )


def _load_event(content: Mapping[str, Any]) -> EventRow:
    return EventRow(**{name: content[name] for name in ("time_s", "step", "name", "text")})


def _load_summary(content: Mapping[str, Any]) -> SummaryRow:
    plain = {name: content[name] for name in ("time_s", "step", "status", "figures")}
    return SummaryRow(**plain, spent=_load_spent(content["spent"]))


def _load_machine(content: Mapping[str, Any]) -> MachineRow:
    return MachineRow(
        time_s=content["time_s"],
        step=content["step"],
        cards=tuple(_load_card(card) for card in content["cards"]),
        host=HostSummary(**content["host"]),
    )


def _load_card(card: Mapping[str, Any]) -> CardSummary:
    reasons = card["throttled_by"]
    return CardSummary(**{**card, "throttled_by": None if reasons is None else tuple(reasons)})


def _load_float(value: float | str | None) -> float | None:
    return None if value is None else float(value)


def _load_floats(values: Mapping[str, float | str]) -> dict[str, float]:
    return {name: float(value) for name, value in values.items()}


def _load_spent(spent: Mapping[str, float]) -> dict[Cause, float]:
    return {Cause(cause): float(seconds) for cause, seconds in spent.items()}


def _load_flow(flow: Mapping[str, Any]) -> Flow:
    return Flow(
        flow["elapsed_s"],
        tuple(StageFacts(stage["name"], stage["items"], stage["busy_s"]) for stage in flow["stages"]),
        tuple(
            HandoffFacts(
                handoff["name"],
                handoff["items"],
                handoff["giver_wait_s"],
                handoff["taker_wait_s"],
                handoff["readiness"],
            )
            for handoff in flow["handoffs"]
        ),
    )


_LOADERS: Mapping[str, Callable[[Mapping[str, Any]], Row]] = {
    RunRow.kind: _load_run,
    TrainRow.kind: _load_train,
    ValidationRow.kind: _load_validation,
    EventRow.kind: _load_event,
    SummaryRow.kind: _load_summary,
    MachineRow.kind: _load_machine,
}
