"""Files that do not travel with the project: recordings, and the whole of the reference's arrays."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
ASSETS = ROOT / "tests" / "assets" / "parity"
"""What of the reference's files does."""


def find_shared(*parts: str) -> Path:
    """A shared file or folder; the test is skipped where it is not."""
    return _require(_locate_shared().joinpath(*parts), "MYXTTS_SHARED_DIR")


def find_parity(name: str) -> Path:
    """A file of the reference; the test is skipped where it is not."""
    folder = os.environ.get("MYXTTS_PARITY_DIR")
    return _require((_locate_shared() / "parity" if folder is None else Path(folder)) / name, "MYXTTS_PARITY_DIR")


def _locate_shared() -> Path:
    return Path(os.environ.get("MYXTTS_SHARED_DIR", ROOT.parent / "shared"))


def _require(path: Path, variable: str) -> Path:
    if not path.exists():
        pytest.skip(f"{path} is not there: set {variable} to the folder it is in", allow_module_level=True)
    return path
