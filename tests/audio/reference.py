"""The reference's arrays of this room."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from tests.support.shared_files import ASSETS, find_parity


def load_parity(case: str) -> dict[str, NDArray]:
    """The arrays of a reference case that travel with the project, trimmed to what the tests of this room need."""
    with np.load(ASSETS / f"audio_{case}.npz") as arrays:
        return dict(arrays)


def load_full_parity(case: str) -> dict[str, NDArray]:
    """All arrays of a reference case."""
    with np.load(find_parity(f"{case}.npz")) as arrays:
        return dict(arrays)
