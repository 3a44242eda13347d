"""LJSpeech-style corpora: where their metadata is, what it says, and which file on disk a line means.

A corpus is a folder with `metadata.csv` (or `metadata_train.csv` and `metadata_eval.csv`) and the clips in `wavs/`
beside it, or a folder of such folders, one per speaker, or a metadata file's own path."""

from __future__ import annotations

import csv
import itertools
import logging
import os
import posixpath
import re
import stat
import unicodedata
from array import array
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from myxtts.config.settings import nearest_name
from myxtts.data.corpus import NameColumn, NameColumnBuilder, TextColumn, TextColumnBuilder
from myxtts.data.drops import Drop
from myxtts.errors import CorpusError, DropReason, UnsupportedLanguageError
from myxtts.files import FileError, iter_lines
from myxtts.hashing import digest64
from myxtts.text.normalise import resolve_language

_log = logging.getLogger(__name__)


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


_Fields = tuple[str, str, str, str]
"""Of a line: audio file, text, speaker and language; the last two are empty where it names none."""


class _Layout(NamedTuple):
    columns: int
    positions: tuple[int | None, ...]
    """Where audio, text, normalised text, speaker and language stand: in the order of `COLUMN_NAMES`."""
    has_header: bool


def _read_lines(path: Path) -> Iterator[tuple[int, _Fields | str]]:
    """The numbers of lines, blank ones and the header left out, with their fields, or why they cannot be used."""
    lines = _decode_lines(path)
    sample = list(itertools.islice(lines, _SAMPLE_LINES))
    if not sample:
        raise CorpusError(f"{path}: is empty. It must hold one line per clip: id|text or id|text|normalised.")
    layout = _read_header(path, sample[0][1])
    if layout is None:
        layout = _guess_layout(path, sample)
    elif len(sample) == 1:
        raise CorpusError(f"{path}: holds a header and no clips.")
    for number, line in itertools.chain(sample[layout.has_header :], lines):
        yield number, _parse_line(path, number, line, layout)


def _decode_lines(path: Path) -> Iterator[tuple[int, str]]:
    number = 0
    try:
        for block in iter_lines(path, MOST_BLOCK_BYTES):
            if number == 0:
                if block.startswith((b"\xff\xfe", b"\xfe\xff")):
                    raise CorpusError(f"{path}: is UTF-16 text, as some spreadsheets write it. Save the file as UTF-8.")
                if block.startswith(_SOUND_STARTS):
                    raise CorpusError(
                        f"{path}: is a sound file. Give the corpus folder, or the metadata file that has a line for each clip."
                    )
                # Editors on Windows put a byte order mark in front.
                block = block.removeprefix(b"\xef\xbb\xbf")
            for raw in block.rstrip(b"\r\n").split(b"\r"):
                number += 1
                line = raw.decode("utf-8")
                if line.strip():
                    yield number, line
    except UnicodeDecodeError as error:
        raise CorpusError(
            f"{path}, line {number}: is not UTF-8 ({error.reason} at byte {error.start}). Save the file as UTF-8."
        ) from None
    except FileError as error:
        raise CorpusError(f"{error} Give a metadata file that can be read, or the folder of a corpus.") from error


def _read_header(path: Path, line: str) -> _Layout | None:
    """The layout a header gives, or None when the first line is a clip."""
    names = [name.strip().strip('"').lower() for name in line.split("|")]
    roles = [_ROLES.get(name) for name in names]
    known = [role for role in roles if role is not None]
    if len(known) < 2 and roles[0] != "audio":
        return None
    for role in ("audio", "text"):
        if role not in known and not (role == "text" and "normalised" in known):
            raise CorpusError(
                f"{path}: its header ({' | '.join(names)}) names no column for the {role}. "
                f"Call that column {COLUMN_NAMES[role][0]}."
            )
    twice = next((role for role in known if known.count(role) > 1), None)
    if twice is not None:
        both = " and ".join(name for name in names if _ROLES.get(name) == twice)
        raise CorpusError(f"{path}: its header names the {twice} twice, as {both}. Keep one of them.")
    positions = tuple(roles.index(role) if role in roles else None for role in COLUMN_NAMES)
    return _Layout(len(names), positions, has_header=True)


