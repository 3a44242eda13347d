"""The metrics file of a run, `metrics.jsonl`: one JSON object per line, appended as it happens; the source of truth."""

from __future__ import annotations

import json
import logging
import math
import os
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from datetime import MAXYEAR, UTC, datetime
from pathlib import Path
from typing import Annotated, Any, ClassVar, Self, get_args

from pydantic import BeforeValidator, Field

from myxtts.errors import NotARunError
from myxtts.files import FileError, WriteError, fit_shape, iter_lines, open_file_atomically, parse_json
from myxtts.monitoring.clock import Cause, Flow, StepClock, TimeLedger, measure_elapsed, measure_training, subtract_flow
from myxtts.monitoring.sampler import CardSummary, HostSummary
from myxtts.pipeline.batch import BatchFacts
from myxtts.units import SAMPLE_RATE_HZ, format_bytes

_log = logging.getLogger(__name__)


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
    """The machine, as far as advice depends on it (`findings.MachineFacts`)."""
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
    peak_bytes: int | None = None
    """The most that TensorFlow has held."""

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


@dataclass(frozen=True, kw_only=True)
class MachineRow(_Row):
    """What cards and host did since the row of this kind before."""

    kind: ClassVar[str] = "machine"
    cards: tuple[CardSummary, ...]
    """Of the run; none in a rehearsal."""
    host: HostSummary


Row = RunRow | TrainRow | ValidationRow | EventRow | SummaryRow | MachineRow


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


FILE_NAME = "metrics.jsonl"
LOG_NAME = "run.log"
"""Of what a run says, beside its metrics."""


@dataclass(frozen=True)
class Metrics:
    """The rows of a run, in the order in which they were written."""

    rows: tuple[Row, ...]
    unreadable: int
    """Lines that are no rows: one torn by a crash, or damage."""


class MetricsLog:
    """Appends rows to a metrics file. Each is with the operating system before `write` returns, so no kill loses it."""

    def __init__(self, path: Path):
        self._path = path
        path.parent.mkdir(parents=True, exist_ok=True)
        # Unbuffered: a row is one write, and a killed process leaves at most its last line torn.
        self._file = open(path, "ab", buffering=0)  # noqa: SIM115  closed by `close`
        self._good_bytes = self._file.seek(0, os.SEEK_END)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def write(self, row: Row) -> None:
        """Appends a row. Raises `WriteError` when it cannot be written whole; then nothing of it is."""
        # Numbers that JSON does not know (a loss that is not finite) become their names.
        content = {"kind": row.kind, **name_infinities(asdict(row))}
        line = json.dumps(content, ensure_ascii=False, allow_nan=False, separators=(",", ":")).encode() + b"\n"
        try:
            written = self._file.write(line)
            if written != len(line):
                raise OSError(f"{written} of {len(line)} bytes were written")
        except OSError as error:
            self._file.truncate(self._good_bytes)
            raise WriteError(
                self._path, f"a row could not be written ({error}). Make room on that disk, then resume the run."
            ) from error
        self._good_bytes += len(line)

    def close(self) -> None:
        self._file.close()


def open_metrics_log(
    path: Path, resumed_step: int | None = None, *, is_validated: bool = True
) -> tuple[MetricsLog, float]:
    """The log of a run that starts anew, or is resumed with so many updates done, and the time in seconds that rows had booked
    which a resume took away: it bought steps that are now done again.

    On resume, rows after that step and lines torn by a crash are cut away, in one step: whatever happens, the file is the
    old one or the new one. A new run begins with an empty file. Where that step's validation is to be done again
    (`is_validated`), its row is cut away too.
    """
    lost_s, unreadable, cut = 0.0, 0, 0
    if resumed_step is None:
        path.unlink(missing_ok=True)
    elif path.exists():
        kept: list[bytes] = []
        for line, row in _read_lines(path):
            is_undone = isinstance(row, ValidationRow) and row.step == resumed_step and not is_validated
            if row is None:
                unreadable += 1
            elif row.step > resumed_step or is_undone:
                cut += 1
                lost_s += measure_elapsed(row.spent) if isinstance(row, TrainRow | SummaryRow) else 0.0
                lost_s += row.lost_s if isinstance(row, RunRow) else 0.0
            else:
                kept.append(line)
        if unreadable or cut:
            with open_file_atomically(path) as file:
                file.writelines(kept)
    if unreadable:
        _log.warning("%s: %d unreadable lines were removed.", path, unreadable)
    return MetricsLog(path), lost_s


def read_metrics(path: Path) -> Metrics:
    """The rows of a metrics file of a finished, a stopped or a running run."""
    rows = [row for _, row in _read_lines(path)]
    good = tuple(row for row in rows if row is not None)
    if not good:
        raise NotARunError(f"{path}: holds no rows of a run (yet).")
    return Metrics(good, len(rows) - len(good))


def list_losses(metrics: Metrics) -> list[tuple[int, float]]:
    """The loss of every step: pairs of updates done and loss."""
    trained = [row for row in metrics.rows if isinstance(row, TrainRow)]
    return [pair for row in trained for pair in enumerate(row.losses, start=row.step - len(row.losses) + 1)]


def _read_lines(path: Path) -> Iterator[tuple[bytes, Row | None]]:
    """Every line with its row, None where it is none. A last line without its end counts as torn."""
    try:
        for line in iter_lines(path):
            row = None
            if line.endswith(b"\n"):
                with suppress(ValueError):
                    content = parse_json(line)
                    kind = content.get("kind") if isinstance(content, dict) else None
                    # Keys of other versions are ignored.
                    row = fit_shape(content, _KINDS[kind]) if isinstance(kind, str) and kind in _KINDS else None
            yield line, row
    except FileError as error:
        raise NotARunError(f"{error} Give the folder of a run that has trained.") from error


class IntervalMeter:
    """Counts batches between two log lines. Per batch it adds some numbers; all else happens in `close`."""

    def __init__(self, clock: StepClock, ledger: TimeLedger):
        self._clock, self._ledger = clock, ledger
        self._flow: Flow | None = None
        self._counts, self._timed = Counter[str](), Counter[str]()

    def count_batch(self, facts: BatchFacts, *, has_traced: bool = False, is_retrace: bool = False) -> None:
        """A batch was trained on. Where something was traced for it, its time is no time of training, so rates leave it out."""
        sizes = {"clips": facts.clips, "samples": facts.samples}
        self._counts.update(sizes, batches=1, padded_samples=facts.padded_samples)
        self._counts.update(retraces=is_retrace, traced_batches=has_traced)
        if not has_traced:
            self._timed.update(sizes)

    def close(self, flow: Flow, **facts: Any) -> TrainRow:
        """The row of everything since the last one.
        Of `flow`, counted from the start of the pipeline, it gets what is new; `facts` are all that is not counted here."""
        durations_s, left_out = self._clock.take_window()
        spent, counts, timed, last_flow = self._ledger.take_window(), self._counts, self._timed, self._flow
        self._counts, self._timed, self._flow = Counter(), Counter(), flow
        training_s = measure_training(spent)
        is_timed = timed["clips"] > 0 and training_s > 0
        for name in ("batches", "clips", "samples", "padded_samples", "retraces", "traced_batches"):
            facts[name] = counts[name]
        return TrainRow(
            time_s=time.time(),
            step_times_s=tuple(durations_s),
            left_out=left_out,
            spent=spent,
            clips_per_s=timed["clips"] / training_s if is_timed else None,
            audio_seconds_per_s=timed["samples"] / SAMPLE_RATE_HZ / training_s if is_timed else None,
            flow=subtract_flow(flow, last_flow),
            **facts,
        )
