"""Codes that are made before a run are those it would make, and it makes none of them again."""

import os
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from myxtts.data import code_cache
from myxtts.data.code_cache import CacheFolderError, CodeCache, CodeKey, find_key_folder
from myxtts.data.errors import TooManyFailuresError
from myxtts.devices.runtime import Execution, read_execution
from myxtts.pipeline import code_filling
from myxtts.pipeline.batch_factory import BatchFactory
from myxtts.pipeline.batch_facts import BatchFacts
from myxtts.pipeline.batch_meters import BatchMeters
from myxtts.pipeline.clip_part import ClipPart
from myxtts.pipeline.code_cache import CacheChoice, describe_key, explain_unused_codes, identify_clips, make_code_key
from myxtts.pipeline.code_filling import FilledCodes, fill_codes
from myxtts.pipeline.code_maker import CodeMaker
from myxtts.pipeline.codec_loading import Codec, load_codec
from myxtts.pipeline.order import Kind
from myxtts.pipeline.production import Production
from tests.pipeline.small_runs import MEL_NORMS, damage_clip, make_production, make_run_folder

Run = tuple[Any, Production]
NORMS = np.array(MEL_NORMS, np.float32)
CLIPS = 9
BATCHES = 5
"""More than an epoch, and a round of validation."""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_run_folder(tmp_path_factory.mktemp("run"), clips=CLIPS)


@pytest.fixture(scope="module")
def codec(folder: Path) -> Codec:
    return load_codec(folder / "codec")


@pytest.fixture(scope="module")
def maker(codec: Codec) -> CodeMaker:
    """One for all tests: it traces every width once."""
    return CodeMaker(codec.dvae, NORMS)


@pytest.fixture
def run(folder: Path, tmp_path: Path) -> Run:
    data, production = make_production(folder, data={"num_workers": 0, "batch_size": 4, "cache": "disk"})
    return data, replace(production, cache_folder=tmp_path / "features")


def make_key(codec: Codec, device: str = "/CPU:0", execution: Execution | None = None) -> CodeKey:
    return make_code_key(codec.weights, NORMS, device, execution or read_execution())


Fill = Callable[..., FilledCodes]


@pytest.fixture
def fill(codec: Codec, maker: CodeMaker) -> Fill:
    """Makes the codes of a run's clips, or of a part of them."""

    def fill(run: Run, part: ClipPart | None = None, **arguments: Any) -> FilledCodes:
        with CodeCache(run[1].cache_folder, make_key(codec)) as maker.cache:
            return fill_codes(run[0], run[1].config.data, maker, part or ClipPart(), **arguments)

    return fill


def read_codes(run: Run, codec: Codec, kind: Kind) -> list[Any]:
    """The codes that are kept of all clips of a kind."""
    with CodeCache(run[1].cache_folder, make_key(codec)) as cache:
        return cache.get_many(identify_clips(run[0])[kind])


def keep_something(folder: Path, key: CodeKey) -> None:
    with CodeCache(folder, key) as cache:
        cache.put_many(np.zeros((1, 2), np.uint64), [np.zeros(3, np.int16)])


def make_batches(run: Run) -> tuple[list[dict[str, Any]], BatchMeters]:
    """The batches of a run, and what they cost together."""
    factory = BatchFactory(*run, "/CPU:0")
    try:
        factory.warm_up()
        batches = [factory.fetch(factory.make(number)) for number in range(BATCHES)]
    finally:
        factory.close()
    return batches, sum((BatchMeters.parse(batch["meters_N"]) for batch in batches), BatchMeters())


def test_parts_are_disjoint_and_complete_whatever_other_clips_there_are() -> None:
    ids = np.random.default_rng(0).integers(0, 2**64, size=(500, 2), dtype=np.uint64)
    for parts in (1, 2, 3, 7, 9999):
        chosen = [ClipPart(number, parts).choose(ids) for number in range(1, parts + 1)]
        assert sorted(np.concatenate(chosen).tolist()) == list(range(len(ids)))
        assert parts > 7 or min(map(len, chosen)) > 0.7 * len(ids) / parts
    some = np.arange(0, len(ids), 3)
    assert set(some[ClipPart(2, 3).choose(ids[some])]) == set(ClipPart(2, 3).choose(ids)) & set(some)


def test_codes_of_two_parts_are_those_a_run_makes_and_a_run_then_makes_none(run: Run, fill: Fill) -> None:
    data, production = run
    without = production.config.replace(data={"cache": "off"})
    wanted, _ = make_batches((data, replace(production, config=without)))
    with_readers = data, replace(production, config=production.config.replace(data={"num_workers": 1}))
    parts = [fill(run, ClipPart(1, 2)), fill(with_readers, ClipPart(2, 2))]
    assert all(part.made and not part.known and not part.failed for part in parts)
    assert sum(part.made for part in parts) == len(data.train) + len(data.validation) == CLIPS
    before = sorted(production.cache_folder.rglob("*.npz"))
    got, cost = make_batches(run)
    assert [batch["codes_BM"].tolist() for batch in got] == [batch["codes_BM"].tolist() for batch in wanted]
    assert len({batch["codes_BM"].tobytes() for batch in got}) > BATCHES / 2
    kinds = [BatchFacts.parse(batch["facts_N"]).kind for batch in got]
    seen = {
        (kind, clip) for kind, batch in zip(kinds, got, strict=True) for clip in batch["clips_B"].tolist() if clip >= 0
    }
    assert len(seen) == CLIPS, "training and validation clips alike"
    assert (cost.cache_hits >= CLIPS, cost.cache_misses) == (True, 0)
    assert sorted(production.cache_folder.rglob("*.npz")) == before, "the run has written nothing"


