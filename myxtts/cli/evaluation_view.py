"""An evaluation as plain text, within 80 columns."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator

from myxtts.evaluation.results import Evaluation, KindSummary, Summary
from myxtts.evaluation.verdict import judge_summary
from myxtts.evaluation.words import KIND_NAMES, format_cosine, format_decibels, format_rate
from myxtts.monitoring.words import format_share

WIDTH = 80
MOST_FAILURES = 5
_COLUMNS = (("words wrong", 12), ("chars wrong", 12), ("own voice", 10), ("other voice", 12), ("mel distance", 13))


def format_evaluation(evaluation: Evaluation) -> str:
    """The summary, what is missing from it, and what failed."""
    summary = evaluation.summary
    facts = evaluation.facts
    lines = [
        f"{facts['checkpoint']['name']}: {summary.sentences} sentences of {facts['data']['name']} ({facts['data']['split']})",
        *textwrap.wrap(facts["checkpoint"]["sound"], WIDTH),
        "",
        f"{'':<18}" + "".join(f"{name:>{width}}" for name, width in _COLUMNS),
        *(_format_kind(KIND_NAMES[kind], figures) for kind, figures in summary.kinds.items() if figures.sentences),
        "",
        *_list_figures(summary),
        "",
        *textwrap.wrap(judge_summary(summary), WIDTH),
    ]
    for gap in evaluation.not_measured:
        lines += ["", *textwrap.wrap(f"Not measured: {gap.what}; {gap.why} {gap.how}", WIDTH, subsequent_indent="  ")]
    if evaluation.failures:
        lines += ["", f"Could not be had: {len(evaluation.failures)}"]
        lines += [
            f"  {failure.name}, {failure.what}: {failure.reason}" for failure in evaluation.failures[:MOST_FAILURES]
        ]
    return "\n".join(line.rstrip() for line in lines)


def _format_kind(name: str, figures: KindSummary) -> str:
    values = (
        format_rate(figures.word_error_rate),
        format_rate(figures.character_error_rate),
        format_cosine(figures.likeness_to_own_speaker),
        format_cosine(figures.likeness_to_nearest_other_speaker),
        format_decibels(figures.mel_distance_db),
    )
    return f"{name:<18}" + "".join(f"{value:>{width}}" for value, (_, width) in zip(values, _COLUMNS, strict=True))


def _list_figures(summary: Summary) -> Iterator[str]:
    yield f"Codes predicted   {format_share(summary.code_accuracy)} (led by the true ones)"
    if summary.real_time_factor is not None:
        yield f"Real-time factor  {summary.real_time_factor:.2f} s for a second of speech"
    yield f"Did not stop      {summary.stop_failures} of {summary.sentences}"
    yield f"Length            {format_share(summary.length_ratio)} of the recordings' time"
    if summary.failed:
        yield f"Left out          {summary.failed}"
