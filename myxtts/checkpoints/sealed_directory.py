"""A directory that knows what is in it: files, and a `manifest.json` with their sizes and checksums.

    def write(files: DirectoryWriter) -> None:
        files.write_json("state.json", {"step": 1000})

    write_sealed_directory("checkpoints/step-1000", "myxtts training state", 1, write)
    manifest = open_sealed_directory("checkpoints/step-1000", "myxtts training state", 1)

Written atomically (`atomic_directory`), and read back from the file system before it takes its place.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from io import FileIO
from pathlib import Path
from typing import Any, BinaryIO

from myxtts import __version__
from myxtts.checkpoints.atomic_directory import write_directory_atomically
from myxtts.checkpoints.errors import CheckpointWriteError, DamagedFileError, ModelFileError
from myxtts.files import FileError, MissingFileError, explain_os_error, fit_shape, open_file, read_json

MANIFEST_NAME = "manifest.json"
_MAX_MANIFEST_BYTES = 2**20


@dataclass(frozen=True)
class FileFacts:
    """What a file must be."""

    size_bytes: int
    sha256: str


@dataclass(frozen=True)
class Manifest:
    """What a directory holds."""

    kind: str
    format_version: int
    files: Mapping[str, FileFacts]
    facts: Mapping[str, Any]
    """What the writer had to say beyond the files."""


@dataclass(frozen=True)
class _Entry:
    bytes: int
    sha256: str


@dataclass(frozen=True)
class _Content:
    """A manifest as it is written."""

    format: str
    format_version: int
    files: Mapping[str, _Entry]
    facts: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class _KnownFacts:
    """Those that are looked at."""

    notice: str | None = None
    step: int | None = None
    metrics: Mapping[str, float] = field(default_factory=dict)


class HashedFile:
    """A file being written that sums up what it was given."""

    def __init__(self, handle: BinaryIO):
        self._handle = handle
        self._hash = hashlib.sha256()
        self._size_bytes = 0

    def write(self, content: bytes | memoryview) -> int:
        """Appends bytes."""
        self._handle.write(content)
        self._hash.update(content)
        self._size_bytes += len(content)
        return len(content)

    @property
    def facts(self) -> FileFacts:
        """Size and checksum of all that was written."""
        return FileFacts(self._size_bytes, self._hash.hexdigest())


class DirectoryWriter:
    """Creates the files of a sealed directory."""

    def __init__(self, directory: Path):
        self._directory = directory
        self.files: dict[str, FileFacts] = {}

    @contextlib.contextmanager
    def create(self, name: str) -> Iterator[HashedFile]:
        """A new file in the directory, to be written in the block."""
        assert _is_plain_name(name), name
        with open(self._directory / name, "xb") as handle:
            hashed = HashedFile(handle)
            yield hashed
        self.files[name] = hashed.facts

    def write_text(self, name: str, text: str) -> None:
        """A UTF-8 text file."""
        with self.create(name) as file:
            file.write(text.encode("utf-8"))

    def write_json(self, name: str, value: Any) -> None:
        """A JSON file; what JSON does not know is written as its text."""
        self.write_text(name, json.dumps(value, indent=2, ensure_ascii=False, default=str) + "\n")


def write_sealed_directory(
    target: str | os.PathLike[str],
    kind: str,
    format_version: int,
    write: Callable[[DirectoryWriter], None],
    facts: Mapping[str, Any] | None = None,
) -> None:
    """Puts a directory at `target`, with the files that `write` creates and their manifest.

    Args:
        target: the directory; replaced as a whole if it exists.
        kind: what the directory is, in a few words; reading asks for the same.
        format_version: of this kind; readers refuse newer ones than they know.
        write: creates the files.
        facts: further entries for the manifest, of kinds that JSON knows.
    """

    def fill(directory: Path) -> None:
        writer = DirectoryWriter(directory)
        write(writer)
        for name, expected in writer.files.items():
            with open_file(directory / name) as handle:
                found = _sum_file(handle)
            if found != expected:
                raise CheckpointWriteError(
                    f"{target}: {name} reads back otherwise than it was written. The disk may be failing: check it, or "
                    "give another directory. What was there before is untouched."
                )
        files = {name: {"bytes": file.size_bytes, "sha256": file.sha256} for name, file in writer.files.items()}
        writer.write_json(
            MANIFEST_NAME,
            {
                "format": kind,
                "format_version": format_version,
                "written_by": f"myxtts {__version__}",
                "files": files,
                "facts": dict(facts or {}),
            },
        )

    write_directory_atomically(target, fill)


def open_sealed_directory(
    path: str | os.PathLike[str], kind: str, newest_version: int, *, verify_checksums: bool = True
) -> Manifest:
    """The manifest of a directory whose files are all there, with the right size and, unless waived, checksum."""
    directory = Path(path)
    if not directory.is_dir():
        raise ModelFileError(
            directory, "there is no such directory." if not directory.exists() else "is not a directory."
        )
    manifest = read_manifest(directory, kind, newest_version)
    for name, expected in manifest.files.items():
        _check_file(directory / name, expected, verify_checksums)
    return manifest


def read_manifest(directory: Path, kind: str, newest_version: int) -> Manifest:
    """What a directory says it holds; the files themselves are not looked at."""
    path = directory / MANIFEST_NAME
    try:
        # Losses among the facts may be infinite.
        content = read_json(path, _Content, most_bytes=_MAX_MANIFEST_BYTES, allow_infinite=True)
        fit_shape(content.facts, _KnownFacts)
    except MissingFileError:
        raise DamagedFileError(
            directory,
            f"has no {MANIFEST_NAME}, so MyXTTS did not write it. A Coqui model is imported from its .pth file.",
        ) from None
    except FileError as error:
        raise _explain_read_error(error) from None
    except ValueError as error:
        raise DamagedFileError(path, f"is damaged: {error}. Copy the directory again.") from None
    files = {name: FileFacts(entry.bytes, entry.sha256) for name, entry in content.files.items()}
    manifest = Manifest(content.format, content.format_version, files, content.facts)
    if manifest.kind != kind:
        raise ModelFileError(directory, f"must be a {kind}, but is a {manifest.kind}.")
    if manifest.format_version > newest_version:
        raise ModelFileError(
            directory,
            f"was written by a newer MyXTTS (format {manifest.format_version}; this one reads up to {newest_version}). "
            "Update MyXTTS.",
        )
    if not all(_is_plain_name(name) for name in manifest.files):
        raise ModelFileError(
            path, "names a file that cannot be in the directory. Copy the directory again from where it came from."
        )
    return manifest


@contextlib.contextmanager
def _open_part(path: Path) -> Iterator[FileIO]:
    try:
        with open_file(path) as handle:
            yield handle
    except MissingFileError:
        raise DamagedFileError(path, "is missing. Copy the directory again.") from None
    except FileError as error:
        raise _explain_read_error(error) from None
    except OSError as error:
        raise _explain_read_error(explain_os_error(path, error)) from None


def _check_file(path: Path, expected: FileFacts, verify_checksum: bool) -> None:
    with _open_part(path) as handle:
        size_bytes = os.fstat(handle.fileno()).st_size
        if size_bytes != expected.size_bytes:
            raise DamagedFileError(
                path,
                f"must have {expected.size_bytes} bytes, but has {size_bytes}: it is cut short, or was changed. "
                "Copy the directory again.",
            )
        if verify_checksum and _sum_file(handle) != expected:
            raise DamagedFileError(path, "is damaged: its checksum is not the one recorded. Copy the directory again.")


def _sum_file(handle: FileIO) -> FileFacts:
    checksum = hashlib.file_digest(handle, "sha256").hexdigest()
    return FileFacts(handle.tell(), checksum)


def _explain_read_error(error: FileError) -> ModelFileError:
    # What the disk cannot give back, or is no file, is damage; what this user may not read is none.
    kind = ModelFileError if isinstance(error.__cause__, PermissionError) else DamagedFileError
    return kind(error.path, f"{error.problem} Copy the directory again.")


def _is_plain_name(name: str) -> bool:
    return name == os.path.basename(name) and name not in ("", ".", "..") and name.isprintable()
