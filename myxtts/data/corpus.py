"""The clips a run trains on, in columns: a million of them take a few hundred megabytes.

A text column is a blob of bytes with offsets, a name column a number for each different name. Columns can be written
to a file by one process and read by another: exact, quick, and without a scan."""

from __future__ import annotations

import hashlib
import itertools
import json
import zipfile
from array import array
from collections.abc import Callable, Iterator
from dataclasses import dataclass, fields, is_dataclass
from io import BufferedReader
from pathlib import Path
from types import NoneType
from typing import Any, TypeVar, get_args, get_origin, get_type_hints

import numpy as np
from numpy.typing import NDArray

from myxtts.errors import ReadingError
from myxtts.files import MissingFileError, WriteError, open_file, open_file_atomically, parse_json
from myxtts.units import SAMPLE_RATE_HZ

Progress = Callable[[str, int, int], None]
"""Called with what is looked at ("audio", "text" ...), how many are done, and how many there are to do."""

Saved = TypeVar("Saved")

# Names on disk may hold bytes that are not UTF-8: they must come back as they were.
_ERRORS = "surrogateescape"
_TAKEN_AT_ONCE = 1 << 12
_FACTS = "facts"


@dataclass(frozen=True, eq=False)
class TextColumn:
    """An immutable sequence of strings."""

    blob: NDArray[np.uint8]
    offsets: NDArray[np.int64]
    """Where each entry starts in the blob; one more than there are entries."""

    def __len__(self) -> int:
        return len(self.offsets) - 1

    def __getitem__(self, index: int) -> str:
        if not 0 <= index < len(self):
            raise IndexError(f"entry {index} of {len(self)}")
        return self.blob[self.offsets[index] : self.offsets[index + 1]].tobytes().decode("utf-8", _ERRORS)

    def __iter__(self) -> Iterator[str]:
        for entry in self.iter_bytes():
            yield entry.decode("utf-8", _ERRORS)

    def iter_bytes(self) -> Iterator[bytes]:
        blob = self.blob.data
        for start, end in itertools.pairwise(self.offsets.data):
            yield bytes(blob[start:end])

    @property
    def parts(self) -> tuple[memoryview, NDArray[np.int64]]:
        """For `digest_parts`."""
        return self.blob.data, self.offsets

    def take(self, rows: NDArray[np.intp]) -> TextColumn:
        return TextColumn(*take_pieces(self.blob, self.offsets, rows))


class TextColumnBuilder:
    def __init__(self) -> None:
        self._blob = bytearray()
        self._offsets = array("q", [0])

    def append(self, entry: str) -> None:
        self._blob += entry.encode("utf-8", _ERRORS)
        self._offsets.append(len(self._blob))

    def build(self) -> TextColumn:
        """The finished column. It takes the builder's memory over: nothing can be appended any more."""
        return TextColumn(np.frombuffer(self._blob, dtype=np.uint8), np.frombuffer(self._offsets, dtype=np.int64))


@dataclass(frozen=True, eq=False)
class NameColumn:
    """A sequence of strings of which few are different: speakers, languages."""

    names: tuple[str, ...]
    """The different values, in order of first appearance."""
    codes: NDArray[np.int32]
    """For each entry, which of `names` it is."""

    def __len__(self) -> int:
        return len(self.codes)

    def __getitem__(self, index: int) -> str:
        return self.names[int(self.codes[index])]

    @property
    def parts(self) -> tuple[bytes, NDArray[np.int32]]:
        return "|".join(self.names).encode(), self.codes

    def take(self, rows: NDArray[np.intp]) -> NameColumn:
        used, first, codes = np.unique(self.codes[rows], return_index=True, return_inverse=True)
        order = np.argsort(first, kind="stable")
        rank = np.empty_like(order)
        rank[order] = np.arange(len(order))
        return NameColumn(tuple(self.names[used[i]] for i in order), rank[codes].astype(np.int32))


class NameColumnBuilder:
    def __init__(self) -> None:
        self._numbers: dict[str, int] = {}
        self._codes = array("i")

    def append(self, name: str) -> None:
        self._codes.append(self._numbers.setdefault(name, len(self._numbers)))

    def build(self) -> NameColumn:
        return NameColumn(tuple(self._numbers), np.array(self._codes, dtype=np.int32))


def take_pieces(
    values: NDArray[Any], offsets: NDArray[np.int64], rows: NDArray[np.intp]
) -> tuple[NDArray[Any], NDArray[np.int64]]:
    """The pieces at `rows` of a column of pieces, in that order, and where each starts."""
    if len(rows) == len(offsets) - 1 and np.array_equal(rows, np.arange(len(rows))):
        return values, offsets
    starts, lengths = offsets[rows], np.diff(offsets)[rows]
    ends = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64)
    taken = np.empty(ends[-1], dtype=values.dtype)
    # Bit by bit: the places of all values at once would take many times the values' own memory.
    for first in range(0, len(rows), _TAKEN_AT_ONCE):
        some = slice(first, first + _TAKEN_AT_ONCE)
        begin, end = ends[first], ends[min(first + _TAKEN_AT_ONCE, len(rows))]
        taken[begin:end] = values[np.repeat(starts[some] - ends[:-1][some], lengths[some]) + np.arange(begin, end)]
    return taken, ends


def digest_parts(*parts: bytes | memoryview | NDArray[np.generic]) -> str:
    """A digest of bytes and whole numbers, each with its length in front."""
    digest = hashlib.blake2b(digest_size=8)
    for part in parts:
        content = np.ascontiguousarray(part).astype("<i8").tobytes() if isinstance(part, np.ndarray) else part
        digest.update(memoryview(content).nbytes.to_bytes(8, "little"))
        digest.update(content)
    return digest.hexdigest()


