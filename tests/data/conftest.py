from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
from hypothesis import settings

from myxtts.data.corpus import Corpus
from tests.data.reading import copy_corpus, scan_demo, scan_small

# A busy machine makes single examples slow; that is no finding.
settings.register_profile("steady", deadline=None)
settings.load_profile("steady")


@pytest.fixture(scope="session")
def lj(tmp_path_factory: pytest.TempPathFactory) -> Corpus:
    """Real LJSpeech clips: plain wav."""
    folder = tmp_path_factory.mktemp("lj")
    return scan_small(copy_corpus(folder / "corpus", wavs=33), folder / "index")


@pytest.fixture(scope="session")
def mixed(tmp_path_factory: pytest.TempPathFactory) -> Corpus:
    """Real clips of two corpora, wav and flac."""
    folder = tmp_path_factory.mktemp("mixed")
    return scan_small(copy_corpus(folder / "corpus", wavs=12, flacs=25), folder / "index")


@pytest.fixture(scope="session")
def demo(tmp_path_factory: pytest.TempPathFactory) -> Corpus:
    """The corpus that comes with MyXTTS: flac, English and Persian."""
    return scan_demo(tmp_path_factory.mktemp("demo"))


@pytest.fixture
def own_lj(tmp_path: Path) -> Corpus:
    """Real LJSpeech clips that a test may damage."""
    return scan_small(copy_corpus(tmp_path / "corpus", wavs=24), tmp_path / "index")


@pytest.fixture
def leaves_nothing() -> Iterator[None]:
    """Fails a test that leaves a process or an open file behind."""
    process = psutil.Process()
    before = process.num_fds()
    yield
    assert process.children() == []
    assert process.num_fds() <= before
