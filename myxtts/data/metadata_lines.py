"""The lines of one metadata file: how they are split, what a header says, which cannot be used."""

from __future__ import annotations

import csv
import itertools
import posixpath
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from myxtts.data.errors import MetadataError
from myxtts.files import FileError, iter_lines

COLUMN_NAMES: dict[str, tuple[str, ...]] = {
    "audio": ("audio_file", "id", "audio", "audio_path", "file_name", "filename", "path"),
    "text": ("text", "transcript", "transcription", "sentence"),
    "normalised": ("normalised", "normalized", "normalised_text", "normalized_text"),
    "speaker": ("speaker_name", "speaker", "speaker_id"),
    "language": ("language", "lang", "language_code"),
}
"""What a header may call each column; the first name is the usual one. Other columns are ignored."""

_ROLES = {name: role for role, names in COLUMN_NAMES.items() for name in names}

_SOUND_STARTS = (b"RIFF", b"fLaC", b"OggS", b"ID3", b"\xff\xfb")
"""Of WAV, FLAC, Ogg and MP3 files."""

MOST_TEXT_CHARACTERS = 10_000
"""More than anybody says in two minutes, the longest clip that is read. Words and numbers of a line of megabytes would be looked
at for minutes, to set it aside in the end."""
MOST_BLOCK_BYTES = 64 << 20
"""Up to a line's end; where lines end as on an old Mac, that is the whole file."""

_SAMPLE_LINES = 10_000
"""So many lines decide how a file without a header is laid out."""


class MetadataLine(NamedTuple):
    """What one line says. `speaker` and `language` are empty where the file names none."""

    number: int
    audio: str
    text: str
    speaker: str = ""
    language: str = ""


class MalformedLine(NamedTuple):
    """A line that cannot be used, and why."""

    number: int
    problem: str


@dataclass(frozen=True)
class _Layout:
    """Which column holds what."""

    columns: int
    positions: tuple[int | None, ...]
    """Where audio, text, normalised text, speaker and language stand: in the order of `COLUMN_NAMES`."""
    has_header: bool


def read_lines(path: Path) -> Iterator[MetadataLine | MalformedLine]:
    """The lines of a metadata file, in order, blank ones and the header left out.

    Raises `MetadataError` when the file as a whole cannot be read as metadata.
    """
    lines = _decode_lines(path)
    sample = list(itertools.islice(lines, _SAMPLE_LINES))
    if not sample:
        raise MetadataError(f"{path}: is empty. It must hold one line per clip: id|text or id|text|normalised.")
    layout = _read_header(path, sample[0][1])
    if layout is not None:
        sample = sample[1:]
        if not sample:
            raise MetadataError(f"{path}: holds a header and no clips.")
    else:
        layout = _guess_layout(path, sample)
    for number, line in itertools.chain(sample, lines):
        yield _parse_line(path, number, line, layout)


def _decode_lines(path: Path) -> Iterator[tuple[int, str]]:
    number = 0
    for block in _read_blocks(path):
        if number == 0:
            if block.startswith((b"\xff\xfe", b"\xfe\xff")):
                raise MetadataError(f"{path}: is UTF-16 text, as some spreadsheets write it. Save the file as UTF-8.")
            if block.startswith(_SOUND_STARTS):
                raise MetadataError(
                    f"{path}: is a sound file. Give the corpus folder, or the metadata file that has a line for each clip."
                )
            # Editors on Windows put a byte order mark in front.
            block = block.removeprefix(b"\xef\xbb\xbf")
        for raw in block.rstrip(b"\r\n").split(b"\r"):
            number += 1
            try:
                line = raw.decode("utf-8")
            except UnicodeDecodeError as error:
                raise MetadataError(
                    f"{path}, line {number}: is not UTF-8 ({error.reason} at byte {error.start}). Save the file as UTF-8."
                ) from None
            if line.strip():
                yield number, line


def _read_blocks(path: Path) -> Iterator[bytes]:
    try:
        yield from iter_lines(path, MOST_BLOCK_BYTES)
    except FileError as error:
        raise MetadataError(f"{error} Give a metadata file that can be read, or the folder of a corpus.") from error


