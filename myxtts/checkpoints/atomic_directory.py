"""Writing a directory or a file so that a crash at any moment leaves the old one or the new one, whole.

How a directory is replaced:

1. Everything is written into a new directory beside the target, named `.<target>.new-<random>`.
2. Every file in it, and every directory, is flushed to the disk (`fsync`): only now may the new name become visible.
3. One system call makes it the target: a rename if there was none, else an *exchange* of the two names
   (`renameat2` with RENAME_EXCHANGE), which the file system does as a single step.
4. The parent directory is flushed, and the old content, now under the temporary name, is deleted.

Before step 3 the target is the old one, after it the new one; there is no moment in between. After a crash a temporary
directory may be left over. It is removed by the next write to the same target: whoever writes holds a lock on its
temporary directory, which the kernel releases when that process ends however it ends, so a directory that can be locked
is nobody's. (Where a file system knows no locks, nothing is removed.)

Some file systems (NFS, some FUSE) cannot exchange names. There, the old directory is first renamed to
`.<target>.old-<random>`, and for a moment the target is missing; `recover_directory` puts the old one back, and every
writer of this room calls it first. A reader changes nothing.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import fcntl
import functools
import os
import re
import secrets
import shutil
import stat
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import BinaryIO

from myxtts.checkpoints.errors import CheckpointWriteError, DiskFullError, OutputFolderError

_AT_FDCWD = -100
_RENAME_EXCHANGE = 2
_NO_EXCHANGE_ERRORS = (errno.EINVAL, errno.ENOSYS, errno.ENOTSUP, errno.EPERM)
_DISK_FULL_ERRORS = (errno.ENOSPC, errno.EDQUOT)
_TAKEN_ERRORS = (errno.ENOTEMPTY, errno.EEXIST)
_SCRATCH_NAME = re.compile(r"myxtts-[a-z]+-\w{8}")
_SCRATCH_IS_NEW_S = 60.0
"""So old a scratch folder is locked by whoever made it, if that one is still there."""
_TEMPORARY_NAME = re.compile(r"\.(?P<target>.+)\.(?:new|old|gone)-[0-9a-f]{16}")


def write_directory_atomically(
    target: str | os.PathLike[str], write: Callable[[Path], None], *, replaces: bool = True
) -> None:
    """Fills a new directory by `write(directory)` and puts it at `target`, in place of what is there.

    When `write` raises, the target stays as it is and the error goes on to the caller; an `OSError`, as when the disk
    is full, becomes a `CheckpointWriteError`. Parents of the target are created.

    Args:
        replaces: whether a directory with something in it is replaced; else it stays, and `OutputFolderError` is raised.
    """
    target = Path(os.path.realpath(target))
    with _explain_write_errors(target):
        target.parent.mkdir(parents=True, exist_ok=True)
        recover_directory(target)
        if target.exists() and not target.is_dir():
            raise CheckpointWriteError(f"{target}: is a file where a directory should be written. Move it away.")
        temporary = _name_temporary(target, "new")
        with _create_locked(temporary, temporary.mkdir):
            try:
                write(temporary)
                _flush_tree(temporary)
                if replaces:
                    _put_in_place(temporary, target)
                else:
                    _put_in_free_place(temporary, target)
            finally:
                # On success this is the old content, or nothing.
                shutil.rmtree(temporary, ignore_errors=True)


@contextlib.contextmanager
def open_file_atomically(target: str | os.PathLike[str]) -> Iterator[BinaryIO]:
    """A file to write to, which takes the target's place, flushed to the disk, when the block ends without error."""
    target = Path(os.path.realpath(target))
    with _explain_write_errors(target):
        target.parent.mkdir(parents=True, exist_ok=True)
        recover_directory(target)
        temporary = _name_temporary(target, "new")
        with _create_locked(temporary, functools.partial(temporary.touch, exist_ok=False)):
            try:
                with open(temporary, "r+b") as handle:
                    yield handle
                    handle.flush()
                    os.fsync(handle.fileno())
                temporary.replace(target)
                _flush(target.parent)
            finally:
                temporary.unlink(missing_ok=True)


def remove_directory_atomically(target: str | os.PathLike[str]) -> None:
    """Deletes a directory such that a crash leaves it whole or gone; what is left of it then, recovery removes."""
    target = Path(os.path.realpath(target))
    gone = _name_temporary(target, "gone")
    with _explain_write_errors(target):
        target.rename(gone)
        # Else a power cut could keep the old name and lose the files behind it.
        _flush(target.parent)
    shutil.rmtree(gone, ignore_errors=True)


@contextlib.contextmanager
def open_scratch_folder(purpose: str) -> Iterator[Path]:
    """An empty folder in the system's temporary folder until the block ends. What killed processes left there is removed first.

    Args:
        purpose: a word in small letters, for its name.
    """
    _remove_abandoned_scratch(Path(tempfile.gettempdir()))
    with tempfile.TemporaryDirectory(prefix=f"myxtts-{purpose}-") as name, _lock(Path(name), wait=False):
        # One within it: what is written atomically waits for the lock of the folder it is written into.
        folder = Path(name, purpose)
        folder.mkdir()
        yield folder


def _remove_abandoned_scratch(parent: Path) -> None:
    for folder in [entry for entry in parent.iterdir() if _SCRATCH_NAME.fullmatch(entry.name)]:
        # Others look through the same folder: it may be gone by now. What is another user's stays.
        with contextlib.suppress(OSError):
            facts = folder.lstat()
            is_old = stat.S_ISDIR(facts.st_mode) and time.time() - facts.st_ctime > _SCRATCH_IS_NEW_S
            if is_old and facts.st_uid == os.getuid():
                with _lock(folder, wait=False) as is_held:
                    if is_held:
                        shutil.rmtree(folder, ignore_errors=True)


