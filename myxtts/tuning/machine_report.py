"""One file for a bug report: everything a maintainer asks for first, and nothing that is nobody's business.

Markdown, so that it reads at once in an editor, a browser or an issue. Needs neither a run nor TensorFlow.
"""

from __future__ import annotations

import json
import os
import re
import shlex
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from myxtts import __version__
from myxtts.data.ljspeech import MetadataLine, find_metadata, read_lines
from myxtts.devices.machine import VARIABLES
from myxtts.errors import MyXTTSError
from myxtts.files import FileError, open_file, read_json
from myxtts.monitoring.machine_facts import (
    LEFT_OUT,
    describe_hardware,
    describe_software,
    fence,
    make_redactor,
    select_variables,
)
from myxtts.monitoring.metrics import FILE_NAME, LOG_NAME, dump_row, read_metrics
from myxtts.monitoring.summary import format_summary, summarise_run

ALSO = (
    "LD_LIBRARY_PATH", "NVIDIA_VISIBLE_DEVICES", "KERAS_BACKEND", "TF_CPP_MIN_LOG_LEVEL", "WSL_DISTRO_NAME", "SLURM_JOB_ID",
)  # fmt: skip
"""Variables that matter to a maintainer, besides those that change how TensorFlow works."""
MOST_LOG_BYTES = 1 << 20
MOST_JSON_BYTES = 64 << 20
"""A report of what was set aside may name every clip of a large corpus."""
MOST_LOG_LINES, MOST_METRICS_ROWS, MOST_IDS_PER_REASON, MOST_ERROR_LINES = 400, 30, 20, 200
_RECORD = re.compile(r"^\d{4}-\d\d-\d\d \d\d:\d\d:\d\d,\d{3} ([A-Z]+) ")
_ABOUT_SOUND = frozenset(
    {"symlink", "missing", "unreadable", "empty", "unsupported", "corrupt", "truncated", "nan", "silent", "too_short", "too_long", "changed"}
)  # fmt: skip
"""Reasons whose details speak of the file. Those of the others may quote its text."""

Content = TypeVar("Content")


@dataclass(frozen=True)
class _Start:
    time: str
    step: int
    command: tuple[str, ...]


@dataclass(frozen=True)
class _Record:
    """What a report takes from a `run.json`, which may be of any version."""

    stage: str | None = None
    status: str | None = None
    ending: str | None = None
    starts: tuple[_Start, ...] = ()
    config: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    environment: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class _Drops:
    """What a report takes from a `drop_report.json`."""

    kept: int | None = None
    lines: int | None = None
    dropped: Mapping[str, tuple[Mapping[str, str], ...]] = field(default_factory=dict)
    replaced: tuple[Mapping[str, str], ...] = ()


def make_bug_report(folder: Path | None, environ: Mapping[str, str]) -> str:
    """The report on this machine, and on the run in a folder, clean of private things."""
    variables = select_variables(environ, (*VARIABLES, *ALSO))
    machine = {
        "Hardware": _list(describe_hardware(folder or Path.cwd())),
        "Software": _list(describe_software()),
        "Environment variables": _list(f"{name}={value}" for name, value in variables.items())
        or "None of those that matter is set.",
    }
    texts: list[str] = []
    sections = {"Run": "No run was given: `myxtts bug-report RUN` adds its log, figures and settings.", **machine}
    if folder is not None:
        sections, texts = _describe_run(folder, machine)
    head = [
        f"# MyXTTS {__version__}: bug report of {datetime.now().astimezone().isoformat(timespec='seconds')}",
        "What I did, what I expected, what happened instead: (please write it here)",
        LEFT_OUT,
    ]
    text = "\n\n".join([*head, *(f"## {title}\n\n{content}" for title, content in sections.items())]) + "\n"
    return make_redactor(environ, texts)(text)


def find_last_error(log: str) -> str | None:
    """The last error in a run's log with its traceback; None where there is none."""
    found: list[str] = []
    is_error = False
    for line in log.splitlines():
        match = _RECORD.match(line)
        if match:
            is_error = match[1] in ("ERROR", "CRITICAL")
            found = [] if is_error else found
        if is_error:
            found.append(line)
    return "\n".join(found[-MOST_ERROR_LINES:]) or None