def test_what_is_there_is_not_made_again(run: Run, fill: Fill) -> None:
    told: list[tuple[str, int, int]] = []
    first = fill(run, ClipPart(1, 3))
    again = fill(run, progress=lambda *words: told.append(words))
    assert (again.known, again.made) == (first.made, CLIPS - first.made)
    assert told[-1] == ("codes", CLIPS, CLIPS)
    assert (fill(run).known, fill(run).made) == (CLIPS, 0)


@pytest.fixture
def damaged(run: Run) -> Iterator[int]:
    """A training clip that cannot be read now."""
    path = run[0].train.find_file(3)
    content, status = path.read_bytes(), path.stat()
    damage_clip(path)
    yield 3
    path.write_bytes(content)
    os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))


def test_a_clip_that_cannot_be_read_is_named_and_the_others_are_made(
    run: Run, codec: Codec, fill: Fill, damaged: int
) -> None:
    filled = fill(run)
    assert [(drop.file, drop.reason) for drop in filled.failed] == [(run[0].train.audio[damaged], "corrupt")]
    assert (filled.made, filled.clips) == (CLIPS - 1, CLIPS)
    missing = [clip for clip, codes in enumerate(read_codes(run, codec, Kind.TRAIN)) if codes is None]
    assert missing == [damaged]


@pytest.mark.usefixtures("damaged")
def test_where_too_many_cannot_be_read_it_ends(run: Run, fill: Fill, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(code_filling, "RECENT_CLIPS", 1)
    monkeypatch.setattr(code_filling, "MOST_FAILED_SHARE", 0.0)
    with pytest.raises(TooManyFailuresError, match=r"1 could not be read.* Is the disk still there\?"):
        fill(run)


def test_a_full_disk_is_an_error(run: Run, fill: Fill, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(code_cache, "read_free_disk_bytes", lambda folder: 0)
    with pytest.raises(CacheFolderError, match="Codes can no longer be written"):
        fill(run)


def open_run_cache(run: Run, codec: Codec, cache: str = "disk") -> None:
    """Opens the cache of a run as its preparer does."""
    data, production = run
    production = replace(production, config=production.config.replace(data={"cache": cache}))
    opened = CacheChoice(data, production, codec, "/CPU:0").open()
    if opened is not None:
        opened.save()


def test_a_run_says_which_codes_it_finds(run: Run, codec: Codec, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO")
    keep_something(run[1].cache_folder, make_key(codec, "/GPU:0"))
    keep_something(run[1].cache_folder, make_key(codec))
    open_run_cache(run, codec)
    assert "The codes of 1 clips are there already." in caplog.messages
    assert "cannot be used" not in caplog.text


@pytest.mark.parametrize(("cache", "is_told"), [("disk", True), ("auto", True), ("memory", False), ("off", False)])
def test_a_run_says_what_makes_its_codes_others(
    cache: str, is_told: bool, run: Run, codec: Codec, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    folder, kept = run[1].cache_folder, make_key(codec, "/GPU:0")
    keep_something(folder, kept)
    open_run_cache(run, codec, cache)
    told = f"The 1 codes in {find_key_folder(folder, kept)} cannot be used: preparing device was gpu, now cpu."
    assert (told in caplog.messages) == is_told
    assert "there already" not in caplog.text


def test_the_nearest_codes_are_compared(codec: Codec, tmp_path: Path) -> None:
    here = Execution(intra_op=0, inter_op=0, is_deterministic=False, is_synchronous=True)
    far = make_key(codec, "/GPU:0", replace(here, is_deterministic=True, intra_op=2))
    keep_something(tmp_path, make_key(codec, execution=here))
    keep_something(tmp_path, far)
    said = explain_unused_codes(tmp_path, make_key(codec, execution=replace(here, intra_op=3)))
    assert said is not None
    assert said.endswith("cannot be used: threads of an operation was TensorFlow's choice, now 3.")
    assert explain_unused_codes(tmp_path, far) is None
    assert explain_unused_codes(tmp_path / "none", far) is None


def test_what_codes_depend_on_is_told_in_words(codec: Codec, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TF_ENABLE_ONEDNN_OPTS", "1")
    monkeypatch.delenv("TF_XLA_FLAGS", raising=False)
    key = make_key(codec, execution=Execution(intra_op=0, inter_op=2, is_deterministic=True, is_synchronous=True))
    told = describe_key(key)
    assert told["codec"] == str(key["codec"])[:12]
    del told["mel statistics"], told["MyXTTS"], told["codec"]
    assert told == {
        "preparing device": "cpu",
        "--deterministic": "on",
        "threads of an operation": "TensorFlow's choice",
        "TF_ENABLE_ONEDNN_OPTS": "1",
        "TF_XLA_FLAGS": "not set",
    }