def recover_folder(folder: str | os.PathLike[str]) -> None:
    """Recovers every directory and file in a folder whose writing, replacement or removal was interrupted."""
    folder = Path(os.path.realpath(folder))
    with contextlib.suppress(OSError):
        found = [_TEMPORARY_NAME.fullmatch(entry.name) for entry in folder.iterdir()]
        for name in sorted({match["target"] for match in found if match}):
            recover_directory(folder / name)


def recover_directory(target: str | os.PathLike[str]) -> None:
    """Puts back a directory whose replacement was interrupted, and removes what dead writers left beside it.

    Does nothing where nothing is to be done, or where it may not write: reading from a read-only disk must work.
    """
    target = Path(os.path.realpath(target))
    with contextlib.suppress(OSError):
        for old in _list_temporaries(target, "old"):
            if not target.exists() and _is_abandoned(old):
                old.rename(target)
        for kind in ("new", "old", "gone"):
            for leftover in _list_temporaries(target, kind):
                if _is_abandoned(leftover):
                    _remove(leftover)


def _name_temporary(target: Path, kind: str) -> Path:
    return target.with_name(f".{target.name}.{kind}-{secrets.token_hex(8)}")


def _list_temporaries(target: Path, kind: str) -> list[Path]:
    prefix = f".{target.name}.{kind}-"
    return [entry for entry in target.parent.iterdir() if entry.name.startswith(prefix)]


def _put_in_place(temporary: Path, target: Path) -> None:
    if not _rename_to_free_name(temporary, target) and not _exchange_names(temporary, target):
        aside = _name_temporary(target, "old")
        # Locked, so that nobody puts it back while this process is still there to finish.
        with _lock(target, wait=True):
            target.rename(aside)
            temporary.rename(target)
            _flush(target.parent)
        shutil.rmtree(aside, ignore_errors=True)
    _flush(target.parent)


def _put_in_free_place(temporary: Path, target: Path) -> None:
    try:
        # One step that the system itself refuses unless the target is absent or empty: a look before it would be too early.
        temporary.rename(target)
    except OSError as error:
        if error.errno not in (*_TAKEN_ERRORS, errno.ENOTDIR):
            raise
        raise OutputFolderError(
            target, "was new or empty, but holds files by now, which stay as they are. Give a new or empty folder."
        ) from None
    _flush(target.parent)


def _rename_to_free_name(temporary: Path, target: Path) -> bool:
    """Renames unless the target exists; another writer may have put it there just now."""
    if target.exists():
        return False
    try:
        temporary.rename(target)
    except OSError as error:
        if error.errno in _TAKEN_ERRORS:
            return False
        raise
    return True


def _exchange_names(first: Path, second: Path) -> bool:
    """Exchanges two names in one step; False where the file system cannot."""
    renameat2 = _find_renameat2()
    if renameat2 is None:
        return False
    if renameat2(_AT_FDCWD, os.fsencode(first), _AT_FDCWD, os.fsencode(second), _RENAME_EXCHANGE) == 0:
        return True
    code = ctypes.get_errno()
    if code in _NO_EXCHANGE_ERRORS:
        return False
    raise OSError(code, os.strerror(code), str(second))


@functools.cache
def _find_renameat2() -> Callable[[int, bytes, int, bytes, int], int] | None:
    function = getattr(ctypes.CDLL(None, use_errno=True), "renameat2", None)
    if function is not None:
        function.argtypes = (ctypes.c_int, ctypes.c_char_p, ctypes.c_int, ctypes.c_char_p, ctypes.c_uint)
    return function


@contextlib.contextmanager
def _create_locked(temporary: Path, create: Callable[[], None]) -> Iterator[None]:
    """Creates a directory or file that counts as being written until the block, or the process, ends."""
    # Under the parent's lock: nobody can find it created and not locked yet, and take it for abandoned.
    with _lock(temporary.parent, wait=True):
        create()
        lock = contextlib.ExitStack()
        lock.enter_context(_lock(temporary, wait=False))
    with lock:
        yield


def _is_abandoned(leftover: Path) -> bool:
    with _lock(leftover.parent, wait=True), _lock(leftover, wait=False) as is_held:
        return is_held


def _remove(leftover: Path) -> None:
    if leftover.is_dir():
        shutil.rmtree(leftover, ignore_errors=True)
    else:
        leftover.unlink(missing_ok=True)


@contextlib.contextmanager
def _lock(path: Path, wait: bool) -> Iterator[bool]:
    """Whether the path could be locked for the block: not if another holds it, or the file system knows no locks."""
    descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
            is_held = True
        except OSError:
            is_held = False
        yield is_held
    finally:
        os.close(descriptor)


def _flush_tree(directory: Path) -> None:
    for folder, _, names in os.walk(directory, topdown=False):
        for name in names:
            _flush(Path(folder, name))
        _flush(Path(folder))


def _flush(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


@contextlib.contextmanager
def _explain_write_errors(target: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        if error.errno in _DISK_FULL_ERRORS:
            folder = next(parent for parent in target.parents if parent.exists())
            free_bytes = shutil.disk_usage(folder).free
            raise DiskFullError(
                f"{target}: the disk is full ({free_bytes // 2**20} MiB free). Delete old checkpoints there, or give another "
                "directory. What was there before is untouched.",
                folder,
                free_bytes,
            ) from error
        raise CheckpointWriteError(
            f"{target}: cannot be written ({error}). Check the permissions, or give another directory. "
            "What was there before is untouched."
        ) from error
