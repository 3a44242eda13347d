"""Runs side by side as a self-contained HTML page: overlaid curves, figures, settings that differ."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

from myxtts.monitoring import svg
from myxtts.monitoring.compared_run import ComparedRun
from myxtts.monitoring.comparison_figures import Figure
from myxtts.monitoring.html_table import draw_table
from myxtts.monitoring.page_style import STYLE
from myxtts.monitoring.run_comparison import Comparison
from myxtts.monitoring.words import UNKNOWN, format_number


def format_comparison_page(comparison: Comparison) -> str:
    """The page."""
    title = f"{len(comparison.runs)} runs side by side"
    sections = [
        ("Training loss", _draw_training(comparison.runs)),
        ("Validation loss", _draw_validation(comparison.runs)),
        ("Figures", _draw_figures(comparison)),
        ("What differs", _draw_differences(comparison)),
    ]
    body = [
        f"<h1>{title}</h1>",
        _draw_runs(comparison.runs),
        *(f'<p class="verdict">{escape(remark)}</p>' for remark in comparison.remarks),
        *(f"<section><h2>{name}</h2>{content}</section>" for name, content in sections),
    ]
    return (
        f'<!doctype html>\n<html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width">'
        f"<title>{title}</title><style>{STYLE}</style></head><body>\n" + "\n".join(body) + "\n</body></html>\n"
    )


def _draw_runs(runs: Sequence[ComparedRun]) -> str:
    rows = [
        (
            f"<b>{run.name}</b> {escape(str(run.path))}",
            escape(run.summary.stage or UNKNOWN),
            escape(run.summary.mode or UNKNOWN),
            escape(run.summary.status),
        )
        for run in runs
    ]
    return draw_table(("Run", "Stage", "Mode", "Status"), rows)


def _draw_training(runs: Sequence[ComparedRun]) -> str:
    series = [
        svg.Series(run.name, [(float(step), loss) for step, loss in run.training_losses])
        for run in runs
        if run.training_losses
    ]
    return _draw(series, "No run has trained yet.")


def _draw_validation(runs: Sequence[ComparedRun]) -> str:
    # A run without any keeps its place, so that a run has one colour on the whole page.
    series = [svg.Series(run.name, [(float(s), loss) for s, loss in run.validation_losses], dots=True) for run in runs]
    return _draw(series, "No run has been validated yet.")


def _draw(series: Sequence[svg.Series], otherwise: str) -> str:
    if not any(one.points for one in series):
        return f'<p class="unknown">{otherwise}</p>'
    return svg.draw_lines(series, "step", lambda loss: f"{format_number(loss)}")


def _draw_figures(comparison: Comparison) -> str:
    rows = [(escape(figure.name), *_draw_cells(figure)) for figure in comparison.figures]
    table = draw_table(("", *(run.name for run in comparison.runs)), rows)
    return table + "<p>Bold: the better one.</p>" if any(figure.best for figure in comparison.figures) else table


def _draw_cells(figure: Figure) -> list[str]:
    return [
        f"<b>{escape(text)}</b>" if number in figure.best else escape(text) for number, text in enumerate(figure.texts)
    ]


def _draw_differences(comparison: Comparison) -> str:
    if not comparison.differences:
        return "<p>Nothing: mode, devices, settings and software are the same.</p>"
    rows = [(escape(one.key), *map(escape, one.texts)) for one in comparison.differences]
    return draw_table(("", *(run.name for run in comparison.runs)), rows)
