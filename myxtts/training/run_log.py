"""`run.log`: what a run has said, and the error it ended with, kept in its folder for whoever looks later."""

from __future__ import annotations

import logging
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from myxtts.monitoring.metrics_log import LOG_NAME
from myxtts.training.errors import RunFinishedError, RunFolderError
from myxtts.training.interrupts import StopNow
from myxtts.utils.commons import PlainFormatter

_PACKAGE = "myxtts"


class _LogFile(logging.FileHandler):
    def handleError(self, record: logging.LogRecord) -> None:
        """Says nothing: a full disk stops the run where it matters, and says so there."""


@contextmanager
def keep_run_log(folder: Path) -> Iterator[None]:
    """Writes what is logged within to the folder's `run.log` too, and an error that ends the block with its traceback."""
    path = folder / LOG_NAME
    try:
        file = _LogFile(path, encoding="utf-8", errors="backslashreplace")
    except OSError as error:
        raise RunFolderError(
            f"{path}: cannot be written ({error.strerror}). Make it writable, or give another --checkpoint-dir."
        ) from None
    file.setFormatter(PlainFormatter("%(asctime)s %(levelname)s %(message)s"))
    logger = logging.getLogger(_PACKAGE)
    logger.addHandler(file)
    try:
        yield
    except (RunFinishedError, StopNow):
        raise
    except BaseException as error:
        # To the file alone: the program shows it in its own way.
        record = logger.makeRecord(
            _PACKAGE, logging.ERROR, __file__, 0, "%s", (f"{type(error).__name__}: {error}",), sys.exc_info()
        )
        file.handle(record)
        raise
    finally:
        logger.removeHandler(file)
        # What a full disk did not take is tried once more here.
        with suppress(OSError):
            file.close()