def _describe_run(folder: Path, machine: Mapping[str, str]) -> tuple[dict[str, str], list[str]]:
    """What a run has left, around what is said of the machine, and the texts of its corpora.

    What is missing or damaged is said, and the rest is read.
    """
    problems: list[str] = []

    def read(read_file: Callable[[Path], Content], name: str) -> Content | None:
        try:
            return read_file(folder / name)
        except MyXTTSError as error:
            problems.append(f"not read: {error}")
            return None

    record = read(partial(read_json, shape=_Record), "run.json") or _Record()
    drops = read(partial(read_json, shape=_Drops, most_bytes=MOST_JSON_BYTES), "drop_report.json")
    metrics = read(read_metrics, FILE_NAME)
    # Their settings have a section of their own.
    rows = [dump_row(row) for row in metrics.rows[-MOST_METRICS_ROWS:]] if metrics else []
    rows = [{key: value for key, value in row.items() if key != "settings"} for row in rows]
    log = _read_end(folder / LOG_NAME)
    error = find_last_error(log)
    none = f"None in the run's {LOG_NAME}." if log else f"Unknown: the run has no {LOG_NAME}."
    settings = {f"{section}.{key}": value for section, values in record.config.items() for key, value in values.items()}
    settings |= {f"environment {key}": value for key, value in record.environment.items()}
    starts = [f"started {each.time} at step {each.step}: `{shlex.join(each.command)}`" for each in record.starts]
    state = [f"stage {record.stage}, {record.status}: {record.ending}"] if record.stage else []
    sections = {
        "Last error": fence(error) if error else none,
        "Run": _list([f"folder: `{folder.resolve()}`", *problems, *state, *starts]),
        "Figures": fence(format_summary(summarise_run(metrics.rows))) if metrics else f"Unknown: there is no {FILE_NAME} that can be read.",
        **machine,
        "Settings": _block(f"{key}: {json.dumps(value, ensure_ascii=False)}" for key, value in settings.items()),
        "Clips set aside": _list(_describe_drops(drops)) if drops else "Unknown: there is no drop_report.json that can be read.",
        f"Log, the last {MOST_LOG_LINES} lines": _block(log.splitlines()[-MOST_LOG_LINES:]),
        f"Metrics, the last {MOST_METRICS_ROWS} rows": _block(json.dumps(row, ensure_ascii=False) for row in rows),
    }  # fmt: skip
    return sections, list(_list_texts(record))


def _read_end(path: Path) -> str:
    try:
        with open_file(path) as file:
            file.seek(max(0, file.seek(0, os.SEEK_END) - MOST_LOG_BYTES))
            return file.read(MOST_LOG_BYTES).decode("utf-8", "replace")
    except (OSError, FileError):
        return ""


def _list_texts(record: _Record) -> Iterator[str]:
    """The texts of the run's corpora, as far as they can be read now: an error may have quoted one."""
    data = record.config.get("data", {})
    for path in (data.get("train_data"), data.get("val_data")):
        if not isinstance(path, str):
            continue
        try:
            for file in find_metadata(Path(path)):
                for line in read_lines(file.path):
                    # What is said about a line that cannot be used may quote it.
                    yield line.text if isinstance(line, MetadataLine) else line.problem
        except (MyXTTSError, OSError):
            continue


def _list(lines: Iterable[str]) -> str:
    return "\n".join(f"- {line}" for line in lines)


def _block(lines: Iterable[str]) -> str:
    text = "\n".join(lines)
    return fence(text) if text else "None."


def _describe_drops(drops: _Drops) -> Iterator[str]:
    yield f"{drops.kept} of {drops.lines} clips can be used"
    groups = {reason: list(clips) for reason, clips in drops.dropped.items()}
    for clip in drops.replaced:
        groups.setdefault(f"{clip.get('reason')}, while training", []).append(clip)
    for reason, clips in groups.items():
        shows_details = reason.partition(",")[0] in _ABOUT_SOUND
        names = []
        for clip in clips[:MOST_IDS_PER_REASON]:
            # A malformed line may stand where a name should: of a clip only what a file name can be is shown.
            name = re.fullmatch(r"(?:.*/)?([\w.+-]{1,80})", clip.get("file", ""))
            detail = f" ({clip['detail']})" if shows_details and clip.get("detail") else ""
            names.append((name[1] if name else "(a name that is none)") + detail)
        more = f" and {len(clips) - len(names)} more" if len(clips) > len(names) else ""
        yield f"{reason} ({len(clips)}): {', '.join(names)}{more}"
