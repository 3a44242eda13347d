"""What several stages did when, as inline SVG: a lane per stage, a bar per batch."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from html import escape

from myxtts.monitoring.svg import RIGHT, WIDTH, Axis
from myxtts.monitoring.words import format_step_time
from myxtts.pipeline.batch_spans import Span

LANE_HEIGHT, BAR_HEIGHT, LABEL_WIDTH, AXIS_HEIGHT = 30, 20, 72, 24
_DIGIT_WIDTH = 7
_LEAST_WIDTH = 1.5
"""Of a bar: what is short must still be seen."""


@dataclass(frozen=True)
class Bar:
    """One piece of work."""

    span: Span
    name: str


@dataclass(frozen=True)
class Lane:
    """A row of the picture."""

    name: str
    bars: Sequence[Bar]
    colour: int


def draw_timeline(lanes: Sequence[Lane], window: Span) -> str:
    """The lanes over one axis of time; what lies outside the window is left out."""
    axis = Axis(0.0, window.seconds, LABEL_WIDTH, WIDTH - RIGHT)
    shapes: list[str] = []
    for number, lane in enumerate(lanes):
        top = number * LANE_HEIGHT + 4
        shapes.append(f'<text x="{LABEL_WIDTH - 8}" y="{top + 15}" text-anchor="end">{escape(lane.name)}</text>')
        shapes.append(
            f'<line class="grid" x1="{LABEL_WIDTH}" x2="{WIDTH - RIGHT}" y1="{top + BAR_HEIGHT + 4}" y2="{top + BAR_HEIGHT + 4}"/>'
        )
        bars = [shape for bar in lane.bars for shape in _draw_bar(bar, lane, axis, top, window.began_s)]
        # A lane without a bar would look like a fault of the picture.
        shapes += bars or [
            f'<text x="{LABEL_WIDTH + 8}" y="{top + 15}">nothing in this time: it was done before</text>'
        ]
    bottom = len(lanes) * LANE_HEIGHT + 4
    shapes += [
        f'<text x="{axis.place(tick):.1f}" y="{bottom + 14}" text-anchor="middle">{_format_tick(tick)}</text>'
        for tick in axis.list_ticks(8)
        # A label in the last part would not fit.
        if axis.place(tick) < WIDTH - RIGHT - _DIGIT_WIDTH
    ]
    height = bottom + AXIS_HEIGHT
    return f'<svg viewBox="0 0 {WIDTH} {height}" role="img" aria-label="Stages over time">{"".join(shapes)}</svg>'


def _draw_bar(bar: Bar, lane: Lane, axis: Axis, top: int, start_s: float) -> list[str]:
    began, ended = bar.span.began_s - start_s, bar.span.ended_s - start_s
    if ended <= axis.low or began >= axis.high:
        return []
    left, right = axis.place(began), axis.place(ended)
    width = max(_LEAST_WIDTH, right - left - 0.6)
    title = f"{lane.name} {bar.name}: {format_step_time(bar.span.seconds)}"
    shapes = [
        f'<rect class="c{lane.colour}" x="{left:.1f}" y="{top}" width="{width:.1f}" height="{BAR_HEIGHT}">'
        f"<title>{escape(title)}</title></rect>"
    ]
    if width > _DIGIT_WIDTH * len(bar.name) + 4:
        middle = left + width / 2
        shapes.append(
            f'<text class="on" x="{middle:.1f}" y="{top + 14}" text-anchor="middle">{escape(bar.name)}</text>'
        )
    return shapes


def _format_tick(seconds: float) -> str:
    return format_step_time(seconds) if seconds else "0"
