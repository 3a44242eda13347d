"""Files that somebody else may have written, opened and read such that none of them can hang or exhaust the process.

Everything that reads a file of a user, a run or a model comes here: what stands in a file's place may be a named pipe, a
device, a link to itself, or a disk that gives errors. Each is a `FileError`, which names the file and what is wrong with it.
"""

from __future__ import annotations

import json
import math
import os
import stat
from collections.abc import Iterator
from io import BufferedReader, FileIO
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from myxtts.errors import UserError

if TYPE_CHECKING:
    from pydantic import TypeAdapter

MOST_TEXT_BYTES = 4 << 20
"""Of a text, a configuration or a small JSON file: a published vocabulary has a tenth of it."""
MOST_DEPTH = 64
"""Of JSON: lists and objects in each other. Deeper ones would exhaust the stack of whoever writes them again."""
MOST_NUMBER = 1e100
"""Of JSON: sums and squares of larger ones are infinite."""
MOST_WHOLE_NUMBER = 1 << 64
"""Of JSON: larger ones are sizes of nothing, and fit no array."""

PathLike = str | os.PathLike[str]
Shape = TypeVar("Shape")

_ADAPTERS: dict[Any, Any] = {}
_KINDS = {stat.S_IFDIR: "a folder", stat.S_IFIFO: "a named pipe", stat.S_IFSOCK: "a socket"}


class FileError(UserError):
    """A file that cannot be read as what it should be.

    Args:
        path: the file.
        problem: what must be and what is, as sentences that follow the file's name.
    """

    def __init__(self, path: PathLike, problem: str):
        self.path = Path(path)
        self.problem = problem
        super().__init__(f"{path}: {problem}")


class MissingFileError(FileError):
    """There is no file of that name."""


def open_file(path: PathLike) -> FileIO:
    """A regular file, opened for reading without a buffer. Raises `FileError`.

    Errors of the disk that come later, while it is read, are the caller's to name: `explain_os_error` does.
    """
    try:
        # Asked first: to open a device may already do something to it.
        _require_regular(path, os.stat(path).st_mode)
        # Not to wait for the writer of a pipe that was put in its place just now.
        file = FileIO(path, opener=lambda name, flags: os.open(name, flags | os.O_NONBLOCK))
    except (OSError, ValueError) as error:
        raise explain_os_error(path, error) from error
    try:
        _require_regular(path, os.fstat(file.fileno()).st_mode)
    except FileError:
        file.close()
        raise
    return file


def explain_os_error(path: PathLike, error: OSError | ValueError) -> FileError:
    """What keeps a file from being read, as an error that names it."""
    if isinstance(error, FileError):
        return error
    if isinstance(error, FileNotFoundError):
        return MissingFileError(path, "there is no such file. Check the path, and the case of its letters.")
    if isinstance(error, OSError):
        return FileError(path, f"cannot be read ({error.strerror}).")
    return FileError(ascii(os.fspath(path)), f"cannot be the path of a file ({error}).")


def _require_regular(path: PathLike, mode: int) -> None:
    if not stat.S_ISREG(mode):
        raise FileError(path, f"must be a file, but is {_KINDS.get(stat.S_IFMT(mode), 'a device')}.")


def read_bytes(path: PathLike, most_bytes: int = MOST_TEXT_BYTES) -> bytes:
    """The content of a file of bounded size. Raises `FileError`."""
    parts: list[bytes] = []
    with open_file(path) as file:
        left = most_bytes + 1
        try:
            # Some files of the kernel claim to be empty, so that the size asked for beforehand decides nothing.
            while left > 0 and (part := os.read(file.fileno(), min(left, 1 << 20))):
                parts.append(part)
                left -= len(part)
        except OSError as error:
            raise explain_os_error(path, error) from error
    if left <= 0:
        raise FileError(path, f"must have at most {most_bytes:,} bytes, but has more.")
    return b"".join(parts)


def read_text(path: PathLike, most_bytes: int = MOST_TEXT_BYTES) -> str:
    """The text in a UTF-8 file, without the mark that editors on Windows put in front. Raises `FileError`."""
    try:
        return read_bytes(path, most_bytes).decode("utf-8-sig")
    except UnicodeDecodeError as error:
        where = f"{error.reason} at byte {error.start}"
        raise FileError(path, f"must be UTF-8 text, but is not ({where}).") from None


