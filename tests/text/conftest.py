"""Where the tests of text find vocabularies."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="session")
def tiny_vocab() -> Path:
    return ROOT / "tests" / "assets" / "parity" / "tiny_vocab.json"


@pytest.fixture(scope="session")
def parity_dir() -> Path:
    """The folder of all reference files, which does not travel with the project."""
    folder = Path(os.environ.get("MYXTTS_PARITY_DIR", ROOT.parent / "shared" / "parity"))
    if not (folder / "xtts_test_vocab.json").is_file():
        pytest.skip(f"no reference vocabulary in {folder}; set MYXTTS_PARITY_DIR")
    return folder