def _read_header(path: Path, line: str) -> _Layout | None:
    """The layout a header gives, or None when the first line is a clip."""
    names = [name.strip().strip('"').lower() for name in line.split("|")]
    roles = [_ROLES.get(name) for name in names]
    known = [role for role in roles if role is not None]
    if len(known) < 2 and roles[0] != "audio":
        return None
    for role in ("audio", "text"):
        if role not in known and not (role == "text" and "normalised" in known):
            raise MetadataError(
                f"{path}: its header ({' | '.join(names)}) names no column for the {role}. "
                f"Call that column {COLUMN_NAMES[role][0]}."
            )
    twice = next((role for role in known if known.count(role) > 1), None)
    if twice is not None:
        both = " and ".join(name for name in names if _ROLES.get(name) == twice)
        raise MetadataError(f"{path}: its header names the {twice} twice, as {both}. Keep one of them.")
    positions = tuple(roles.index(role) if role in roles else None for role in COLUMN_NAMES)
    return _Layout(len(names), positions, has_header=True)


def _guess_layout(path: Path, sample: Sequence[tuple[int, str]]) -> _Layout:
    columns = Counter(line.count("|") + 1 for _, line in sample).most_common(1)[0][0]
    if columns == 1:
        number, line = sample[0]
        raise MetadataError(
            f"{path}, line {number}: has no '|': {_shorten(line)}. Lines must be id|text or id|text|normalised; "
            "commas and tabs do not separate columns."
        )
    if columns >= 3:
        _refuse_names_as_text(path, [line.split("|") for _, line in sample if line.count("|") + 1 == columns])
    return _Layout(columns, (0, 1, 2 if columns >= 3 else None, None, None), has_header=False)


def _refuse_names_as_text(path: Path, rows: list[list[str]]) -> None:
    """Refuse a third column that holds speakers: `wavs/a.wav|some text|anna` would train on "anna"."""
    pairs = [(row[1].strip(), row[2].strip()) for row in rows if row[2].strip()]
    if not pairs:
        return
    texts, thirds = {text for text, _ in pairs}, {third for _, third in pairs}
    single_words = sum(" " not in third and text.count(" ") >= 2 for text, third in pairs)
    if 2 * len(thirds) > len(texts) and 2 * single_words <= len(pairs):
        return
    examples = ", ".join(sorted(thirds)[:3])
    raise MetadataError(
        f"{path}: has no header, so its third column must be the normalised text, but it holds only {len(thirds)} "
        f"different values beside {len(texts)} texts ({_shorten(examples)}). If these are speakers, put this line "
        "first: audio_file|text|speaker_name"
    )


def _parse_line(path: Path, number: int, line: str, layout: _Layout) -> MetadataLine | MalformedLine:
    fields = _split_fields(line, layout)
    if fields is None:
        columns = line.count("|") + 1
        hint = " Text must not contain '|'." if columns > layout.columns else ""
        return MalformedLine(number, f"has {columns} columns where the file has {layout.columns}.{hint}")
    audio, text, normalised, speaker, language = (
        fields[i].strip() if i is not None and i < len(fields) else "" for i in layout.positions
    )
    if not audio or "\0" in audio:
        return MalformedLine(number, "names no audio file.")
    audio = audio.replace("\\", "/")
    if "./" in audio or "//" in audio:
        # Two spellings of one path would be two clips.
        audio = posixpath.normpath(audio)
    problem = "is an absolute path" if audio[0] == "/" or audio[1:3] == ":/" else ""
    if ".." in audio and ".." in audio.split("/"):
        problem = "leads out of its folder with '..'"
    if problem:
        raise MetadataError(
            f"{path}, line {number}: the audio file {_shorten(audio)} {problem}. Paths must lie inside the corpus folder "
            "and be relative to it; bring files from elsewhere in with a symbolic link."
        )
    text = normalised or text
    if len(text) > MOST_TEXT_CHARACTERS:
        return MalformedLine(
            number, f"has {len(text)} characters of text, where a clip may have {MOST_TEXT_CHARACTERS} at most."
        )
    return MetadataLine(number, audio, text, speaker, language)


def _split_fields(line: str, layout: _Layout) -> list[str] | None:
    """The fields of a line, or None when their number does not fit."""
    fields = line.split("|")
    if not layout.has_header:
        # A line without its normalised text is complete; any other number means a '|' inside the text.
        return fields if len(fields) == layout.columns or len(fields) == 2 else None
    if len(fields) == layout.columns:
        return [_unquote(field) for field in fields]
    # Files with a header are often written by a CSV library, which quotes a text that holds '|'.
    try:
        quoted = next(csv.reader([line], delimiter="|"))
    except csv.Error:
        return None
    return quoted if len(quoted) == layout.columns else None


_QUOTED = re.compile(r'"((?:[^"]|"")*)"')


def _unquote(field: str) -> str:
    match = _QUOTED.fullmatch(field.strip()) if '"' in field else None
    return match[1].replace('""', '"') if match else field


def _shorten(text: str) -> str:
    return repr(text if len(text) <= 60 else text[:57] + "...")
