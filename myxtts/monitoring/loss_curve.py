"""The curves of a run's losses, for pages."""

from __future__ import annotations

from collections.abc import Sequence

from myxtts.monitoring import svg
from myxtts.monitoring.metrics_rows import Row, TrainRow, ValidationRow


def draw_losses(rows: Sequence[Row]) -> str:
    """Training and validation loss by step."""
    train = [(float(row.step), row.loss) for row in rows if isinstance(row, TrainRow)]
    validation = [(float(row.step), row.loss) for row in rows if isinstance(row, ValidationRow)]
    series = [svg.Series("training", train)] if train else []
    if validation:
        series.append(svg.Series("validation", validation, dots=True))
    return svg.draw_lines(series, "step", lambda loss: f"{loss:.4g}")