def _guess_layout(path: Path, sample: Sequence[tuple[int, str]]) -> _Layout:
    columns = Counter(line.count("|") + 1 for _, line in sample).most_common(1)[0][0]
    if columns == 1:
        number, line = sample[0]
        raise CorpusError(
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
    raise CorpusError(
        f"{path}: has no header, so its third column must be the normalised text, but it holds only {len(thirds)} "
        f"different values beside {len(texts)} texts ({_shorten(examples)}). If these are speakers, put this line "
        "first: audio_file|text|speaker_name"
    )


def _parse_line(path: Path, number: int, line: str, layout: _Layout) -> _Fields | str:
    fields = _split_fields(line, layout)
    if fields is None:
        columns = line.count("|") + 1
        hint = " Text must not contain '|'." if columns > layout.columns else ""
        return f"has {columns} columns where the file has {layout.columns}.{hint}"
    audio, text, normalised, speaker, language = (
        fields[i].strip() if i is not None and i < len(fields) else "" for i in layout.positions
    )
    if not audio or "\0" in audio:
        return "names no audio file."
    audio = audio.replace("\\", "/")
    if "./" in audio or "//" in audio:
        # Two spellings of one path would be two clips.
        audio = posixpath.normpath(audio)
    problem = "is an absolute path" if audio[0] == "/" or audio[1:3] == ":/" else ""
    if ".." in audio and ".." in audio.split("/"):
        problem = "leads out of its folder with '..'"
    if problem:
        raise CorpusError(
            f"{path}, line {number}: the audio file {_shorten(audio)} {problem}. Paths must lie inside the corpus folder "
            "and be relative to it; bring files from elsewhere in with a symbolic link."
        )
    text = normalised or text
    if len(text) > MOST_TEXT_CHARACTERS:
        return f"has {len(text)} characters of text, where a clip may have {MOST_TEXT_CHARACTERS} at most."
    return audio, text, speaker, language


def _split_fields(line: str, layout: _Layout) -> list[str] | None:
    """The fields of a line, or None when their number does not fit."""
    fields = line.split("|")
    if not layout.has_header:
        # A line without its normalised text is complete; any other number means a '|' inside the text.
        return fields if len(fields) in (layout.columns, 2) else None
    if len(fields) == layout.columns:
        return [_unquote(field) for field in fields]
    # Files with a header are often written by a CSV library, which quotes a text that holds '|'.
    try:
        quoted = next(csv.reader([line], delimiter="|"))
    except csv.Error:
        return None
    return quoted if len(quoted) == layout.columns else None


def _unquote(field: str) -> str:
    match = re.fullmatch(r'"((?:[^"]|"")*)"', field.strip()) if '"' in field else None
    return match[1].replace('""', '"') if match else field


def _shorten(text: str) -> str:
    return repr(text if len(text) <= 60 else text[:57] + "...")


Split = Literal["train", "eval"]

_WHOLE = "metadata.csv"
_PART: dict[Split, str] = {"train": "metadata_train.csv", "eval": "metadata_eval.csv"}

AUDIO_SUFFIXES = (".wav", ".flac", ".ogg", ".mp3")
"""Looked for in this order when a line gives an id, or an extension the file does not have."""

AUDIO_FOLDER = "wavs/"

_SUFFIXES = (*AUDIO_SUFFIXES, *(suffix.upper() for suffix in AUDIO_SUFFIXES))


class MetadataFile(NamedTuple):
    """A metadata file and what holds for all of its lines."""

    path: Path
    prefix: str
    """The folder its clip paths are relative to, as seen from the corpus root: empty, or a folder name and a slash."""
    speaker: str
    """The speaker of lines that name none: the folder's name."""


@dataclass(frozen=True, eq=False)
class Metadata:
    """All lines of a corpus and their clips' files, in columns of equal length."""

    root: Path
    files: tuple[MetadataFile, ...]
    file_numbers: NDArray[np.int64]
    """Which of `files` a line stands in."""
    line_numbers: NDArray[np.int64]
    """The line's number in its file, counted from 1."""
    audio: TextColumn
    """The clip's file, relative to the root; where none was found, what the line says."""
    key: NDArray[np.int64]
    is_found: NDArray[np.bool_]
    is_repeated: NDArray[np.bool_]
    """Whether an earlier line has named the same file."""
    is_linked: NDArray[np.bool_]
    """Whether it lies behind a symbolic link; looked for only where links are not followed."""
    size_bytes: NDArray[np.int64]
    mtime_ns: NDArray[np.int64]
    text: TextColumn
    """What is spoken: the normalised text where there is one, else the text. May be empty."""
    speaker: NameColumn
    language: NameColumn
    malformed: tuple[Drop, ...]

    def __len__(self) -> int:
        return len(self.line_numbers)

    def describe_line(self, row: int) -> str:
        return f"{self.files[self.file_numbers[row]].path}, line {self.line_numbers[row]}"


def read_metadata(
    path: Path, *, split: Split = "train", language: str = "en", follow_symlinks: bool = True
) -> Metadata:
    """Every line of a corpus: a folder, a folder of speaker folders, or a metadata file.

    Args:
        split: which of `metadata_train.csv` and `metadata_eval.csv` to read where a folder has them.
        language: the language of lines that name none.
    """
    root = path if path.is_dir() else path.parent
    files = find_metadata(path, split)
    used = {file.speaker for file in files if file.prefix}
    if used:
        _log.info("%s: %d speaker folders.", root, len(files))
        others = ", ".join(folder.name for folder in _list_folders(root) if folder.name not in used)
        if others:
            _log.warning("%s: folders without metadata are left out: %s.", root, others)
    base, real, folders = f"{root}/", os.path.realpath(root), dict[str, bool]()
    numbers, is_found, is_linked = array("q"), bytearray(), bytearray()
    audio, text = TextColumnBuilder(), TextColumnBuilder()
    speaker, languages = NameColumnBuilder(), NameColumnBuilder()
    malformed: list[Drop] = []
    for file_number, file in enumerate(files):
        for line_number, line in _read_lines(file.path):
            if isinstance(line, str):
                name, where = f"{file.path.name}:{line_number}", f"{file.path}, line {line_number}"
                malformed.append(Drop(DropReason.MALFORMED_LINE, name, where, line))
                continue
            written, spoken, own_speaker, own_language = line
            found = _find_clip(base, file.prefix, written, folders)
            name, size, time = found or (file.prefix + written, 0, 0)
            numbers.extend((file_number, line_number, size, time))
            is_found.append(found is not None)
            is_linked.append(not follow_symlinks and os.path.realpath(base + name) != f"{real}/{name}")
            audio.append(name)
            text.append(spoken)
            speaker.append(own_speaker or file.speaker)
            languages.append(_find_language(own_language or language))
    if len(malformed) > len(is_found):
        raise CorpusError(
            f"{malformed[0].where}: {malformed[0].detail} {len(malformed)} of {len(malformed) + len(is_found)} lines are "
            "like this. Lines must be id|text or id|text|normalised, or follow the header."
        )
    column = audio.build()
    keys = np.fromiter(map(digest64, column.iter_bytes()), dtype=np.int64, count=len(column))
    is_repeated = np.frombuffer(is_found, dtype=np.bool_).copy()
    is_repeated[np.unique(keys, return_index=True)[1]] = False
    file_numbers, line_numbers, sizes, times = np.frombuffer(numbers, dtype=np.int64).reshape(-1, 4).T
    return Metadata(
        root=root,
        files=files,
        file_numbers=file_numbers,
        line_numbers=line_numbers,
        audio=column,
        key=keys,
        is_found=np.frombuffer(is_found, dtype=np.bool_),
        is_repeated=is_repeated,
        is_linked=np.frombuffer(is_linked, dtype=np.bool_),
        size_bytes=sizes,
        mtime_ns=times,
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
            raise CorpusError(f"{path}: there is no such file or folder. {_suggest_path(path)}")
        return (MetadataFile(path, "", Path(os.path.realpath(path)).parent.name),)
    own = _find_in_folder(path, split)
    if own is not None:
        return (MetadataFile(own, "", path.resolve().name),)
    found = [(folder, _find_in_folder(folder, split)) for folder in _list_folders(path)]
    files = tuple(MetadataFile(file, f"{folder.name}/", folder.name) for folder, file in found if file is not None)
    if not files:
        raise CorpusError(f"{path}: {_describe_missing(path, split)}")
    return files


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
    missing = f"holds no {_WHOLE} and no {_PART[split]}"
    others = sorted(entry.name for entry in path.iterdir() if entry.suffix in (".csv", ".txt", ".tsv"))
    if others:
        return f"{missing}. If {others[0]} is the metadata, give its own path: {path / others[0]}"
    return (
        f"{missing}, and neither does any folder in it. An LJSpeech-style corpus has {_WHOLE} with lines id|text|normalised, "
        "and the clips in wavs/ beside it."
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


def _find_clip(base: str, prefix: str, name: str, folders: dict[str, bool]) -> tuple[str, int, int] | None:
    """The regular file below `base` that `name` means in the folder `prefix` (empty or ending in a slash): its path from there,
    its size in bytes and its time of change in ns.

    Args:
        folders: which ones exist, remembered: asking the disk about those that do not would double the cost of a warm start.
    """
    for path in map(prefix.__add__, _list_candidates(name)):
        folder = path.rpartition("/")[0]
        if folder not in folders:
            folders[folder] = os.path.isdir(base + folder)
        if folders[folder]:
            try:
                status = os.stat(base + path)
            except OSError:
                continue
            # Opening a named pipe would wait for ever.
            if stat.S_ISREG(status.st_mode):
                return path, status.st_size, status.st_mtime_ns
    return None


def _list_candidates(name: str) -> Iterator[str]:
    """Where to look, best guess first."""
    folders = ("", AUDIO_FOLDER) if "/" in name else (AUDIO_FOLDER, "")
    spellings = [name]
    if not name.isascii():
        # macOS stores "é" as two characters, most editors write one.
        spellings = list(dict.fromkeys([name, unicodedata.normalize("NFC", name), unicodedata.normalize("NFD", name)]))
    for spelling in spellings:
        stem, dot, ending = spelling.rpartition(".")
        has_ending = dot and "/" not in ending
        if has_ending:
            yield from (folder + spelling for folder in folders)
        if has_ending and dot + ending in _SUFFIXES:
            spelling = stem
        for suffix in _SUFFIXES:
            yield from (folder + spelling + suffix for folder in folders)


def demo_corpus_path() -> Path:
    """The folder of the embedded demo corpus, in LJSpeech form. Its `SOURCES.txt` says how it was made."""
    return Path(__file__).resolve().parent / "demo"
