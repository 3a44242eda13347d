"""Small charts as inline SVG: lines, histograms, stacked bars, lanes over time. Colours are the page's (`c0`, `c1`, ...).

Shapes are put together by `Markup.format`, which escapes whatever it is given."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from markupsafe import Markup

from myxtts.units import format_step_time

WIDTH, HEIGHT = 720, 240
LEFT, RIGHT, TOP, BOTTOM = 64, 16, 12, 40
MOST_POINTS = 600
"""More would not be seen, and a long run has millions of steps."""
COLOURS = 10
"""Of the style sheet."""
FEWEST_BARS, MOST_BARS = 8, 40
"""Of a histogram."""
ROW_HEIGHT = 28
"""Of a stacked bar."""
LANE_HEIGHT, BAR_HEIGHT, LANE_LEFT, AXIS_HEIGHT = 30, 20, 72, 24
"""Of the lanes over time, and the room for their names."""
DIGIT_WIDTH = 7
LEAST_WIDTH = 1.5
"""Of a bar in a lane: what is short must still be seen."""

_BAR = '<rect class="c{}" x="{:.1f}" y="{:.1f}" width="{:.1f}" height="{:.1f}"><title>{}</title></rect>'
_UNSEEN = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\ud800-\udfff]")

Point = tuple[float, float | None]
"""A y of None, or one that is not finite, leaves a gap."""
Lane = tuple[str, Sequence[tuple[str, float, float]]]
"""A name, and pieces of work: of each the name, and when it began and ended in seconds."""


@dataclass(frozen=True)
class Series:
    """One line of a chart."""

    name: str
    points: Sequence[Point]
    dots: bool = False
    """Mark every point: for curves of few."""


@dataclass(frozen=True)
class BarPart:
    """One piece of a stacked bar."""

    name: str
    share: float
    colour: int


def make_visible(value: Any) -> Any:
    """A text in which characters that cannot be seen, or are no text, stand by their number; markup stays as it is."""
    if not isinstance(value, str) or isinstance(value, Markup):
        return value
    return _UNSEEN.sub(lambda found: found[0].encode("unicode_escape").decode(), value)


def draw_lines(
    series: Sequence[Series],
    x_name: str,
    format_y: Callable[[float], str],
    *,
    from_zero: bool = False,
    y_max: float | None = None,
    otherwise: str = "No finite value yet.",
) -> Markup:
    """A line chart with its legend, of the series that have a value at all; where none has any, `otherwise` is said, if anything."""
    thinned = [Series(one.name, thin_points(one.points), one.dots) for one in series]
    thinned = [one for one in thinned if any(y is not None and math.isfinite(y) for _, y in one.points)]
    known = [(x, y) for one in thinned for x, y in one.points if y is not None and math.isfinite(y)]
    if not known:
        return _draw('<p class="unknown">{}</p>', otherwise) if otherwise else Markup()
    xs, ys = [x for x, _ in known], [y for _, y in known]
    x_axis = Axis(min(xs), max(xs), LEFT, WIDTH - RIGHT)
    y_axis = Axis(0.0 if from_zero else min(ys), y_max if y_max is not None else max(ys), HEIGHT - BOTTOM, TOP)
    shapes = [*_draw_frame(x_axis, y_axis, x_name, format_y)]
    for number, one in enumerate(thinned):
        shapes += _draw_series(one, number % COLOURS, x_axis, y_axis)
    label = f"{', '.join(one.name for one in thinned)} by {x_name}"
    legend = _draw_legend((one.name, number % COLOURS) for number, one in enumerate(thinned))
    return _wrap(shapes, HEIGHT, label) + legend


def draw_histogram(values: Sequence[float], format_x: Callable[[float], str]) -> Markup:
    """How often which value occurs. The slowest one in a hundred share the last bar, so that one outlier hides nothing."""
    low, high = min(values), float(np.quantile(values, 0.99))
    if high <= low:
        low, high = low * 0.9, low * 1.1 or 1.0
    # More bars than a few values can fill would be a comb.
    bars = max(FEWEST_BARS, min(MOST_BARS, 2 * math.isqrt(len(values))))
    counts, edges = np.histogram(np.minimum(values, high), bars, (low, high))
    return draw_counts(counts.tolist(), edges.tolist(), format_x)


def draw_counts(counts: Sequence[int], edges: Sequence[float], format_x: Callable[[float], str]) -> Markup:
    """A bar for every count, between its edges."""
    x_axis = Axis(edges[0], edges[-1], LEFT, WIDTH - RIGHT)
    y_axis = Axis(0.0, float(max(counts)), HEIGHT - BOTTOM, TOP)
    # There is no half of an occurrence.
    shapes = [*_draw_frame(x_axis, y_axis, "", lambda count: f"{count:g}" if count.is_integer() else "", format_x)]
    for count, left, right in zip(counts, edges[:-1], edges[1:], strict=True):
        if count:
            top, x = y_axis.place(count), x_axis.place(left)
            title = f"{format_x(left)} to {format_x(right)}: {count}"
            width, height = x_axis.place(right) - x - 1, y_axis.place(0) - top
            shapes.append(_draw(_BAR, 0, x + 0.5, top, width, height, title))
    return _wrap(shapes, HEIGHT, "Histogram")


def draw_bars(rows: Sequence[tuple[str, Sequence[BarPart]]]) -> Markup:
    """A stacked bar per row, each as wide as the whole of 1, with the legend of all parts."""
    shapes: list[Markup] = []
    label_width = 12 + 8 * max((len(name) for name, _ in rows), default=0)
    room = WIDTH - label_width - RIGHT
    for number, (name, parts) in enumerate(rows):
        top, left = number * ROW_HEIGHT + 4, float(label_width)
        shapes.append(_draw('<text x="{}" y="{}" text-anchor="end">{}</text>', label_width - 8, top + 15, name))
        rest = '<rect class="rest" x="{:.1f}" y="{}" width="{}" height="{}"/>'
        shapes.append(_draw(rest, left, top, room, ROW_HEIGHT - 8))
        for part in parts:
            width = min(part.share * room, label_width + room - left)
            title = f"{name}: {part.name} {part.share:.1%}"
            shapes.append(_draw(_BAR, part.colour, left, top, width, ROW_HEIGHT - 8, title))
            if width > 44:
                shapes.append(_draw_middle(left + width / 2, top + 15, f"{part.share:.0%}"))
            left += width
    legend = dict.fromkeys((part.name, part.colour) for _, parts in rows for part in parts)
    return _wrap(shapes, len(rows) * ROW_HEIGHT + 4, "Shares of the time") + _draw_legend(legend)


def draw_timeline(lanes: Sequence[Lane], began_s: float, ended_s: float) -> Markup:
    """Who did what when: lanes over one axis of time. What lies outside these seconds is left out."""
    axis = Axis(0.0, ended_s - began_s, LANE_LEFT, WIDTH - RIGHT)
    shapes: list[Markup] = []
    for number, (name, works) in enumerate(lanes):
        top = number * LANE_HEIGHT + 4
        line = top + BAR_HEIGHT + 4
        shapes.append(_draw('<text x="{}" y="{}" text-anchor="end">{}</text>', LANE_LEFT - 8, top + 15, name))
        shapes.append(
            _draw('<line class="grid" x1="{}" x2="{}" y1="{}" y2="{}"/>', LANE_LEFT, WIDTH - RIGHT, line, line)
        )
        bars: list[Markup] = []
        for work, first_s, last_s in works:
            if last_s > began_s and first_s < ended_s:
                left, right = axis.place(first_s - began_s), axis.place(last_s - began_s)
                width = max(LEAST_WIDTH, right - left - 0.6)
                title = f"{name} {work}: {format_step_time(last_s - first_s)}"
                bars.append(_draw(_BAR, number, left, top, width, BAR_HEIGHT, title))
                if width > DIGIT_WIDTH * len(work) + 4:
                    bars.append(_draw_middle(left + width / 2, top + 14, work))
        # A lane without a bar would look like a fault of the picture.
        nothing = '<text x="{}" y="{}">nothing in this time: it was done before</text>'
        shapes += bars or [_draw(nothing, LANE_LEFT + 8, top + 15)]
    bottom = len(lanes) * LANE_HEIGHT + 4
    shapes += [
        _draw('<text x="{:.1f}" y="{}" text-anchor="middle">{}</text>', axis.place(tick), bottom + 14,
              format_step_time(tick) if tick else "0")
        for tick in axis.list_ticks(8)
        # A label in the last part would not fit.
        if axis.place(tick) < WIDTH - RIGHT - DIGIT_WIDTH
    ]  # fmt: skip
    return _wrap(shapes, bottom + AXIS_HEIGHT, "Stages over time")


def thin_points(points: Sequence[Point]) -> Sequence[Point]:
    """At most `MOST_POINTS` points: each the mean of its neighbours. A gap stays where none of them is known."""
    if len(points) <= MOST_POINTS:
        return points
    thinned: list[Point] = []
    for group in np.array_split(np.arange(len(points)), MOST_POINTS):
        known = [y for _, y in (points[index] for index in group) if y is not None and math.isfinite(y)]
        thinned.append((points[group[-1]][0], math.fsum(known) / len(known) if known else None))
    return thinned


@dataclass(frozen=True)
class Axis:
    """Values to pixels."""

    low: float
    high: float
    start: float
    end: float

    def place(self, value: float) -> float:
        span = self.high - self.low
        share = (value - self.low) / span if span else 0.5
        return self.start + min(1.0, max(0.0, share)) * (self.end - self.start)

    def list_ticks(self, most: int) -> list[float]:
        """Round numbers within the axis, at most so many."""
        span = self.high - self.low
        if span <= 0:
            return [self.low]
        rough = span / most
        magnitude = 10.0 ** math.floor(math.log10(rough))
        step = next(factor * magnitude for factor in (1, 2, 5, 10) if factor * magnitude >= rough * 0.999999)
        first = math.ceil(self.low / step - 1e-9)
        return [number * step for number in range(first, math.floor(self.high / step + 1e-9) + 1)]


def _draw(pattern: str, *values: object) -> Markup:
    return Markup(pattern).format(*map(make_visible, values))


def _draw_middle(x: float, y: float, text: str) -> Markup:
    return _draw('<text class="on" x="{:.1f}" y="{}" text-anchor="middle">{}</text>', x, y, text)


def _draw_frame(
    x_axis: Axis,
    y_axis: Axis,
    x_name: str,
    format_y: Callable[[float], str],
    format_x: Callable[[float], str] = lambda value: f"{value:,.0f}",
) -> Iterable[Markup]:
    bottom = HEIGHT - BOTTOM
    for value in y_axis.list_ticks(5):
        y = y_axis.place(value)
        yield _draw('<line class="grid" x1="{}" x2="{}" y1="{:.1f}" y2="{:.1f}"/>', LEFT, WIDTH - RIGHT, y, y)
        yield _draw('<text x="{}" y="{:.1f}" text-anchor="end">{}</text>', LEFT - 6, y + 4, format_y(value))
    for value in x_axis.list_ticks(8):
        x = x_axis.place(value)
        # In the middle of its tick, the last one would be cut off by the edge of the picture.
        anchor = "end" if x > WIDTH - 2 * RIGHT else "middle"
        yield _draw('<text x="{:.1f}" y="{}" text-anchor="{}">{}</text>', x, bottom + 16, anchor, format_x(value))
    yield _draw('<text x="{}" y="{}" text-anchor="end">{}</text>', WIDTH - RIGHT, bottom + 34, x_name)


def _draw_series(series: Series, colour: int, x_axis: Axis, y_axis: Axis) -> Iterable[Markup]:
    """A line per stretch without a gap."""
    stretches: list[list[str]] = [[]]
    for x, y in series.points:
        if y is None or not math.isfinite(y):
            stretches.append([])
            continue
        left, top = f"{x_axis.place(x):.1f}", f"{y_axis.place(y):.1f}"
        stretches[-1].append(f"{left},{top}")
        if series.dots:
            dot = '<circle class="c{}" cx="{}" cy="{}" r="3"><title>{:g}: {:.4g}</title></circle>'
            yield _draw(dot, colour, left, top, x, y)
    for places in stretches:
        if len(places) > 1:
            yield _draw('<polyline class="c{}" points="{}"/>', colour, " ".join(places))


def _draw_legend(entries: Iterable[tuple[str, int]]) -> Markup:
    items = (_draw('<span><i class="c{}"></i>{}</span>', colour, name) for name, colour in entries)
    return _draw('<p class="legend">{}</p>', Markup().join(items))


def _wrap(shapes: Iterable[Markup], height: float, label: str) -> Markup:
    content = Markup().join(shapes)
    return _draw('<svg viewBox="0 0 {} {}" role="img" aria-label="{}">{}</svg>', WIDTH, height, label, content)
