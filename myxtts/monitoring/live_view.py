"""The run while it goes on: a live view in a terminal, else one plain line per log interval."""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import TextIO

from rich.console import Console
from rich.live import Live
from rich.text import Text

from myxtts.monitoring.clock import TRAINING, Flow, Progress, StepTimes
from myxtts.monitoring.metrics import TrainRow, ValidationRow
from myxtts.units import (
    UNKNOWN,
    format_count,
    format_duration,
    format_number,
    format_parts,
    format_share,
    format_step_time,
)

_log = logging.getLogger(__name__)

COLUMNS = 80
BAR_WIDTH = 40
WAIT_WIDTH = 12
MOST_PREPARERS = 8
GAP = "   "
BAR, ASCII_BAR = ("━", "╌"), ("#", "-")
"""Full and empty."""


@dataclass(frozen=True)
class Picture:
    """What is shown at one moment."""

    row: TrainRow
    progress: Progress
    times: StepTimes | None = None
    """Since the start of the session."""
    validation: ValidationRow | None = None
    """The last one."""


Show = Callable[[Picture], None]


@contextmanager
def open_view(stage: str, mode: str, out: TextIO | None = None) -> Iterator[Show]:
    """What shows a picture, as suits the stream (by default standard output): live in a terminal, else as one plain line."""
    stream = out or sys.stdout
    # It draws with the very sequences that the command line takes out of what is only told.
    console = Console(file=getattr(stream, "unescaped", stream), highlight=False)
    # A dumb terminal cannot move its cursor, so it gets lines too.
    if console.is_terminal and not console.is_dumb_terminal:
        with _open_live(f"{stage}, {mode} mode", console) as show:
            yield show
    else:
        yield _make_plain_view(stage, stream)


def _make_plain_view(stage: str, out: TextIO) -> Show:
    """One line per picture, with the stage in front: a run may train a codec first, and the lines of both are alike."""
    readers = [out]

    def show(picture: Picture) -> None:
        try:
            for reader in readers:
                reader.write(f"{stage}  {format_line(picture)}\n")
                reader.flush()
        except BrokenPipeError:
            # Of a driver that was killed, or a terminal that was closed: what was trained is worth more than who looks on.
            readers.clear()
            _log.warning(
                "Nobody reads what this run shows any more. It goes on; its log and metrics are in its folder."
            )

    return show


@contextmanager
def _open_live(title: str, console: Console) -> Iterator[Show]:
    """Draws each picture over the one before; lines of the log scroll by above it."""
    terminal = sys.stderr
    # No refreshing thread: it would draw in the middle of a step, and nothing changes between two pictures.
    with Live(console=console, auto_refresh=False, redirect_stderr=terminal.isatty()) as live, ExitStack() as undo:
        for handler in logging.getLogger("myxtts").handlers:
            if isinstance(handler, logging.StreamHandler) and handler.stream is terminal:
                # It holds the stream from before, and its lines would tear the picture; the live view's scroll by above.
                handler.setStream(sys.stderr)
                undo.callback(handler.setStream, terminal)

        def show(picture: Picture) -> None:
            lines = format_picture(title, picture, console.options.ascii_only)
            live.update(Text("\n".join(lines), no_wrap=True), refresh=True)

        yield show


def format_line(picture: Picture) -> str:
    """The picture as one plain line."""
    row, progress = picture.row, picture.progress
    parts = [
        f"step {row.step}/{progress.end_step}",
        f"epoch {_format_epoch(picture)}",
        f"loss {format_number(row.loss)}" + (f" ({parts})" if (parts := format_parts(row.loss_parts)) else ""),
        f"lr {format_number(row.learning_rate, 3)}",
        *([] if row.step_s is None else [f"{format_step_time(row.step_s)}/step"]),
        *_list_rates(row),
        *([] if row.data_stall is None else [f"waits {format_share(row.data_stall)}"]),
        *([] if progress.step_s is None else [f"left {format_duration(progress.measure_until(progress.end_step))}"]),
    ]
    return "  ".join(parts)


