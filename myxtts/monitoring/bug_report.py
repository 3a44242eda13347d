"""One file for a bug report: everything a maintainer asks for first, and nothing that is nobody's business.

Markdown, so that it reads at once in an editor, a browser or an issue.
"""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from myxtts import __version__
from myxtts.monitoring.hardware_facts import HardwareFacts
from myxtts.monitoring.markdown import fence
from myxtts.monitoring.metrics_log import Metrics
from myxtts.monitoring.metrics_rows import RunRow, dump_row
from myxtts.monitoring.redaction import ADDRESS, HOST, MAIL, SECRET, TEXT, USER, WINDOWS_PATH, Redactor
from myxtts.monitoring.run_summary import summarise_run
from myxtts.monitoring.software_facts import SoftwareFacts
from myxtts.monitoring.summary_view import format_summary
from myxtts.monitoring.words import UNKNOWN, format_bytes

LOG_NAME = "run.log"
MOST_LOG_LINES = 400
MOST_METRICS_ROWS = 30
MOST_IDS_PER_REASON = 20
MOST_ERROR_LINES = 200
_RECORD = re.compile(r"^\d{4}-\d\d-\d\d \d\d:\d\d:\d\d,\d{3} ([A-Z]+) ")
_ABOUT_SOUND = frozenset(
    {"symlink", "missing", "unreadable", "empty", "unsupported", "corrupt", "truncated", "nan", "silent", "too_short", "too_long", "changed"}
)  # fmt: skip
"""Reasons whose details speak of the file. Those of the others may quote its text."""
LEFT_OUT = (
    "Left out: audio, texts of the corpus (clips are named by their ids), weights, values of variables that may be secret, and "
    f"identifiers of single cards. Replaced: the home folder (~), user and machine name ({USER}, {HOST}), what looks like a "
    f"secret ({SECRET}), e-mail and network addresses ({MAIL}, {ADDRESS}), paths of Windows ({WINDOWS_PATH}), and texts of clips "
    f"({TEXT}). Folder names outside the home folder are shown. Read it before you post it."
)


@dataclass(frozen=True)
class StartFacts:
    """One of the starts in a `run.json`."""

    time: str
    step: int
    command: tuple[str, ...]


@dataclass(frozen=True)
class RunFacts:
    """What a report takes from a `run.json`."""

    stage: str | None = None
    status: str | None = None
    ending: str | None = None
    starts: tuple[StartFacts, ...] = ()
    config: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    environment: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class ClipFacts:
    """A clip in a `drop_report.json`."""

    file: str
    detail: str = ""
    reason: str = ""


@dataclass(frozen=True)
class DropFacts:
    """What a report takes from a `drop_report.json`."""

    kept: int | None = None
    lines: int | None = None
    dropped: Mapping[str, tuple[ClipFacts, ...]] = field(default_factory=dict)
    replaced: tuple[ClipFacts, ...] = ()


@dataclass(frozen=True)
class RunFiles:
    """What a run has left in its folder; None and empty where there is none of it."""

    folder: str
    record: RunFacts | None = None
    metrics: Metrics | None = None
    log: str = ""
    drops: DropFacts | None = None
    problems: tuple[str, ...] = ()
    """What could not be read, and why."""


@dataclass(frozen=True)
class BugReport:
    """The facts of a report, before anything private is taken out."""

    time: str
    hardware: HardwareFacts
    software: SoftwareFacts
    packages: Mapping[str, str]
    variables: Mapping[str, str]
    run: RunFiles | None = None
    remarks: tuple[str, ...] = field(default=())


def format_bug_report(report: BugReport, redactor: Redactor) -> str:
    """The report as Markdown, clean of private things."""
    sections = [
        ("Last error", _format_error(report.run)),
        ("Run", _format_run(report.run)),
        ("Hardware", _format_hardware(report.hardware)),
        ("Software", _format_software(report)),
        ("Environment variables", _format_variables(report.variables)),
        ("Settings", _format_settings(report.run)),
        ("Clips set aside", _format_drops(report.run)),
        (f"Log, the last {MOST_LOG_LINES} lines", _format_log(report.run)),
        (f"Metrics, the last {MOST_METRICS_ROWS} rows", _format_metrics(report.run)),
    ]
    head = [
        f"# MyXTTS {__version__}: bug report of {report.time}",
        "What I did, what I expected, what happened instead: (please write it here)",
        LEFT_OUT,
        *report.remarks,
    ]
    text = "\n\n".join([*head, *(f"## {title}\n\n{content}" for title, content in sections)]) + "\n"
    return redactor.clean(text)


def find_last_error(log: str) -> str | None:
    """The last error in a run's log with its traceback; None where there is none."""
    found: list[str] | None = None
    is_error = False
    for line in log.splitlines():
        match = _RECORD.match(line)
        if match:
            is_error = match[1] in ("ERROR", "CRITICAL")
            found = [line] if is_error else found
        elif is_error and found is not None:
            found.append(line)
    return None if found is None else "\n".join(found[-MOST_ERROR_LINES:])


