"""What commands write where the user says, what they look at before they begin, and what they tell meanwhile."""

from __future__ import annotations

import errno
import logging
import os
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from myxtts.config import XTTSConfig
from myxtts.errors import CommandLineError
from myxtts.files import WriteError, open_file_atomically

_IN_PLACE_ERRORS = (errno.EACCES, errno.EPERM, errno.EROFS, errno.EBUSY)
"""A folder that takes no new file, or a file that is mounted alone, as into a container: it may be written to even so."""


def check_writable(*paths: Path | None) -> None:
    """Raises `CommandLineError` for a place that cannot be written, before time is spent on what should go there.

    What is there stays as it is; what was not there is not there afterwards. None is a file that is not asked for.
    """
    for path in paths:
        try:
            if path is not None and not path.exists():
                tempfile.TemporaryDirectory(prefix=".myxtts-", dir=_find_folder(path)).cleanup()
            # Not a pipe, where it would wait for a reader.
            elif path is not None and (path.is_file() or path.is_dir()):
                os.close(os.open(path, os.O_WRONLY))
        except OSError as error:
            raise _explain(path, error.strerror) from None


def write_text(path: Path, text: str) -> None:
    """Writes a file, whole or not at all; a place that cannot be written is an error that names it.

    Where nothing can take the place of what is there, it is written in place.
    """
    content = text.encode("utf-8", "surrogateescape")
    try:
        # A device, a pipe or a folder is no file.
        if path.is_file() or not path.exists():
            # Not made: the folder may be mistyped.
            os.stat(f"{_find_folder(path)}/.")
            try:
                with open_file_atomically(path) as file:
                    file.write(content)
                return
            except WriteError as error:
                if getattr(error.__cause__, "errno", None) not in _IN_PLACE_ERRORS or not path.exists():
                    raise _explain(path, error.reason) from None
        path.write_bytes(content)
    except OSError as error:
        raise _explain(path, error.strerror) from None


def write_asked(path: Path | None, title: str, make: Callable[[], str], note: str = "") -> None:
    """Writes the file that a flag asks for, with what is made only then, and says so; None is a flag that was not given."""
    if path is not None:
        write_text(path, make())
        print(f"\n{title} {path}{note}")


def _find_folder(path: Path) -> Path:
    """Where the file lies that a link leads to."""
    return Path(os.path.realpath(path)).parent


def _explain(path: Path | None, reason: str | None) -> CommandLineError:
    return CommandLineError(f"{path} cannot be written: {reason}. Give a file in a folder that exists.")


def check_corpora(config: XTTSConfig) -> None:
    """Raises `CorpusError` for a corpus that is not there."""
    from myxtts.data.ljspeech import find_metadata

    if config.data.train_data:
        find_metadata(Path(config.data.train_data))
    if config.data.val_data:
        find_metadata(Path(config.data.val_data), "eval")


def check_models(config: XTTSConfig) -> None:
    """Raises `ModelFileError` for a model to start from, or a codec, that is not there."""
    from myxtts.checkpoints.store import START_FOLDER, require_model
    from myxtts.training.run_folder import locate_run

    training = config.training
    if training.codec is not None:
        require_model(Path(training.codec))
    # Some runs keep the model that they were started with, which may be gone by now.
    folders = (locate_run(config), *Path(training.checkpoint_dir).glob("worker-*"))
    is_kept = training.keeps_start and any((folder / START_FOLDER).is_dir() for folder in folders)
    if training.init_from is not None and not is_kept and not Path(training.init_from).is_file():
        require_model(Path(training.init_from))


def check_cluster(config: XTTSConfig) -> None:
    """Raises `CommandLineError` for a cluster on which nobody is to work."""
    training = config.training
    if training.cluster is not None and training.trainers == 1 and not training.preparers:
        raise CommandLineError(
            f"--cluster {training.cluster} says where trainers and preparers are to work, but none is asked for. Give --preparers N, "
            "--trainers M or both, or leave --cluster out: this machine then does everything itself."
        )


def tell(text: str) -> None:
    """Says it on standard error: standard output is for the answer."""
    print(f"... {text}", file=sys.stderr, flush=True)


def show_progress(what: str, done: int, total: int) -> None:
    """Counts on one line of standard error, where that is a terminal."""
    if sys.stderr.isatty():
        terminal = getattr(sys.stderr, "unescaped", sys.stderr)
        print(f"\r{what} {done} of {total}", end="\n" if done == total else "", file=terminal, flush=True)


@contextmanager
def quiet_scan() -> Iterator[None]:
    """Keeps the scan's table of what is set aside out of the log, for a command whose own answer tells of it."""
    # Not imported above: --help needs none of it.
    from myxtts.data import scan

    log = logging.getLogger(scan.__name__)
    before = log.level
    log.setLevel(logging.ERROR)
    try:
        yield
    finally:
        log.setLevel(before)
