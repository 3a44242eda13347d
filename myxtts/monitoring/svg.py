"""Small charts as inline SVG: lines, a histogram, stacked bars. Colours come from the page's style sheet (`c0`, `c1`, ...)."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from html import escape

import numpy as np

WIDTH, HEIGHT = 720, 240
LEFT, RIGHT, TOP, BOTTOM = 64, 16, 12, 40
MOST_POINTS = 600
"""More would not be seen, and a long run has millions of steps."""
COLOURS = 9
FEWEST_BARS, MOST_BARS = 8, 40
"""Of a histogram."""

Point = tuple[float, float | None]
"""A y of None, or one that is not finite, leaves a gap."""


@dataclass(frozen=True)
class Series:
    """One line of a chart."""

    name: str
    points: Sequence[Point]
    dots: bool = False
    """Mark every point: for curves of few."""


@dataclass(frozen=True)
class Part:
    """One piece of a stacked bar."""

    name: str
    share: float
    colour: int


def draw_lines(
    series: Sequence[Series],
    x_name: str,
    format_y: Callable[[float], str],
    *,
    from_zero: bool = False,
    y_max: float | None = None,
) -> str:
    """A line chart with its legend; None of the series may be empty."""
    thinned = [Series(one.name, thin_points(one.points), one.dots) for one in series]
    known = [(x, y) for one in thinned for x, y in one.points if y is not None and math.isfinite(y)]
    if not known:
        return _say("No finite value yet.")
    xs, ys = [x for x, _ in known], [y for _, y in known]
    x_axis = Axis(min(xs), max(xs), LEFT, WIDTH - RIGHT)
    y_axis = Axis(0.0 if from_zero else min(ys), y_max if y_max is not None else max(ys), HEIGHT - BOTTOM, TOP)
    shapes = [_draw_frame(x_axis, y_axis, x_name, format_y)]
    for number, one in enumerate(thinned):
        shapes += _draw_series(one, number % COLOURS, x_axis, y_axis)
    label = f"{', '.join(one.name for one in series)} by {x_name}"
    return _wrap(shapes, HEIGHT, label) + draw_legend(
        [(one.name, number % COLOURS) for number, one in enumerate(series)]
    )


def draw_histogram(values: Sequence[float], format_x: Callable[[float], str]) -> str:
    """How often which value occurs. The slowest one in a hundred share the last bar, so that one outlier hides nothing."""
    if not values:
        return _say("No value yet.")
    low, high = min(values), float(np.quantile(values, 0.99))
    if high <= low:
        low, high = low * 0.9, low * 1.1 or 1.0
    # More bars than a few values can fill would be a comb.
    bars = max(FEWEST_BARS, min(MOST_BARS, 2 * math.isqrt(len(values))))
    counts, edges = np.histogram(np.minimum(values, high), bars, (low, high))
    x_axis = Axis(low, high, LEFT, WIDTH - RIGHT)
    y_axis = Axis(0.0, float(counts.max()), HEIGHT - BOTTOM, TOP)
    # There is no half of an occurrence.
    shapes = [_draw_frame(x_axis, y_axis, "", lambda count: f"{count:g}" if count.is_integer() else "", format_x)]
    for count, left, right in zip(counts.tolist(), edges[:-1].tolist(), edges[1:].tolist(), strict=True):
        if count:
            top, x = y_axis.place(count), x_axis.place(left)
            shapes.append(
                f'<rect class="c0" x="{x + 0.5:.1f}" y="{top:.1f}" width="{x_axis.place(right) - x - 1:.1f}" '
                f'height="{y_axis.place(0) - top:.1f}"><title>{format_x(left)} to {format_x(right)}: {count}</title></rect>'
            )
    return _wrap(shapes, HEIGHT, "Histogram")


def draw_bars(rows: Sequence[tuple[str, Sequence[Part]]]) -> str:
    """A stacked bar per row, each as wide as the whole of 1, with the legend of all parts."""
    height = 28
    shapes: list[str] = []
    label_width = 12 + 8 * max((len(name) for name, _ in rows), default=0)
    room = WIDTH - label_width - RIGHT
    for number, (name, parts) in enumerate(rows):
        top, left = number * height + 4, float(label_width)
        shapes.append(f'<text x="{label_width - 8}" y="{top + 15}" text-anchor="end">{escape(name)}</text>')
        shapes.append(f'<rect class="rest" x="{left:.1f}" y="{top}" width="{room}" height="{height - 8}"/>')
        for part in parts:
            width = min(part.share * room, label_width + room - left)
            shapes.append(
                f'<rect class="c{part.colour}" x="{left:.1f}" y="{top}" width="{width:.1f}" height="{height - 8}">'
                f"<title>{escape(name)}: {escape(part.name)} {part.share:.1%}</title></rect>"
            )
            if width > 44:
                shapes.append(
                    f'<text class="on" x="{left + width / 2:.1f}" y="{top + 15}" text-anchor="middle">{part.share:.0%}</text>'
                )
            left += width
    legend = dict.fromkeys((part.name, part.colour) for _, parts in rows for part in parts)
    return _wrap(shapes, len(rows) * height + 4, "Shares of the time") + draw_legend(list(legend))


def draw_legend(entries: Sequence[tuple[str, int]]) -> str:
    items = "".join(f'<span><i class="c{colour}"></i>{escape(name)}</span>' for name, colour in entries)
    return f'<p class="legend">{items}</p>'


def thin_points(points: Sequence[Point]) -> Sequence[Point]:
    """At most `MOST_POINTS` points: each the mean of its neighbours. A gap stays where none of them is known."""
    if len(points) <= MOST_POINTS:
        return points
    groups = np.array_split(np.arange(len(points)), MOST_POINTS)
    return [_average([points[index] for index in group]) for group in groups]


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


def _average(points: Sequence[Point]) -> Point:
    known = [y for _, y in points if y is not None and math.isfinite(y)]
    return points[-1][0], math.fsum(known) / len(known) if known else None


def _draw_frame(
    x_axis: Axis,
    y_axis: Axis,
    x_name: str,
    format_y: Callable[[float], str],
    format_x: Callable[[float], str] = lambda value: f"{value:,.0f}",
) -> str:
    bottom = HEIGHT - BOTTOM
    shapes: list[str] = []
    for value in y_axis.list_ticks(5):
        y = y_axis.place(value)
        shapes.append(f'<line class="grid" x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{y:.1f}" y2="{y:.1f}"/>')
        shapes.append(f'<text x="{LEFT - 6}" y="{y + 4:.1f}" text-anchor="end">{escape(format_y(value))}</text>')
    for value in x_axis.list_ticks(8):
        x = x_axis.place(value)
        # In the middle of its tick, the last one would be cut off by the edge of the picture.
        anchor = "end" if x > WIDTH - 2 * RIGHT else "middle"
        shapes.append(f'<text x="{x:.1f}" y="{bottom + 16}" text-anchor="{anchor}">{escape(format_x(value))}</text>')
    shapes.append(f'<text x="{WIDTH - RIGHT}" y="{bottom + 34}" text-anchor="end">{escape(x_name)}</text>')
    return "".join(shapes)


def _draw_series(series: Series, colour: int, x_axis: Axis, y_axis: Axis) -> list[str]:
    """A line per stretch without a gap."""
    runs: list[list[str]] = [[]]
    shapes: list[str] = []
    for x, y in series.points:
        if y is None or not math.isfinite(y):
            runs.append([])
            continue
        place = f"{x_axis.place(x):.1f},{y_axis.place(y):.1f}"
        runs[-1].append(place)
        if series.dots:
            left, _, top = place.partition(",")
            shapes.append(
                f'<circle class="c{colour}" cx="{left}" cy="{top}" r="3"><title>{x:g}: {y:.4g}</title></circle>'
            )
    shapes += [f'<polyline class="c{colour}" points="{" ".join(run)}"/>' for run in runs if len(run) > 1]
    return shapes


def _wrap(shapes: Sequence[str], height: float, label: str) -> str:
    return f'<svg viewBox="0 0 {WIDTH} {height}" role="img" aria-label="{escape(label)}">{"".join(shapes)}</svg>'


def _say(text: str) -> str:
    return f'<p class="unknown">{escape(text)}</p>'