@dataclass(frozen=True, eq=False)
class TextIds:
    """Token ids in one column, two bytes each where the vocabulary allows it."""

    ids: NDArray[np.unsignedinteger]
    offsets: NDArray[np.int64]

    def __len__(self) -> int:
        return len(self.offsets) - 1

    def __getitem__(self, text: int) -> NDArray[np.unsignedinteger]:
        return self.ids[self.offsets[text] : self.offsets[text + 1]]

    def take(self, texts: NDArray[np.intp]) -> TextIds:
        return TextIds(*take_pieces(self.ids, self.offsets, texts))

    def pad(self, texts: NDArray[np.integer], width: int) -> NDArray[np.int32]:
        """(texts, width) ids with zeros behind each text; negative numbers give rows of zeros."""
        starts, lengths = self.offsets[texts], np.where(texts >= 0, self.offsets[texts + 1] - self.offsets[texts], 0)
        columns = np.arange(width)
        is_own = columns < lengths[:, None]
        places = np.where(is_own, starts[:, None] + columns, 0)
        return np.where(is_own, self.ids[places], 0).astype(np.int32)


@dataclass(frozen=True, eq=False)
class Corpus:
    """Usable clips in metadata order. Clip numbers are positions in these columns."""

    root: Path
    audio: TextColumn
    """Each clip's file, relative to the root."""
    text: TextColumn
    speaker: NameColumn
    language: NameColumn
    samples: NDArray[np.int64]
    """Each clip's length at the model's rate, whatever the file's own rate."""
    tokens: NDArray[np.int32]
    """Each text's length in tokens; in characters where there is no vocabulary."""
    ids: TextIds
    """Each text's tokens; none where there is no vocabulary."""
    size_bytes: NDArray[np.int64]
    mtime_ns: NDArray[np.int64]
    """With the size, a file's identity for caches."""

    def __len__(self) -> int:
        return len(self.samples)

    def take(self, clips: NDArray[np.intp]) -> Corpus:
        columns = {each.name: getattr(self, each.name) for each in fields(self) if each.name != "root"}
        return Corpus(root=self.root, **{name: column.take(clips) for name, column in columns.items()})

    def find_file(self, clip: int) -> Path:
        return self.root / self.audio[clip]

    @property
    def total_seconds(self) -> float:
        return int(self.samples.sum()) / SAMPLE_RATE_HZ


def write_snapshot(path: Path, content: Any) -> None:
    """Save a dataclass of columns, numbers, names and other such dataclasses, replacing the file in one step.

    The file is an archive of NumPy columns with one JSON document beside them: values only, no code.
    """
    columns: dict[str, Any] = {}
    # Escaped to ASCII: a file name that is no UTF-8 holds surrogates, which only come back that way.
    document = json.dumps(_pack(content, "", columns)).encode("ascii")
    columns[_FACTS] = np.frombuffer(document, dtype=np.uint8)
    assert all(column.dtype != object for column in columns.values()), "plain columns: objects would be pickled"
    try:
        with open_file_atomically(path, follows_link=False) as file:
            np.savez(file, **columns)
    except WriteError as error:
        raise ReadingError(
            f"What the run reads must be written to {path} for the process that prepares it, but that failed: "
            f"{error.reason}. Make room there, or give another --checkpoint-dir."
        ) from error


def read_snapshot(path: Path, shape: type[Saved]) -> Saved:
    """What `write_snapshot` was given, a dataclass of this type. The archive's checksums are verified."""
    try:
        # Opened here: NumPy forgets to close a file that it cannot read.
        with BufferedReader(open_file(path)) as file, np.load(file, allow_pickle=False) as archive:
            columns = {name: archive[name] for name in archive.files}
        content: Saved = _unpack(shape, parse_json(columns.pop(_FACTS).tobytes()), "", columns)
    except MissingFileError:
        raise ReadingError(f"There is no {path}: the trainer writes it before anything is prepared.") from None
    except (OSError, EOFError, ValueError, KeyError, TypeError, zipfile.BadZipFile) as error:
        raise ReadingError(f"{path} must be a snapshot of what a run reads, but cannot be read: {error}.") from error
    return content


def _pack(value: Any, name: str, columns: dict[str, Any]) -> Any:
    """A value as JSON has it. Arrays go into `columns` instead, by their dotted names."""
    if isinstance(value, np.ndarray):
        columns[name] = value
        return None
    if is_dataclass(value):
        return {each.name: _pack(getattr(value, each.name), f"{name}.{each.name}", columns) for each in fields(value)}
    if isinstance(value, tuple | list):
        return [_pack(each, name, columns) for each in value]
    return str(value) if isinstance(value, Path) else value


def _unpack(shape: Any, content: Any, name: str, columns: dict[str, Any]) -> Any:
    """What `_pack` was given, a value of this type."""
    parts, kind = get_args(shape), get_origin(shape)
    if is_dataclass(shape):
        hints = get_type_hints(shape)
        values = {
            each.name: _unpack(hints[each.name], content[each.name], f"{name}.{each.name}", columns)
            for each in fields(shape)
        }
        return shape(**values)  # type: ignore[operator]
    if kind is np.ndarray:
        return columns[name]
    if NoneType in parts:
        return None if content is None else _unpack(parts[0], content, name, columns)
    if kind in (tuple, list):
        return kind(_unpack(parts[0], each, name, columns) for each in content)
    return content if isinstance(content, shape) else shape(content)
