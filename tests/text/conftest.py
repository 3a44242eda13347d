"""Where the tests of text find vocabularies and sentences."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.shared_files import ASSETS, find_parity


@pytest.fixture(scope="session")
def tiny_vocab() -> Path:
    return ASSETS / "tiny_vocab.json"


@pytest.fixture(scope="session")
def parity_dir() -> Path:
    """The folder of all reference files, which does not travel with the project."""
    return find_parity("xtts_test_vocab.json").parent


def read_sentences(name: str) -> dict[str, str]:
    """Texts and their readings in a file beside this one."""
    lines = Path(__file__).with_name(name).read_text(encoding="utf-8").splitlines()
    return dict(line.split("\t") for line in lines if not line.startswith("# "))
