"""Runs that many tests look at: each is made once, whichever test process needs it first."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.support.tiny_run import TinyRun, damage_clip, end_host, make_corpus, run_tiny

DAMAGED = "clip_05.wav"
COMPARED = (
    *("--grad-accum", "2", "--max-steps", "8", "--validation-interval", "3", "--checkpoint-interval", "2"),
    *("--keep-last", "9"),
)
"""Of all runs that must tell the same story."""

Share = Callable[[str, Callable[[Path], object]], Path]


@pytest.fixture(scope="session")
def share(tmp_path_factory: pytest.TempPathFactory) -> Share:
    """Gives the folder with a name, made by the first who asks; the others wait for it."""
    base = tmp_path_factory.getbasetemp()
    shared = (base.parent if "PYTEST_XDIST_WORKER" in os.environ else base) / "runs"
    shared.mkdir(exist_ok=True)

    def get(name: str, make: Callable[[Path], object]) -> Path:
        with open(shared / f"{name}.lock", "w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            done, begun = shared / f"{name}.done", shared / f"{name}.begun"
            if not done.exists():
                assert not begun.exists(), f"{name} could not be made: see the test that needed it first"
                begun.touch()
                make(shared / name)
                done.touch()
        return shared / name

    return get


@pytest.fixture(scope="session")
def make_base(share: Share) -> Callable[..., Path]:
    """Makes a folder with a corpus and, in `codec`, the run of a codec trained on it.

    Afterwards one clip is damaged so that no scan notices: every run on it has to do without that clip.
    """

    def make(name: str, seconds: tuple[float, float] = (0.98, 1.02)) -> Path:
        def fill(folder: Path) -> None:
            corpus = make_corpus(folder / "corpus", seconds=seconds)
            run_tiny(folder / "codec", "--train-data", corpus, "--stage", "codec", "--max-steps", "3")
            damage_clip(corpus / "wavs" / DAMAGED)

        return share(name, fill)

    return make


@pytest.fixture(scope="session")
def codec_run(make_base: Callable[..., Path]) -> Path:
    return make_base("base")


@pytest.fixture(scope="session")
def base_flags(codec_run: Path) -> tuple[str, ...]:
    """Of every run that trains a GPT on the corpus with the codec."""
    return ("--train-data", str(codec_run / "corpus"), "--codec", str(codec_run / "codec"))


@pytest.fixture(scope="session")
def flags(base_flags: tuple[str, ...]) -> tuple[str, ...]:
    """Of all runs that must tell the same story."""
    return (*base_flags, *COMPARED)


@pytest.fixture(scope="session")
def unbroken(share: Share, flags: tuple[str, ...]) -> TinyRun:
    """The run that others are compared with: one device, one go, nothing kept from one epoch to the next.

    The only one that speaks: what it says must not change what it learns.
    """
    return TinyRun.at(share("unbroken", lambda folder: run_tiny(folder, *flags, **{"training.speak": "true"})))


@pytest.fixture(autouse=True, scope="package")
def _no_process_of_runs_afterwards() -> Iterator[None]:
    """Other rooms look for processes that were left behind."""
    yield
    end_host()