def iter_lines(path: PathLike, most_bytes: int = MOST_TEXT_BYTES) -> Iterator[bytes]:
    """The lines of a file of any length, each with its end, the last perhaps without. Raises `FileError`.

    Args:
        path: the file.
        most_bytes: a longer line is an error: a file without line ends may be larger than the memory.
    """
    with BufferedReader(open_file(path)) as file:
        number = 0
        while True:
            try:
                line = file.readline(most_bytes + 1)
            except OSError as error:
                raise explain_os_error(path, error) from error
            number += 1
            if not line:
                return
            if len(line) > most_bytes:
                raise FileError(path, f"must have lines of at most {most_bytes:,} bytes, but line {number} has more.")
            yield line


def read_json(
    path: PathLike, shape: type[Shape], *, most_bytes: int = MOST_TEXT_BYTES, allow_infinite: bool = False
) -> Shape:
    """The object in a small JSON file. Raises `FileError` for one that is not JSON, or not of this shape.

    Args:
        path: the file.
        shape: a dataclass or a `dict`; what a dataclass does not name is left out.
        most_bytes: of the file.
        allow_infinite: whether numbers may be infinite or none, as losses are that a run has written down.
    """
    try:
        content = parse_json(read_text(path, most_bytes), allow_infinite=allow_infinite)
    except FileError:
        raise
    except ValueError as error:
        raise FileError(path, f"must be JSON, but {error}.") from None
    try:
        return fit_shape(content, shape)
    except ValueError as error:
        raise FileError(path, f"is not what it should be: {error}.") from None


def parse_json(text: str | bytes, *, allow_infinite: bool = False) -> Any:
    """What a JSON text says, no deeper and with no larger numbers than anything here needs.

    Raises `ValueError` with what is wrong, as the end of a sentence: "must be JSON, but ...".
    """
    try:
        content = json.loads(text.decode("utf-8") if isinstance(text, bytes) else text)
    except RecursionError:
        raise ValueError(f"its lists and objects are nested more than {MOST_DEPTH} deep") from None
    except ValueError as error:
        raise ValueError(f"is not ({error})") from None
    _check_values(content, allow_infinite)
    return content


def _check_values(content: Any, allow_infinite: bool) -> None:
    values = [content]
    for _ in range(MOST_DEPTH):
        inner: list[Any] = []
        for value in values:
            if isinstance(value, dict):
                inner += value.keys()
                inner += value.values()
            elif isinstance(value, list):
                inner += value
            elif isinstance(value, str):
                _check_characters(value)
            elif isinstance(value, float):
                if not abs(value) <= MOST_NUMBER and not (allow_infinite and not math.isfinite(value)):
                    raise ValueError(f"holds the number {value}, which is not finite or beyond {MOST_NUMBER:g}")
            elif isinstance(value, int) and abs(value) >= MOST_WHOLE_NUMBER:
                raise ValueError("holds a whole number of more than 64 bits")
        if not inner:
            return
        values = inner
    raise ValueError(f"its lists and objects are nested more than {MOST_DEPTH} deep")


def _check_characters(text: str) -> None:
    # Half characters that stand for the bytes of a file name are written by us, and can be written again.
    try:
        text.encode("utf-8", "surrogateescape")
    except UnicodeEncodeError:
        raise ValueError(f"holds a text with half a character: {text[:40]!a}") from None


def fit_shape(content: Any, shape: type[Shape]) -> Shape:
    """A JSON value as an object of a shape: a dataclass or a `dict`. Raises `ValueError` with what does not fit."""
    if not isinstance(content, dict):
        raise ValueError(f"it must hold an object, but holds {_name_kind(content)}")
    if shape is dict:
        return content  # type: ignore[return-value]
    # Not imported above: it takes a tenth of a second, which processes that only open clips need not spend.
    import pydantic

    if shape not in _ADAPTERS:
        _ADAPTERS[shape] = pydantic.TypeAdapter(shape)
    adapter: TypeAdapter[Shape] = _ADAPTERS[shape]
    # Through JSON: there a list may be a tuple and a text an enum's, and nothing else is taken for what it is not.
    text = json.dumps(content, ensure_ascii=False).encode("utf-8", "replace")
    try:
        return adapter.validate_json(text, strict=True)
    except pydantic.ValidationError as error:
        first = error.errors(include_url=False, include_context=False, include_input=False)[0]
        where = ".".join(ascii(part).strip("'") for part in first["loc"])
        raise ValueError(f"{where}: {first['msg'][:1].lower()}{first['msg'][1:]}") from None


def _name_kind(content: Any) -> str:
    kinds = {list: "a list", str: "a text", type(None): "null"}
    return kinds.get(type(content), "a number")