def _format_error(run: RunFiles | None) -> str:
    if run is None:
        return "No run was given: `myxtts bug-report RUN` adds its log, figures and settings."
    error = find_last_error(run.log)
    if error is None:
        return f"None in the run's {LOG_NAME}." if run.log else f"Unknown: the run has no {LOG_NAME}."
    return fence(error)


def _format_run(run: RunFiles | None) -> str:
    if run is None:
        return "None was given."
    lines = [f"- folder: `{run.folder}`", *(f"- not read: {problem}" for problem in run.problems)]
    if run.record is not None:
        lines.append(f"- stage {run.record.stage}, {run.record.status}: {run.record.ending}")
        lines += [
            f"- started {start.time} at step {start.step}: `{shlex.join(start.command)}`" for start in run.record.starts
        ]
    if run.metrics is None:
        return "\n".join([*lines, "- it has no figures: nothing was trained yet"])
    return "\n".join(lines) + "\n\n" + fence(format_summary(summarise_run(run.metrics.rows)))


def _format_hardware(hardware: HardwareFacts) -> str:
    lines = [
        *hardware.card_lines,
        f"processor: {hardware.processor or UNKNOWN}, {hardware.logical_cores} logical cores, {hardware.usable_cores} usable",
        f"memory: {format_bytes(hardware.free_memory_bytes)} free of {format_bytes(hardware.memory_bytes)}",
        f"disk: {format_bytes(hardware.free_disk_bytes)} free of {format_bytes(hardware.disk_bytes)}",
    ]
    return "\n".join(f"- {line}" for line in lines)


def _format_software(report: BugReport) -> str:
    software = report.software
    build = software.tensorflow
    lines = [
        f"MyXTTS {__version__}, Python {software.python}, {software.system}",
        "TensorFlow: not installed"
        if build is None
        else f"TensorFlow {build.version}, built for CUDA {build.cuda_version or UNKNOWN}, cuDNN {build.cudnn_version or UNKNOWN}",
        f"NVIDIA driver: {software.driver or software.driver_problem or UNKNOWN}",
        *(f"missing: {library.name} ({library.file}): {library.problem}" for library in software.missing),
        "packages: " + ", ".join(f"{name}=={version}" for name, version in report.packages.items()),
    ]
    return "\n".join(f"- {line}" for line in lines)


def _format_variables(variables: Mapping[str, str]) -> str:
    return "\n".join(f"- {name}={value}" for name, value in variables.items()) or "None of those that matter is set."


def _format_settings(run: RunFiles | None) -> str:
    if run is None or run.record is None:
        return "Unknown: no run was given, or it has no run.json."
    lines = [
        f"{section}.{key}: {json.dumps(value, ensure_ascii=False)}"
        for section, values in run.record.config.items()
        for key, value in values.items()
    ]
    lines += [f"environment {key}: {value}" for key, value in run.record.environment.items()]
    return fence("\n".join(lines))


def _format_drops(run: RunFiles | None) -> str:
    if run is None or run.drops is None:
        return "Unknown: there is no drop_report.json."
    drops = dict(run.drops.dropped)
    for drop in run.drops.replaced:
        reason = f"{drop.reason}, while training"
        drops[reason] = (*drops.get(reason, ()), drop)
    lines = [f"- {run.drops.kept} of {run.drops.lines} clips can be used"]
    lines += [f"- {reason} ({len(clips)}): {_list_ids(reason, clips)}" for reason, clips in drops.items()]
    return "\n".join(lines)


def _list_ids(reason: str, clips: Sequence[ClipFacts]) -> str:
    shows_details = reason.partition(",")[0] in _ABOUT_SOUND
    names = [
        _name_clip(clip.file) + (f" ({clip.detail})" if shows_details and clip.detail else "")
        for clip in clips[:MOST_IDS_PER_REASON]
    ]
    more = len(clips) - len(names)
    return ", ".join(names) + (f" and {more} more" if more else "")


def _name_clip(file: str) -> str:
    # A malformed line may stand where a name should: of a clip only what a file name can be is shown.
    name = file.rpartition("/")[2]
    return name if re.fullmatch(r"[\w.+-]{1,80}", name) else "(a name that is none)"


def _format_log(run: RunFiles | None) -> str:
    if run is None or not run.log:
        return "None."
    return fence("\n".join(run.log.splitlines()[-MOST_LOG_LINES:]))


def _format_metrics(run: RunFiles | None) -> str:
    if run is None or run.metrics is None:
        return "None."
    lines = []
    for row in run.metrics.rows[-MOST_METRICS_ROWS:]:
        content = dump_row(row)
        if isinstance(row, RunRow):
            # They stand above.
            del content["settings"]
        lines.append(json.dumps(content, ensure_ascii=False))
    return fence("\n".join(lines))
