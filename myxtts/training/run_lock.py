"""The lock of a run's folder: one trainer at a time."""

from __future__ import annotations

import contextlib
import errno
import logging
import os
import socket
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path

from filelock import FileLock, Timeout

from myxtts.files import FileError, read_text
from myxtts.training.errors import RunFolderError, RunInUseError

_log = logging.getLogger(__name__)

LOCK_NAME = "run.lock"
_NO_LOCKS_ERRORS = (errno.ENOLCK, errno.ENOSYS, errno.ENOTSUP)


@contextlib.contextmanager
def hold_run_folder(folder: Path) -> Iterator[None]:
    """Makes the folder, and keeps other trainers out of it for the block. Raises `RunInUseError` where one is in it.

    The kernel frees the lock when the process ends, however it ends; the file that stays behind means nothing.
    """
    # Whichever thread closes the folder. Without a file that stands for a lock: that of a killed process would stay.
    lock = FileLock(
        folder / LOCK_NAME, timeout=0, thread_local=False, fallback_to_soft=False, on_acquired=_write_holder
    )
    try:
        folder.mkdir(parents=True, exist_ok=True)
        lock.acquire()
    except Timeout:
        raise RunInUseError(
            f"{folder}: {_read_holder(folder)} trains in this folder. Wait for it or stop it, or give another --checkpoint-dir."
        ) from None
    except OSError as error:
        if error.errno not in _NO_LOCKS_ERRORS:
            raise RunFolderError(
                f"{folder}: cannot be used as the run's folder ({error.strerror}). Give another one with --checkpoint-dir."
            ) from error
        _log.warning(
            "%s: this file system knows no locks (%s), so nothing keeps a second trainer out. Start only one.",
            folder,
            error.strerror,
        )
    try:
        yield
    finally:
        lock.release()


def _write_holder(descriptor: int) -> None:
    holder = f"process {os.getpid()} on {socket.gethostname()}, since {datetime.now():%Y-%m-%d %H:%M:%S},"
    # For the message of those who come second; the lock does not depend on it, so a full disk is no matter.
    with contextlib.suppress(OSError):
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, holder.encode(), 0)


def _read_holder(folder: Path) -> str:
    try:
        return read_text(folder / LOCK_NAME, 500) or "another process"
    except FileError:
        return "another process"