def format_picture(title: str, picture: Picture, is_ascii: bool = False) -> list[str]:
    """The picture as lines of at most 80 columns."""
    row, progress, tested = picture.row, picture.progress, picture.validation
    steps = f"step {format_count(row.step)} of {format_count(progress.end_step)}"
    validation = "-" if tested is None else f"{format_number(tested.loss)} (step {format_count(tested.step)})"
    p95_s = None if picture.times is None else picture.times.p95_s
    step_time = f"step time {format_step_time(row.step_s)} (p95 {format_step_time(p95_s)})"
    checkpoint, left = "none", format_duration(progress.measure_until(progress.end_step))
    if progress.next_checkpoint is not None:
        ahead = format_count(progress.next_checkpoint - progress.step)
        checkpoint = f"in {ahead} steps ({format_duration(progress.measure_until(progress.next_checkpoint))})"
    lines = [
        f"{title}   {steps}   epoch {_format_epoch(picture)}",
        f"{_draw_bar(progress.share, BAR_WIDTH, is_ascii)} {format_share(progress.share)}   left {left}",
        f"loss {format_number(row.loss)}   validation {validation}   lr {format_number(row.learning_rate, 3)}",
        *([parts] if (parts := format_parts(row.loss_parts)) else []),
        GAP.join([step_time, *_list_rates(row)]),
        *(_format_waits(row.flow, is_ascii) if row.flow is not None else ["who waits: unknown"]),
        *_wrap("memory", [str(use) for use in row.memory] or [UNKNOWN]),
        f"next checkpoint {checkpoint}",
    ]
    return [line[:COLUMNS] for line in lines]


def _wrap(head: str, parts: Sequence[str]) -> list[str]:
    """Parts behind a word, in as many lines as they need; none is broken."""
    lines = [head + GAP + parts[0]]
    for part in parts[1:]:
        if len(lines[-1] + GAP + part) <= COLUMNS:
            lines[-1] += GAP + part
        else:
            lines.append(" " * len(head + GAP) + part)
    return lines


def _format_epoch(picture: Picture) -> str:
    epochs = picture.progress.epochs
    return f"{picture.row.epoch + 1}" + (f" of {epochs}" if epochs else "")


def _list_rates(row: TrainRow) -> list[str]:
    rates = ((row.clips_per_s, "clips/s"), (row.audio_seconds_per_s, "audio-s/s"))
    return [f"{format_number(rate, 3)} {unit}" for rate, unit in rates if rate is not None]


def _format_waits(flow: Flow, is_ascii: bool) -> list[str]:
    """Per hand-off, and per preparer of a cluster, how often a batch was ready, and which side waited; per trainer, for what."""
    sides = [(each, flow.name_giver(number), flow.name_taker(number)) for number, each in enumerate(flow.handoffs)]
    sides += [(each, "itself", TRAINING) for each in flow.preparers[:MOST_PREPARERS]]
    width = max((len(each.name) for each, *_ in sides), default=0)
    more = len(flow.preparers) - MOST_PREPARERS
    lines = [
        f"{each.name:<{width}}  {_draw_bar(each.readiness, WAIT_WIDTH, is_ascii)} ready {format_share(each.readiness, 0):>4}   "
        f"waits: {giver} {format_share(flow.share(each.giver_wait_s), 0)}, {taker} {format_share(flow.share(each.taker_wait_s), 0)}"
        for each, giver, taker in sides
    ]
    lines += [f"and {more} more preparers"] if more > 0 else []
    for each in flow.trainers[:MOST_PREPARERS]:
        others, data = (format_share(flow.share(wait_s), 0) for wait_s in (each.giver_wait_s, each.taker_wait_s))
        lines.append(f"{each.name}  waits: for its batches {data}, for other trainers {others}")
    more = len(flow.trainers) - MOST_PREPARERS
    return [*lines, *([f"and {more} more trainers"] if more > 0 else [])]


def _draw_bar(share: float, width: int, is_ascii: bool) -> str:
    """A bar of which a share is filled."""
    full, empty = ASCII_BAR if is_ascii else BAR
    filled = round(min(1.0, max(0.0, share)) * width)
    return full * filled + empty * (width - filled)
