"""What cards and host did in the course of a run, as pictures and lines of its page."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from html import escape

from myxtts.monitoring import svg
from myxtts.monitoring.card_summary import CardSummary
from myxtts.monitoring.metrics_rows import MachineRow


def draw_machine(rows: Sequence[MachineRow]) -> str:
    """How busy cards and host were, how much power the cards took, and the last readings in words."""
    if not rows:
        return '<p class="unknown">Unknown: nothing was sampled.</p>'
    ids = sorted({card.physical_id for row in rows for card in row.cards})
    busy = [svg.Series("processors", [(float(row.step), row.host.cpu_share) for row in rows])]
    busy += [svg.Series(f"GPU {id}", _list_points(rows, id, lambda card: card.utilization)) for id in ids]
    power = [svg.Series(f"GPU {id}", _list_points(rows, id, lambda card: card.power_w)) for id in ids]
    charts = [
        _draw_known(busy, lambda share: f"{share:.0%}", 1.0),
        _draw_known(power, lambda watts: f"{watts:.0f} W", None),
    ]
    last = rows[-1]
    lines = [f"GPU {card.physical_id}: {card.describe()}" for card in last.cards]
    lines.append(f"Host: {last.host.describe()}")
    return "".join(charts) + "".join(f"<p>{escape(line)}.</p>" for line in lines)


def _draw_known(series: Sequence[svg.Series], format_y: Callable[[float], str], y_max: float | None) -> str:
    """The curves that have a point at all."""
    known = [one for one in series if any(value is not None for _, value in one.points)]
    return svg.draw_lines(known, "step", format_y, from_zero=True, y_max=y_max) if known else ""


def _list_points(rows: Sequence[MachineRow], id: int, read: Callable[[CardSummary], float | None]) -> list[svg.Point]:
    return [(float(row.step), read(card)) for row in rows for card in row.cards if card.physical_id == id]
