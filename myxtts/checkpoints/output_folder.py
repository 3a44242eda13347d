"""Whether a folder may be written where the user says: nothing that is there may be lost, and the place must take it."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterable
from pathlib import Path

from myxtts.checkpoints.atomic_directory import recover_directory
from myxtts.checkpoints.errors import ModelFileError, OutputFolderError
from myxtts.checkpoints.model_directory import FILE_NAMES, FORMAT_VERSION, KIND
from myxtts.checkpoints.sealed_directory import MANIFEST_NAME, read_manifest

_WAY_OUT = "Give a new or empty folder."
_SHOWN_NAMES = 3


def require_free_folder(target: Path, sources: Iterable[Path] = ()) -> None:
    """Raises `OutputFolderError` unless a folder can be written at `target` without anything being lost: it must be new or empty.

    Args:
        sources: files and folders that are still to be read, and must not lie in it.
    """
    _require_writable(target, sources)
    _refuse_names(target, _list_names(target))


def require_model_folder(target: Path, sources: Iterable[Path] = ()) -> None:
    """The same, but a model that is there may be replaced, if nothing else lies with it."""
    _require_writable(target, sources)
    if _is_model(target):
        _refuse_names(target, [name for name in _list_names(target) if name not in (*FILE_NAMES, MANIFEST_NAME)])
    else:
        _refuse_names(target, _list_names(target))


def require_makeable_folder(target: Path, way_out: str = _WAY_OUT) -> None:
    """Raises `OutputFolderError` where there is no folder and none can be made.

    Args:
        way_out: what to do then, as a sentence.
    """
    if not os.path.isdir(target):
        _refuse_file(target, way_out)
        _try_new_folder(target, way_out)


def _require_writable(target: Path, sources: Iterable[Path]) -> None:
    resolved = Path(os.path.realpath(target))
    # Else a folder whose replacement was interrupted is absent now, is put back by the writer, and is lost after all.
    recover_directory(resolved)
    _refuse_file(target)
    if Path.cwd().is_relative_to(resolved):
        raise OutputFolderError(
            target, f"is the folder this command was started in, or one above it, and cannot be replaced. {_WAY_OUT}"
        )
    for source in sources:
        if Path(os.path.realpath(source)).is_relative_to(resolved):
            raise OutputFolderError(target, f"holds {source}, which is to be read. {_WAY_OUT}")
    # Also where the folder is there: another one is written beside it, and takes its place.
    _try_new_folder(resolved)


def _refuse_file(target: Path, way_out: str = _WAY_OUT) -> None:
    if os.path.exists(target) and not os.path.isdir(target):
        raise OutputFolderError(target, f"must be a folder, but is a file. {way_out}")


def _try_new_folder(target: Path, way_out: str = _WAY_OUT) -> None:
    parent = next(parent for parent in target.absolute().parents if os.path.exists(parent))
    try:
        # Tried, not looked up: permissions say nothing about /proc, or about a disk that is full.
        tempfile.TemporaryDirectory(prefix=".myxtts-", dir=parent).cleanup()
    except OSError as error:
        raise OutputFolderError(
            target, f"cannot be written, as {parent} takes no new folder ({error.strerror}). {way_out}"
        ) from None


def _list_names(target: Path) -> list[str]:
    try:
        return sorted(entry.name for entry in target.iterdir()) if target.exists() else []
    except OSError as error:
        raise OutputFolderError(target, f"cannot be looked into ({error.strerror}). {_WAY_OUT}") from None


def _is_model(target: Path) -> bool:
    try:
        read_manifest(target, KIND, FORMAT_VERSION)
    except ModelFileError:
        return False
    return True


def _refuse_names(target: Path, names: list[str]) -> None:
    if names:
        shown = ", ".join(names[:_SHOWN_NAMES]) + (", ..." if len(names) > _SHOWN_NAMES else "")
        raise OutputFolderError(target, f"holds other files ({shown}), which would be lost. {_WAY_OUT}")
