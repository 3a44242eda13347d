"""The lock of a run's folder: one trainer at a time."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import logging
import os
import socket
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path

from myxtts.training.errors import RunFolderError, RunInUseError

_log = logging.getLogger(__name__)

LOCK_NAME = "run.lock"
_HELD_ERRORS = (errno.EWOULDBLOCK, errno.EACCES)


@contextlib.contextmanager
def hold_run_folder(folder: Path) -> Iterator[None]:
    """Makes the folder, and keeps other trainers out of it for the block. Raises `RunInUseError` where one is in it.

    The kernel frees the lock when the process ends, however it ends; the file that stays behind means nothing.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        # Not inherited by the processes a trainer starts: a producer that outlives it must not hold its place.
        descriptor = os.open(folder / LOCK_NAME, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
    except OSError as error:
        raise RunFolderError(
            f"{folder}: cannot be used as the run's folder ({error.strerror}). Give another one with --checkpoint-dir."
        ) from error
    try:
        _take(descriptor, folder)
        yield
    finally:
        os.close(descriptor)


def _take(descriptor: int, folder: Path) -> None:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        if error.errno in _HELD_ERRORS:
            raise RunInUseError(
                f"{folder}: {_read_holder(descriptor)} trains in this folder. Wait for it or stop it, or give another "
                "--checkpoint-dir."
            ) from None
        _log.warning(
            "%s: this file system knows no locks (%s), so nothing keeps a second trainer out. Start only one.",
            folder,
            error.strerror,
        )
    holder = f"process {os.getpid()} on {socket.gethostname()}, since {datetime.now():%Y-%m-%d %H:%M:%S},"
    # For the message of those who come second; the lock does not depend on it, so a full disk is no matter.
    with contextlib.suppress(OSError):
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, holder.encode(), 0)


def _read_holder(descriptor: int) -> str:
    return os.pread(descriptor, 500, 0).decode("utf-8", "replace") or "another process"
