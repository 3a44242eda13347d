"""`run.json`: what a run is, in its folder."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from myxtts.files import FileError, MissingFileError, fit_shape, open_file_atomically, read_json
from myxtts.training.errors import RunFolderError
from myxtts.training.resume_rules import Sections

RECORD_NAME = "run.json"
_FORMAT = "myxtts run"
_VERSION = 1


@dataclass(frozen=True)
class Start:
    """One of the times the run was started or went on."""

    time: str
    step: int
    command: tuple[str, ...]
    end_step: int
    """Updates of the whole run, as it was then."""


@dataclass(frozen=True)
class RunRecord:
    """What a run is, and how far its processes have said it is."""

    stage: str
    config: Sections
    """The settings in force, as asked for."""
    foreign: tuple[str, ...]
    """Names that were in the folder before the run: not the run's, and left where they are when it is kept aside."""
    environment: Mapping[str, Any] = field(default_factory=dict)
    """What else the bits of its losses depend on."""
    starts: tuple[Start, ...] = ()
    end_step: int | None = None
    """Updates of the whole run; None until training has begun, when the data are known."""
    ending: str | None = None
    """Why the run is finished; None while it is not."""
    is_early: bool = False
    """Whether it is finished because nothing got better, and not because of its length."""
    choice: Mapping[str, Any] | None = None
    """What `--mode auto` chose, as `ModeChoice.dump` gives it; None where the mode was given."""


@dataclass(frozen=True)
class _Head:
    format: str
    version: int


def read_record(folder: Path) -> RunRecord | None:
    """The record of the run in a folder; None where there is none."""
    path = folder / RECORD_NAME
    try:
        content = read_json(path, dict)
        head = fit_shape(content, _Head)
        if head.format == _FORMAT and head.version <= _VERSION:
            return fit_shape(content, RunRecord)
    except MissingFileError:
        return None
    except FileError as error:
        raise RunFolderError(f"{error} {_WAY_OUT}") from None
    except ValueError as error:
        raise RunFolderError(f"{path}: is damaged ({error}). {_WAY_OUT}") from None
    raise RunFolderError(
        f"{path}: is a {head.format} of version {head.version}, but this MyXTTS reads a {_FORMAT} up to version "
        f"{_VERSION}. Update MyXTTS, or give another --checkpoint-dir."
    )


_WAY_OUT = (
    "Put back a copy of it, or start anew with --reset-training, which keeps everything that is there aside, "
    "or give another --checkpoint-dir."
)


def write_record(folder: Path, record: RunRecord) -> None:
    """Puts the record into the folder, whole or not at all."""
    status = "unfinished" if record.ending is None else "finished"
    content = {"format": _FORMAT, "version": _VERSION, "status": status, **dataclasses.asdict(record)}
    text = json.dumps(content, indent=2, ensure_ascii=False) + "\n"
    with open_file_atomically(folder / RECORD_NAME) as file:
        file.write(text.encode("utf-8"))
