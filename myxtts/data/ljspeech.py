"""LJSpeech-style corpora: where their metadata is and what it says.

A corpus is a folder with `metadata.csv` (or `metadata_train.csv` and `metadata_eval.csv`) and the clips in `wavs/`
beside it, or a folder of such folders, one per speaker, or a metadata file's own path.
"""

from __future__ import annotations

import logging
import os
from array import array
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from myxtts.config.section import nearest_name
from myxtts.data.corpus import NameColumn, NameColumnBuilder, TextColumn, TextColumnBuilder
from myxtts.data.drops import Drop, DropReason
from myxtts.data.errors import MetadataError
from myxtts.data.metadata_lines import MalformedLine, read_lines
from myxtts.text.errors import UnsupportedLanguageError
from myxtts.text.languages import resolve_language

_log = logging.getLogger(__name__)

Split = Literal["train", "eval"]

_WHOLE = "metadata.csv"
_PART: dict[Split, str] = {"train": "metadata_train.csv", "eval": "metadata_eval.csv"}


@dataclass(frozen=True)
class MetadataFile:
    """A metadata file and what holds for all of its lines."""

    path: Path
    prefix: str
    """The folder its clip paths are relative to, as seen from the corpus root: empty, or a folder name and a slash."""
    speaker: str
    """The speaker of lines that name none: the folder's name."""


@dataclass(frozen=True, eq=False)
class Metadata:
    """All lines of a corpus, in columns of equal length."""

    root: Path
    files: tuple[MetadataFile, ...]
    file_numbers: NDArray[np.int32]
    """Which of `files` a line stands in."""
    line_numbers: NDArray[np.int64]
    """The line's number in its file, counted from 1."""
    audio: TextColumn
    """The audio file as the line names it, relative to the file's folder or its `wavs/`, with or without extension."""
    text: TextColumn
    """What is spoken: the normalised text where there is one, else the text. May be empty."""
    speaker: NameColumn
    language: NameColumn
    malformed: tuple[Drop, ...]

    def __len__(self) -> int:
        return len(self.line_numbers)

    def describe_line(self, row: int) -> str:
        """`file, line n` of a row, for messages."""
        return f"{self.files[self.file_numbers[row]].path}, line {self.line_numbers[row]}"


def read_metadata(path: Path, *, split: Split = "train", language: str = "en") -> Metadata:
    """Every line of a corpus.

    Args:
        path: the corpus folder, a folder of speaker folders, or a metadata file.
        split: which of `metadata_train.csv` and `metadata_eval.csv` to read where a folder has them.
        language: the language of lines that name none.
    """
    root = path if path.is_dir() else path.parent
    files = find_metadata(path, split)
    _report_folders(root, files)
    file_numbers, line_numbers = array("i"), array("q")
    audio, text = TextColumnBuilder(), TextColumnBuilder()
    speaker, languages = NameColumnBuilder(), NameColumnBuilder()
    malformed: list[Drop] = []
    for file_number, file in enumerate(files):
        for line in read_lines(file.path):
            if isinstance(line, MalformedLine):
                name, where = f"{file.path.name}:{line.number}", f"{file.path}, line {line.number}"
                malformed.append(Drop(DropReason.MALFORMED_LINE, name, where, line.problem))
                continue
            file_numbers.append(file_number)
            line_numbers.append(line.number)
            audio.append(line.audio)
            text.append(line.text)
            speaker.append(line.speaker or file.speaker)
            languages.append(_find_language(line.language or language))
    _refuse_mostly_malformed(malformed, len(line_numbers))
    return Metadata(
        root=root,
        files=files,
        file_numbers=np.array(file_numbers, dtype=np.int32),
        line_numbers=np.array(line_numbers, dtype=np.int64),
        audio=audio.build(),
        text=text.build(),
        speaker=speaker.build(),
        language=languages.build(),
        malformed=tuple(malformed),
    )


def find_metadata(path: Path, split: Split = "train") -> tuple[MetadataFile, ...]:
    """The metadata files of a corpus: one, or one per speaker folder in order of their names."""
    if not path.is_dir():
        # What is no file is refused when it is read.
        if not os.path.lexists(path):
            raise MetadataError(f"{path}: there is no such file or folder. {_suggest_path(path)}")
        return (MetadataFile(path, "", Path(os.path.realpath(path)).parent.name),)
    own = _find_in_folder(path, split)
    if own is not None:
        return (MetadataFile(own, "", path.resolve().name),)
    found = [(folder, _find_in_folder(folder, split)) for folder in _list_folders(path)]
    files = tuple(MetadataFile(file, f"{folder.name}/", folder.name) for folder, file in found if file is not None)
    if not files:
        raise MetadataError(f"{path}: {_describe_missing(path, split)}")
    return files


def _report_folders(root: Path, files: tuple[MetadataFile, ...]) -> None:
    used = {file.speaker for file in files if file.prefix}
    if not used:
        return
    _log.info("%s: %d speaker folders.", root, len(files))
    others = ", ".join(folder.name for folder in _list_folders(root) if folder.name not in used)
    if others:
        _log.warning("%s: folders without metadata are left out: %s.", root, others)


def _list_folders(root: Path) -> list[Path]:
    entries = (entry for entry in root.iterdir() if entry.is_dir() and not entry.name.startswith("."))
    return sorted(entries, key=lambda entry: entry.name)


def _find_in_folder(folder: Path, split: Split) -> Path | None:
    # A split that somebody made by hand wins over metadata.csv, which then holds the validation lines too.
    part, whole = folder / _PART[split], folder / _WHOLE
    if os.path.lexists(part):
        return part
    if split == "eval" and (folder / _PART["train"]).exists():
        return None
    return whole if os.path.lexists(whole) else None


def _describe_missing(path: Path, split: Split) -> str:
    if split == "eval" and (path / _PART["train"]).is_file():
        return f"has {_PART['train']} but no {_PART['eval']}. Add it, or leave --val-data out to get a seeded split."
    others = sorted(entry.name for entry in path.iterdir() if entry.suffix in (".csv", ".txt", ".tsv"))
    if others:
        return f"holds no {_WHOLE} and no {_PART[split]}. If {others[0]} is the metadata, give its own path: {path / others[0]}"
    return (
        f"holds no {_WHOLE} and no {_PART[split]}, and neither does any folder in it. An LJSpeech-style corpus has "
        f"{_WHOLE} with lines id|text|normalised, and the clips in wavs/ beside it."
    )


def _suggest_path(path: Path) -> str:
    folder = path.parent
    if not folder.is_dir():
        return f"The folder {folder} does not exist either."
    near = nearest_name(path.name, [entry.name for entry in folder.iterdir()])
    return f'Did you mean "{folder / near}"?' if near else "Nothing is ever downloaded: give a corpus on this machine."


@lru_cache(maxsize=256)
def _find_language(written: str) -> str:
    """The code of a language; as it is written where there is none, for the report of what is set aside."""
    try:
        return resolve_language(written)
    except UnsupportedLanguageError:
        return written


def _refuse_mostly_malformed(malformed: list[Drop], usable: int) -> None:
    if len(malformed) > usable:
        first = malformed[0]
        raise MetadataError(
            f"{first.where}: {first.detail} {len(malformed)} of {len(malformed) + usable} lines are "
            "like this. Lines must be id|text or id|text|normalised, or follow the header."
        )
