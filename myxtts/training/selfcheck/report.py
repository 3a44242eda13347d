"""The result of a self-check: lines for a terminal of 80 columns, Markdown to post, JSON to compare."""

from __future__ import annotations

import json
import textwrap
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from myxtts import __version__
from myxtts.monitoring.hardware_facts import HardwareFacts
from myxtts.monitoring.markdown import fence
from myxtts.monitoring.metrics_rows import name_infinities
from myxtts.monitoring.redaction import Redactor
from myxtts.monitoring.software_facts import SoftwareFacts
from myxtts.monitoring.words import UNKNOWN, format_bytes, format_duration
from myxtts.training.selfcheck.outcome import Outcome, Status

WIDTH = 80
INDENT = 11


@dataclass(frozen=True)
class SelfcheckReport:
    """Everything a self-check found."""

    time: str
    rehearsal: bool
    hardware: HardwareFacts
    software: SoftwareFacts
    outcomes: tuple[Outcome, ...]

    @property
    def failed(self) -> list[Outcome]:
        return [outcome for outcome in self.outcomes if outcome.status is Status.FAILED]

    @property
    def seconds(self) -> float:
        return sum(outcome.seconds for outcome in self.outcomes)


def format_outcome(outcome: Outcome) -> str:
    """One check in two lines or three."""
    took = f"  {format_duration(outcome.seconds)}" if outcome.seconds else ""
    head = f"{outcome.status:<{INDENT}}{outcome.name}{took}"
    return f"{head}\n" + textwrap.fill(
        outcome.detail,
        WIDTH,
        initial_indent=" " * INDENT,
        subsequent_indent=" " * INDENT,
        break_long_words=False,
        break_on_hyphens=False,
    )


def format_end(report: SelfcheckReport) -> str:
    """How many passed, and what that means."""
    return textwrap.fill(
        f"{_count(report.outcomes)} in {format_duration(report.seconds)}. {_explain(report)}",
        WIDTH,
        break_long_words=False,
        break_on_hyphens=False,
    )


def format_markdown(report: SelfcheckReport, redactor: Redactor) -> str:
    """The report to post, without anything private."""
    title = "rehearsal on logical CPU devices" if report.rehearsal else "on GPUs"
    rows = [
        f"| {o.name} | {o.status} | {o.seconds:.1f} s | {_escape(f'{o.proves}: {o.detail}')} |" for o in report.outcomes
    ]
    lines = [
        f"# MyXTTS {__version__}: self-check {title}, {report.time}",
        f"**{_count(report.outcomes)}** in {format_duration(report.seconds)}. {_explain(report)}",
        "\n".join(f"- {line}" for line in _describe_machine(report)),
        "\n".join(["| check | result | time | what was seen |", "|---|---|---:|---|", *rows]),
        *(f"## {o.name}: what its process wrote last\n\n{fence(o.last_words)}" for o in report.failed if o.last_words),
        "## Figures\n\n" + fence("\n".join(_list_figures(report)), "json"),
    ]
    return redactor.clean("\n\n".join(lines) + "\n")


def format_json(report: SelfcheckReport, redactor: Redactor) -> str:
    """All facts; unknown values are null."""
    content: dict[str, Any] = {
        "version": __version__,
        "time": report.time,
        "rehearsal": report.rehearsal,
        "seconds": report.seconds,
        "machine": _describe_machine(report),
        "checks": [asdict(outcome) for outcome in report.outcomes],
    }
    # After the strings are made: a name may stand inside one of them.
    return redactor.clean(json.dumps(name_infinities(content), ensure_ascii=False, allow_nan=False, indent=1))


def _count(outcomes: Sequence[Outcome]) -> str:
    counts = {status: sum(outcome.status is status for outcome in outcomes) for status in Status}
    return ", ".join(f"{count} {status}" for status, count in counts.items() if count)


def _explain(report: SelfcheckReport) -> str:
    if report.failed:
        names = ", ".join(outcome.name for outcome in report.failed)
        return f"Failed: {names}. Please post the report: it says what was seen instead."
    if report.rehearsal:
        return "A rehearsal shows that the checks themselves work; it says nothing about cards."
    return "Please post the report all the same: nobody may have run this on such cards before."


def _describe_machine(report: SelfcheckReport) -> list[str]:
    hardware, software = report.hardware, report.software
    build = software.tensorflow
    return [
        *hardware.card_lines,
        f"driver {software.driver or UNKNOWN}, TensorFlow {build.version if build else UNKNOWN} (CUDA "
        f"{build.cuda_version if build and build.cuda_version else UNKNOWN}), Python {software.python}, {software.system}",
        f"{hardware.processor or UNKNOWN}, {hardware.usable_cores} cores, {format_bytes(hardware.memory_bytes)} memory",
    ]


def _list_figures(report: SelfcheckReport) -> list[str]:
    """A line of JSON per check that has any."""
    return [json.dumps({o.name: name_infinities(dict(o.facts))}) for o in report.outcomes if o.facts]


def _escape(text: str) -> str:
    return text.replace("|", "\\|").replace("\n", " ")
