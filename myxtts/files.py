"""Reading files that somebody else may have written, and writing files and folders that are there whole or not at all.

What is written comes into being in a work folder beside its place, is flushed to the disk, and gets its name by a rename. A
folder that is replaced waits in the work folder meanwhile. Its writer holds a lock in it: a work folder that nobody holds is
removed by whoever writes there next. Each failure is a `WriteError`, and leaves what was there before.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import functools
import itertools
import json
import math
import os
import re
import secrets
import shutil
import stat
import tempfile
from collections.abc import Collection, Iterator
from io import BufferedReader, FileIO
from pathlib import Path
from typing import Any, BinaryIO, TypeVar

from myxtts.errors import FileError as FileError
from myxtts.errors import MachineError

MOST_TEXT_BYTES = 4 << 20
"""Of a text, a configuration or a small JSON file: a published vocabulary has a tenth of it."""
MOST_DEPTH = 64
"""Of JSON: lists and objects in each other. Deeper ones would exhaust the stack of whoever writes them again."""
MOST_NUMBER = 1e100
"""Of JSON: sums and squares of larger ones are infinite."""
MOST_BITS = 64
"""Of a whole number in JSON: larger ones are sizes of nothing, and fit no array."""

PathLike = str | os.PathLike[str]
Shape = TypeVar("Shape")

_ADAPTERS: dict[Any, Any] = {}
_KINDS = {stat.S_IFDIR: "a folder", stat.S_IFIFO: "a named pipe", stat.S_IFSOCK: "a socket"}
_WORK_NAME = re.compile(r"(\.myxtts|myxtts-[a-z]+)-[0-9a-f]{16}")
_TAKEN, _LOCK = ".myxtts-taken", ".myxtts-lock"
"""Where a work folder holds what is being replaced, and what its writer locks."""
_TAKEN_ERRORS = (errno.ENOTEMPTY, errno.EEXIST, errno.ENOTDIR)
_WAY_OUT = "Give a new or empty folder."
_SHOWN_NAMES = 3


class MissingFileError(FileError):
    """There is no file of that name."""


class OutputFolderError(FileError):
    """A folder cannot be written where it was asked for, or something that is there would be lost."""


class WriteError(MachineError):
    """A file or a folder could not be written. What was there before is untouched."""

    def __init__(self, path: PathLike, problem: str):
        super().__init__(f"{path}: {problem}")

    @property
    def reason(self) -> str:
        """What the system says, in its own words."""
        return getattr(self.__cause__, "strerror", None) or str(self.__cause__ or self)


class DiskFullError(WriteError):
    """There is no room for what should be written; `free_bytes` were left there after the attempt."""

    def __init__(self, path: PathLike, problem: str, free_bytes: int):
        self.free_bytes = free_bytes
        super().__init__(path, problem)


def _open_at_once(path: str, flags: int) -> int:
    # Not to wait for the writer of a pipe that was put in a file's place just now.
    return os.open(path, flags | os.O_NONBLOCK)


def open_file(path: PathLike) -> FileIO:
    """A regular file, opened for reading without a buffer. Raises `FileError`.

    Errors of the disk that come later, while it is read, are the caller's to name: `explain_os_error` does.
    """
    try:
        # Asked first: to open a device may already do something to it.
        mode = os.stat(path).st_mode
        file = FileIO(path, opener=_open_at_once) if stat.S_ISREG(mode) else None
        mode = os.fstat(file.fileno()).st_mode if file else mode
    except (OSError, ValueError) as error:
        raise explain_os_error(path, error) from error
    if file and stat.S_ISREG(mode):
        return file
    if file:
        file.close()
    raise FileError(path, f"must be a file, but is {_KINDS.get(stat.S_IFMT(mode), 'a device')}.")


def explain_os_error(path: PathLike, error: OSError | ValueError) -> FileError:
    """What keeps a file from being read, as an error that names it."""
    if isinstance(error, FileNotFoundError):
        return MissingFileError(path, "there is no such file. Check the path, and the case of its letters.")
    if isinstance(error, OSError):
        return FileError(path, f"cannot be read ({error.strerror}).")
    return FileError(ascii(os.fspath(path)), f"cannot be the path of a file ({error}).")


def read_bytes(path: PathLike, most_bytes: int = MOST_TEXT_BYTES) -> bytes:
    """The content of a file of bounded size. Raises `FileError`."""
    content = bytearray()
    with open_file(path) as file:
        try:
            # Some files of the kernel claim to be empty, so that the size asked for beforehand decides nothing.
            while len(content) <= most_bytes and (part := file.read(1 << 20)):
                content += part
        except OSError as error:
            raise explain_os_error(path, error) from error
    if len(content) > most_bytes:
        raise FileError(path, f"must have at most {most_bytes:,} bytes, but has more.")
    return bytes(content)


def read_text(path: PathLike, most_bytes: int = MOST_TEXT_BYTES) -> str:
    """The text in a UTF-8 file, without the mark that editors on Windows put in front. Raises `FileError`."""
    try:
        return read_bytes(path, most_bytes).decode("utf-8-sig")
    except UnicodeDecodeError as error:
        where = f"{error.reason} at byte {error.start}"
        raise FileError(path, f"must be UTF-8 text, but is not ({where}).") from None


def iter_lines(path: PathLike, most_bytes: int = MOST_TEXT_BYTES) -> Iterator[bytes]:
    """The lines of a file of any length, each with its end, the last perhaps without. Raises `FileError`.

    A longer line than `most_bytes` is an error: a file without line ends may be larger than the memory.
    """
    with BufferedReader(open_file(path)) as file:
        for number in itertools.count(1):
            try:
                line = file.readline(most_bytes + 1)
            except OSError as error:
                raise explain_os_error(path, error) from error
            if not line:
                return
            if len(line) > most_bytes:
                raise FileError(path, f"must have lines of at most {most_bytes:,} bytes, but line {number} has more.")
            yield line


def read_json(
    path: PathLike, shape: type[Shape], *, most_bytes: int = MOST_TEXT_BYTES, allow_infinite: bool = False
) -> Shape:
    """The object in a small JSON file, as a `dict` or a dataclass, which leaves out what it does not name.

    Raises `FileError`. Losses that a run has written down may be infinite or no numbers.
    """
    text = read_text(path, most_bytes)
    problem = "must be JSON, but"
    try:
        content = parse_json(text, allow_infinite=allow_infinite)
        problem = "is not what it should be:"
        return fit_shape(content, shape)
    except ValueError as error:
        raise FileError(path, f"{problem} {error}.") from None


def parse_json(text: str | bytes, *, allow_infinite: bool = False) -> Any:
    """What a JSON text says, no deeper and with no larger numbers than anything here needs.

    Raises `ValueError` with what is wrong, as the end of a sentence: "must be JSON, but ...".
    """
    too_deep = f"its lists and objects are nested more than {MOST_DEPTH} deep"
    try:
        content = _make_decoder(allow_infinite).decode(text.decode("utf-8") if isinstance(text, bytes) else text)
        # Half characters that stand for the bytes of a file name are written by us, and can be written again.
        json.dumps(content, ensure_ascii=False).encode("utf-8", "surrogateescape")
    except RecursionError:
        raise ValueError(too_deep) from None
    except UnicodeEncodeError:
        raise ValueError("holds a text with half a character") from None
    except (UnicodeDecodeError, json.JSONDecodeError) as error:
        raise ValueError(f"is not ({error})") from None
    level = [content]
    for _ in range(MOST_DEPTH):
        groups = (
            value.values() if isinstance(value, dict) else value for value in level if isinstance(value, dict | list)
        )
        if not (level := [*itertools.chain.from_iterable(groups)]):
            return content
    raise ValueError(too_deep)


@functools.cache
def _make_decoder(allow_infinite: bool) -> json.JSONDecoder:
    def read_float(word: str) -> float:
        number = float(word)
        if abs(number) <= MOST_NUMBER or (allow_infinite and not math.isfinite(number)):
            return number
        raise ValueError(f"holds the number {word:.40}, which is not finite or beyond {MOST_NUMBER:g}")

    def read_whole(word: str) -> int:
        # By its length first: Python refuses to convert thousands of digits.
        if len(word) <= MOST_BITS and (number := int(word)).bit_length() <= MOST_BITS:
            return number
        raise ValueError(f"holds a whole number of more than {MOST_BITS} bits")

    return json.JSONDecoder(parse_float=read_float, parse_constant=read_float, parse_int=read_whole)


def fit_shape(content: Any, shape: type[Shape]) -> Shape:
    """A JSON value as an object of a shape: a dataclass or a `dict`. Raises `ValueError` with what does not fit."""
    if not isinstance(content, dict):
        kinds = {list: "a list", str: "a text", type(None): "null"}
        raise ValueError(f"it must hold an object, but holds {kinds.get(type(content), 'a number')}")
    if shape is dict:
        return content  # type: ignore[return-value]
    # Not imported above: it takes a tenth of a second, which processes that only open clips need not spend.
    import pydantic

    if shape not in _ADAPTERS:
        _ADAPTERS[shape] = pydantic.TypeAdapter(shape)
    # Through JSON: there a list may be a tuple and a text an enum's, and nothing else is taken for what it is not.
    text = json.dumps(content, ensure_ascii=False).encode("utf-8", "replace")
    try:
        fitted: Shape = _ADAPTERS[shape].validate_json(text, strict=True)
    except pydantic.ValidationError as error:
        first = error.errors(include_url=False, include_context=False, include_input=False)[0]
        where = ".".join(ascii(part).strip("'") for part in first["loc"])
        raise ValueError(f"{where}: {first['msg'][:1].lower()}{first['msg'][1:]}") from None
    return fitted


@contextlib.contextmanager
def open_file_atomically(target: PathLike, *, follows_link: bool = True) -> Iterator[BinaryIO]:
    """A file to write to, which takes the target's place, flushed to the disk, when the block ends without error.

    Folders that are not there are made. A file that is replaced hands on its mode. A link stays one, and what it leads to is
    replaced, unless it is not followed, as it must not be in a folder that others can write to.
    """
    target = Path(os.path.realpath(target) if follows_link else os.path.abspath(target))
    with _explain_write_errors(target), _open_work(target.parent) as work:
        # By its own name, whose end tells some writers which kind of file it is.
        with open(work / target.name, "w+b") as file:
            yield file
            if target.exists() and not target.is_symlink():
                # Some file systems know no modes.
                with contextlib.suppress(OSError):
                    shutil.copymode(target, file.name)
            file.flush()
            os.fsync(file.fileno())
        os.replace(work / target.name, target)
        _flush(target.parent)


@contextlib.contextmanager
def open_folder_atomically(target: PathLike, *, replaces: bool = True) -> Iterator[Path]:
    """A folder to fill, which takes the target's place, flushed to the disk, when the block ends without error.

    Where it must not replace a folder with something in it, that stays, and `OutputFolderError` is raised.
    """
    target = Path(os.path.realpath(target))
    with _explain_write_errors(target), _open_work(target.parent) as work:
        # Asked once: between two questions another writer may take the folder away.
        with contextlib.suppress(FileNotFoundError):
            if not stat.S_ISDIR(target.stat().st_mode):
                raise WriteError(target, "is a file where a folder should be written. Move it away.")
        new = work / "new"
        new.mkdir()
        yield new
        for folder, _, names in os.walk(new, topdown=False):
            for path in (*(Path(folder, name) for name in names), Path(folder)):
                _flush(path)
        while True:
            try:
                # One step that the system itself refuses unless the target is absent or empty: a look before it would be too early.
                new.rename(target)
                break
            except OSError as error:
                if error.errno not in _TAKEN_ERRORS:
                    raise
            if not replaces:
                raise OutputFolderError(
                    target, f"was new or empty, but holds files by now, which stay as they are. {_WAY_OUT}"
                )
            # Of an earlier turn: another writer was faster, so that something newer stands in its place.
            shutil.rmtree(work / _TAKEN, ignore_errors=True)
            (work / _TAKEN).mkdir()
            with contextlib.suppress(FileNotFoundError):
                target.rename(work / _TAKEN / target.name)
        _flush(target.parent)
        # Replaced for good: it must not come back where another writer takes the new one away in this moment.
        shutil.rmtree(work / _TAKEN, ignore_errors=True)


def remove_folder_atomically(target: PathLike) -> None:
    """Deletes a folder such that a crash leaves it whole or gone; what is left of it then goes with its work folder."""
    target = Path(os.path.realpath(target))
    with _explain_write_errors(target), _open_work(target.parent) as work:
        target.rename(work / "gone")
        # Else a power cut could keep the old name and lose the files behind it.
        _flush(target.parent)


def open_scratch_folder(purpose: str, parent: PathLike | None = None) -> contextlib.AbstractContextManager[Path]:
    """An empty folder in another one, or in the system's temporary folder, until the block ends, with a word in small letters in
    its name.

    What killed processes left there is removed first.
    """
    return _open_work(Path(parent or tempfile.gettempdir()), f"myxtts-{purpose}")


@contextlib.contextmanager
def _open_work(parent: Path, kind: str = ".myxtts") -> Iterator[Path]:
    parent.mkdir(parents=True, exist_ok=True)
    recover_folder(parent)
    with contextlib.ExitStack() as held:
        while True:
            work = parent / f"{kind}-{secrets.token_hex(8)}"
            work.mkdir(0o700)
            try:
                held.enter_context(_lock_work(work))
            except (FileNotFoundError, BlockingIOError):
                # Another writer took it for one that was left.
                continue
            except OSError as error:
                # Where nobody can lock, nobody removes what was left either.
                if error.errno not in (errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP):
                    raise
            break
        try:
            yield work
        finally:
            _discard(work)


@contextlib.contextmanager
def _lock_work(work: Path) -> Iterator[None]:
    """Raises `BlockingIOError` where a living process holds it, on whatever machine, and `FileNotFoundError` where it is gone."""
    descriptor = os.open(work / _LOCK, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        os.stat(work / _LOCK)
        yield
    finally:
        os.close(descriptor)


def _discard(work: Path) -> None:
    for old in (work / _TAKEN).glob("*"):
        try:
            old.rename(work.parent / old.name)
        except OSError as error:
            # Else something newer stands there.
            if error.errno not in _TAKEN_ERRORS:
                raise
    shutil.rmtree(work, ignore_errors=True)


def recover_folder(folder: PathLike) -> None:
    """Removes what killed writers left in a folder, once what they had taken away without replacing it is back.

    Does nothing where nothing is to be done, or where it may not write.
    """
    with contextlib.suppress(OSError), os.scandir(folder) as entries:
        for entry in list(entries):
            if _WORK_NAME.fullmatch(entry.name) and entry.is_dir(follow_symlinks=False):
                # Held by its writer, another user's, or gone by now: others may look through the same folder.
                with contextlib.suppress(OSError), _lock_work(Path(entry.path)):
                    _discard(Path(entry.path))


def _flush(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


@contextlib.contextmanager
def _explain_write_errors(target: Path) -> Iterator[None]:
    untouched = "or give another place. What was there before is untouched."
    try:
        yield
    except OSError as error:
        if error.errno not in (errno.ENOSPC, errno.EDQUOT):
            raise WriteError(target, f"cannot be written ({error}). Check the permissions, {untouched}") from error
        free_bytes = shutil.disk_usage(_find_present(target.parent)).free
        problem = f"the disk is full ({free_bytes // 2**20} MiB free). Make room there, {untouched}"
        raise DiskFullError(target, problem, free_bytes) from error


def _find_present(folder: Path) -> Path:
    return next(parent for parent in (folder, *folder.parents) if os.path.exists(parent))


def require_free_folder(target: Path, replaced: Collection[str] = ()) -> None:
    """Raises `OutputFolderError` unless a folder can be written at `target` without anything being lost: it must be new or empty,
    but for names of what is replaced."""
    resolved = Path(os.path.realpath(target))
    # Else a folder whose replacement was interrupted is absent now, is put back by the writer, and is lost after all.
    recover_folder(resolved.parent)
    if Path.cwd().is_relative_to(resolved):
        raise OutputFolderError(
            target, f"is the folder this command was started in, or one above it, and cannot be replaced. {_WAY_OUT}"
        )
    # Also where the folder is there: another one is written beside it, and takes its place.
    require_makeable_folder(target)
    try:
        names = sorted({entry.name for entry in target.iterdir()} - set(replaced)) if target.exists() else []
    except OSError as error:
        raise OutputFolderError(target, f"cannot be looked into ({error.strerror}). {_WAY_OUT}") from None
    if names:
        shown = ", ".join(names[:_SHOWN_NAMES]) + (", ..." if len(names) > _SHOWN_NAMES else "")
        raise OutputFolderError(target, f"holds other files ({shown}), which would be lost. {_WAY_OUT}")


def require_makeable_folder(target: Path, way_out: str = _WAY_OUT) -> None:
    """Raises `OutputFolderError` where a folder cannot be made, or be replaced by a new one, with what to do then."""
    place = Path(os.path.realpath(target))
    if place.exists() and not place.is_dir():
        raise OutputFolderError(target, f"must be a folder, but is a file. {way_out}")
    parent = _find_present(place.parent)
    try:
        # Tried, not looked up: permissions say nothing about /proc, or about a disk that is full.
        tempfile.TemporaryDirectory(prefix=".myxtts-", dir=parent).cleanup()
    except OSError as error:
        raise OutputFolderError(
            target, f"cannot be written, as {parent} takes no new folder ({error.strerror}). {way_out}"
        ) from None
