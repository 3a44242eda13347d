"""`myxtts bug-report [RUN]`: one file to attach to a bug report. Needs neither a run nor TensorFlow."""

from __future__ import annotations

import getpass
import importlib.metadata
import os
import platform
import re
import textwrap
from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from myxtts.cli.files import write_text
from myxtts.cli.parser import Parser
from myxtts.errors import CommandLineError, MyXTTSError
from myxtts.files import FileError, open_file, read_json

if TYPE_CHECKING:
    from myxtts.monitoring.bug_report import BugReport, RunFiles
    from myxtts.monitoring.redaction import Redactor

FILE_NAME = "myxtts-bug-report.md"
ALSO = (
    "LD_LIBRARY_PATH",
    "NVIDIA_VISIBLE_DEVICES",
    "KERAS_BACKEND",
    "TF_CPP_MIN_LOG_LEVEL",
    "WSL_DISTRO_NAME",
    "SLURM_JOB_ID",
)
"""Variables that matter to a maintainer, besides those that change how TensorFlow works."""
MOST_LOG_BYTES = 1 << 20
MOST_JSON_BYTES = 64 << 20
"""A report of what was set aside may name every clip of a large corpus."""

Shape = TypeVar("Shape")


def build_parser(prog: str) -> Parser:
    parser = Parser(
        prog=prog,
        description="Write one file to attach to a bug report: hardware, software, settings, the last error, log and figures. "
        "Audio, texts, secrets, home folder and user name are left out. Nothing is sent anywhere.",
    )
    parser.usage = f"{prog} [RUN] [flags]"
    parser.add_argument(
        "run", nargs="?", type=Path, metavar="RUN", help="the folder of the run it is about, if it is about one"
    )
    parser.add_argument(
        "--out", type=Path, default=Path(FILE_NAME), metavar="FILE", help=f"where to write it (default: {FILE_NAME})"
    )
    return parser


def run(words: Sequence[str], prog: str) -> int:
    arguments = build_parser(prog).parse_all(words)
    if arguments.run is not None and not arguments.run.is_dir():
        raise CommandLineError(
            f"{arguments.run}: is no folder. Give the folder of a run (its --checkpoint-dir), or nothing to report on this machine."
        )
    # Not imported above: --help needs none of it.
    from myxtts.monitoring.bug_report import LEFT_OUT, format_bug_report

    report = collect_report(arguments.run)
    text = format_bug_report(report, make_redactor(os.environ, list(_list_texts(report.run))))
    write_text(arguments.out, text)
    print(f"Written {arguments.out} ({len(text.encode()) / 1000:.0f} kB). Nothing was sent anywhere.\n")
    print(textwrap.fill(LEFT_OUT, 80))
    return 0


def collect_report(folder: Path | None) -> BugReport:
    """The facts of this machine and of a run."""
    from myxtts.devices.environment import VARIABLES
    from myxtts.monitoring.bug_report import BugReport
    from myxtts.monitoring.hardware_facts import read_hardware
    from myxtts.monitoring.redaction import select_variables
    from myxtts.monitoring.software_facts import read_software

    return BugReport(
        time=datetime.now().astimezone().isoformat(timespec="seconds"),
        hardware=read_hardware(folder or Path.cwd()),
        software=read_software(),
        packages=_list_packages(),
        variables=select_variables(os.environ, (*VARIABLES, *ALSO)),
        run=None if folder is None else read_run_files(folder),
    )


def read_run_files(folder: Path) -> RunFiles:
    """What a run has left; what is missing or damaged is said, and the rest is read."""
    from myxtts.monitoring.bug_report import LOG_NAME, DropFacts, RunFacts, RunFiles
    from myxtts.monitoring.metrics_log import FILE_NAME as METRICS_NAME
    from myxtts.monitoring.metrics_log import read_metrics

    problems: list[str] = []

    def read(name: str, shape: type[Shape]) -> Shape | None:
        try:
            return read_json(folder / name, shape, most_bytes=MOST_JSON_BYTES)
        except FileError as error:
            problems.append(f"{name} ({error.problem})")
            return None

    try:
        metrics = read_metrics(folder / METRICS_NAME)
    except MyXTTSError as error:
        metrics = None
        problems.append(str(error))
    return RunFiles(
        folder=str(folder.resolve()),
        record=read("run.json", RunFacts),
        metrics=metrics,
        log=_read_end(folder / LOG_NAME),
        drops=read("drop_report.json", DropFacts),
        problems=tuple(problems),
    )


def make_redactor(environ: Mapping[str, str], texts: Sequence[str]) -> Redactor:
    """What is private on this machine."""
    from myxtts.monitoring.redaction import Redactor, list_secrets

    return Redactor(
        home=Path.home(), user=_find_user(), host=platform.node(), secrets=list_secrets(environ), texts=tuple(texts)
    )


def _find_user() -> str:
    try:
        return getpass.getuser()
    except (KeyError, OSError):
        # A container may run as a number that has no name.
        return ""


def _list_texts(run: RunFiles | None) -> Iterator[str]:
    """The texts of the run's corpora, as far as they can be read now: an error may have quoted one."""
    from myxtts.data.ljspeech import find_metadata
    from myxtts.data.metadata_lines import MetadataLine, read_lines

    data = {} if run is None or run.record is None else run.record.config.get("data", {})
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


def _read_end(path: Path) -> str:
    try:
        with open_file(path) as file:
            file.seek(max(0, file.seek(0, os.SEEK_END) - MOST_LOG_BYTES))
            return file.read(MOST_LOG_BYTES).decode("utf-8", "replace")
    except (OSError, FileError):
        return ""


def _list_packages() -> dict[str, str]:
    """Versions of what MyXTTS depends on; one that is missing says so."""
    try:
        needed = importlib.metadata.requires("myxtts") or []
    except importlib.metadata.PackageNotFoundError:
        return {}
    names = [re.split(r"[^\w.-]", text, maxsplit=1)[0] for text in needed if "extra ==" not in text]
    return {name: _find_version(name) for name in names}


def _find_version(name: str) -> str:
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return "not installed"
