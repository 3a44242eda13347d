"""Where the reference fixtures and the odd recordings are."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

ROOT = Path(__file__).resolve().parents[2]
ASSETS = ROOT / "tests" / "assets" / "parity"
SHARED = Path(os.environ.get("MYXTTS_SHARED_DIR", ROOT.parent / "shared"))
PARITY = Path(os.environ.get("MYXTTS_PARITY_DIR", SHARED / "parity"))


def load_parity(case: str) -> dict[str, NDArray]:
    """The arrays of a reference case that travel with the project, trimmed to what the tests of this room need."""
    with np.load(ASSETS / f"audio_{case}.npz") as arrays:
        return dict(arrays)


def load_full_parity(case: str) -> dict[str, NDArray]:
    """All arrays of a reference case."""
    path = PARITY / f"{case}.npz"
    if not path.exists():
        pytest.skip(f"the full reference fixtures are not at {PARITY} (set MYXTTS_PARITY_DIR)")
    with np.load(path) as arrays:
        return dict(arrays)


def find_data(name: str) -> Path:
    """A folder of shared recordings."""
    folder = SHARED / "data" / name
    if not folder.is_dir():
        pytest.skip(f"the shared recordings are not at {folder} (set MYXTTS_SHARED_DIR)")
    return folder
