"""The rows of a run's metrics file: what each kind holds, as JSON and back."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from datetime import MAXYEAR, UTC, datetime
from typing import Annotated, Any, ClassVar, get_args

from pydantic import BeforeValidator, Field

from myxtts.files import fit_shape
from myxtts.monitoring.card_summary import CardSummary, HostSummary
from myxtts.monitoring.flow import Flow
from myxtts.monitoring.time_ledger import Cause
from myxtts.monitoring.words import format_bytes

_NAMED = {str(value): value for value in (math.nan, math.inf, -math.inf)}

Loss = Annotated[float, BeforeValidator(lambda value: _NAMED.get(value, value) if isinstance(value, str) else value)]
"""Of a run that went wrong it may be infinite or none, which stands in the file by its name."""


Moment = Annotated[float, Field(ge=0, le=datetime(MAXYEAR, 1, 1, tzinfo=UTC).timestamp())]
"""One that a calendar has."""


@dataclass(frozen=True, kw_only=True)
class _Row:
    kind: ClassVar[str]
    time_s: Moment
    """Seconds since the epoch."""
    step: int
    """Updates done."""


@dataclass(frozen=True, kw_only=True)
class RunRow(_Row):
    """A session of the run begins: at the start, and again at every resume."""

    kind: ClassVar[str] = "run"
    end_step: int
    stage: str
    mode: str
    devices: Mapping[str, str]
    """Role to device."""
    settings: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    """The config in force, by section and name, with what was computed for `auto`."""
    environment: Mapping[str, Any] = field(default_factory=dict)
    around: Mapping[str, Any] = field(default_factory=dict)
    """The machine, as far as advice depends on it (`settings_in_force.MachineFacts`)."""
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

    def __str__(self) -> str:
        limit = "" if self.limit_bytes is None else f" of {format_bytes(self.limit_bytes)}"
        return f"{self.device} {format_bytes(self.used_bytes)}{limit}"


@dataclass(frozen=True, kw_only=True)
class TrainRow(_Row):
    """The steps since the row before."""

    kind: ClassVar[str] = "train"
    epoch: int
    losses: tuple[Loss, ...]
    """Of every step, the last one being that of `step`."""
    learning_rate: Loss | None
    scalars: Mapping[str, Loss] = field(default_factory=dict)
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
        # Not fsum: it fails where one is infinite and another minus infinite.
        return sum(self.losses) / len(self.losses) if self.losses else None

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
class ValidationRow(_Row):
    """A round of validation."""

    kind: ClassVar[str] = "validation"
    loss: Loss
    scalars: Mapping[str, Loss] = field(default_factory=dict)
    is_best: bool = False


@dataclass(frozen=True, kw_only=True)
class EventRow(_Row):
    """Something worth telling happened."""

    kind: ClassVar[str] = "event"
    name: str
    """In a word or two: checkpoint, producer died, shrunk, set aside, skipped update."""
    text: str


@dataclass(frozen=True, kw_only=True)
class SummaryRow(_Row):
    """A session of the run ended in order."""

    kind: ClassVar[str] = "summary"
    status: str
    """finished, stopped, failed."""
    spent: Mapping[Cause, float]
    """Since the last train row."""
    figures: Mapping[str, Any] = field(default_factory=dict)
    """What the summary said."""


@dataclass(frozen=True, kw_only=True)
class MachineRow(_Row):
    """What cards and host did since the row of this kind before."""

    kind: ClassVar[str] = "machine"
    cards: tuple[CardSummary, ...]
    """Of the run; none in a rehearsal."""
    host: HostSummary


Row = RunRow | TrainRow | ValidationRow | EventRow | SummaryRow | MachineRow


def dump_row(row: Row) -> dict[str, Any]:
    """A row as JSON. Numbers that JSON does not know (a loss that is not finite) become their names."""
    return {"kind": row.kind, **name_infinities(asdict(row))}


def load_row(content: Any) -> Row:
    """A row from JSON; keys of other versions are ignored. Raises `ValueError` for what is no row."""
    kind = content.get("kind") if isinstance(content, dict) else None
    if not isinstance(kind, str) or kind not in _KINDS:
        raise ValueError(f"there is no kind of row {kind!r}")
    return fit_shape(content, _KINDS[kind])


def name_infinities(value: Any) -> Any:
    """JSON values without numbers that JSON does not know."""
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    if isinstance(value, Mapping):
        return {str(key): name_infinities(entry) for key, entry in value.items()}
    if isinstance(value, list | tuple):
        return [name_infinities(entry) for entry in value]
    return value


_KINDS: Mapping[str, type[Row]] = {row.kind: row for row in get_args(Row)}
