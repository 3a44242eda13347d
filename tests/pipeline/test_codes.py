"""Codes that are made before a run are those it would make, and it makes none of them again; and what `--cache` comes to."""

import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from myxtts.config import XTTSConfig
from myxtts.data.code_cache import CodeCache, find_key_folder
from myxtts.data.sampler import Kind
from myxtts.devices.runtime import Execution, read_execution
from myxtts.errors import MachineError, ReadingError
from myxtts.pipeline.batch import BatchMeters
from myxtts.pipeline.codes import (
    CodeMaker,
    Decision,
    FilledCodes,
    decide_cache,
    fill_codes,
    identify_clips,
    load_codec,
    make_code_key,
    open_cache,
)
from myxtts.pipeline.recipe import ClipPart, Target, choose_preparation
from tests.pipeline.small_runs import MEL_NORMS, damage_clip, make_batches, make_run, make_run_folder

NORMS = np.array(MEL_NORMS, np.float32)
CLIPS = 9
BATCHES = 5
"""More than an epoch, and a round of validation."""


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return make_run_folder(tmp_path_factory.mktemp("run"), clips=CLIPS)


@pytest.fixture(scope="module")
def codec(folder):
    return load_codec(folder / "codec")


@pytest.fixture(scope="module")
def maker(codec):
    """One for all tests: it traces every width once."""
    return CodeMaker(codec.dvae, NORMS)


@pytest.fixture
def run(folder, tmp_path):
    data, recipe = make_run(folder, data={"num_workers": 0, "batch_size": 4, "cache": "disk"})
    return data, replace(recipe, cache_folder=tmp_path / "features")


def make_key(codec, device="/CPU:0", execution=None):
    return make_code_key(codec.weights, NORMS, device, execution or read_execution())


Fill = Callable[..., FilledCodes]


@pytest.fixture
def fill(codec, maker):
    """Makes the codes of a run's clips, or of a part of them."""

    def fill(run, part=None, **arguments):
        with CodeCache(run[1].cache_folder, make_key(codec)) as maker.cache:
            return fill_codes(run[0], run[1].config.data, maker, part or ClipPart(), **arguments)

    return fill


def read_codes(run, codec, kind):
    """The codes that are kept of all clips of a kind."""
    with CodeCache(run[1].cache_folder, make_key(codec)) as cache:
        return cache.get_many(identify_clips(run[0])[kind])


def keep_something(folder, key):
    with CodeCache(folder, key) as cache:
        cache.put_many(np.zeros((1, 2), np.uint64), [np.zeros(3, np.int16)])


def run_batches(run):
    """The batches of a run, and what they cost together."""
    batches = make_batches(run, range(BATCHES), warm=True)
    return batches, sum((batch.info.meters for batch in batches), BatchMeters())


def test_parts_are_disjoint_and_complete_whatever_other_clips_there_are():
    ids = np.random.default_rng(0).integers(0, 2**64, size=(500, 2), dtype=np.uint64)
    for parts in (1, 2, 3, 7, 9999):
        chosen = [ClipPart(number, parts).choose(ids) for number in range(1, parts + 1)]
        assert sorted(np.concatenate(chosen).tolist()) == list(range(len(ids)))
        assert parts > 7 or min(map(len, chosen)) > 0.7 * len(ids) / parts
    some = np.arange(0, len(ids), 3)
    assert set(some[ClipPart(2, 3).choose(ids[some])]) == set(ClipPart(2, 3).choose(ids)) & set(some)


def test_codes_of_two_parts_are_those_a_run_makes_and_a_run_then_makes_none(run, fill):
    data, recipe = run
    wanted, _ = run_batches((data, replace(recipe, config=recipe.config.replace(data={"cache": "off"}))))
    with_readers = data, replace(recipe, config=recipe.config.replace(data={"num_workers": 1}))
    parts = [fill(run, ClipPart(1, 2)), fill(with_readers, ClipPart(2, 2))]
    assert all(part.made and not part.known and not part.failed for part in parts)
    assert sum(part.made for part in parts) == len(data.train) + len(data.validation) == CLIPS
    before = sorted(recipe.cache_folder.rglob("*.npz"))
    got, cost = run_batches(run)
    found, made = ([batch.tensors["codes_BM"].tolist() for batch in batches] for batches in (got, wanted))
    assert found == made
    assert len(set(map(str, found))) > BATCHES / 2
    seen = {(batch.info.facts.kind, clip) for batch in got for clip in batch.info.clip_numbers if clip >= 0}
    assert len(seen) == CLIPS, "training and validation clips alike"
    assert (cost.cache_hits >= CLIPS, cost.cache_misses) == (True, 0)
    assert sorted(recipe.cache_folder.rglob("*.npz")) == before, "the run has written nothing"


def test_what_is_there_is_not_made_again(run, fill):
    told = []
    first = fill(run, ClipPart(1, 3))
    again = fill(run, progress=lambda *words: told.append(words))
    assert (again.known, again.made) == (first.made, CLIPS - first.made)
    assert told[-1] == ("codes", CLIPS, CLIPS)
    assert (fill(run).known, fill(run).made) == (CLIPS, 0)


@pytest.fixture
def damaged(run):
    """A training clip that cannot be read now."""
    path = run[0].train.find_file(3)
    content, status = path.read_bytes(), path.stat()
    damage_clip(path)
    yield 3
    path.write_bytes(content)
    os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))


def test_a_clip_that_cannot_be_read_is_named_and_the_others_are_made(run, codec, fill, damaged):
    filled = fill(run)
    assert [(drop.file, drop.reason) for drop in filled.failed] == [(run[0].train.audio[damaged], "corrupt")]
    assert (filled.made, filled.clips) == (CLIPS - 1, CLIPS)
    missing = [clip for clip, codes in enumerate(read_codes(run, codec, Kind.TRAIN)) if codes is None]
    assert missing == [damaged]


def test_where_too_many_cannot_be_read_it_ends(fill, tmp_path):
    run = make_run(make_run_folder(tmp_path, clips=50), data={"num_workers": 0})
    for path in (tmp_path / "corpus" / "wavs").iterdir():
        damage_clip(path)
    with pytest.raises(ReadingError, match=r"4\d could not be read.* Is the disk still there\?"):
        fill(run)


def test_a_full_disk_is_an_error(run, fill, monkeypatch):
    monkeypatch.setattr(os, "statvfs", lambda path: SimpleNamespace(f_bavail=0, f_frsize=4096))
    with pytest.raises(MachineError, match="Codes can no longer be written"):
        fill(run)


def open_run_cache(run, codec, cache="disk"):
    """Opens the cache of a run as its preparer does."""
    data, recipe = run
    opened = open_cache(data, replace(recipe, config=recipe.config.replace(data={"cache": cache})), make_key(codec))
    if opened is not None:
        opened.save()


def test_a_run_says_which_codes_it_finds(run, codec, caplog):
    caplog.set_level("INFO")
    keep_something(run[1].cache_folder, make_key(codec, "/GPU:0"))
    keep_something(run[1].cache_folder, make_key(codec))
    open_run_cache(run, codec)
    assert "The codes of 1 clips are there already." in caplog.messages
    assert "cannot be used" not in caplog.text


@pytest.mark.parametrize(("cache", "is_told"), [("disk", True), ("auto", True), ("memory", False), ("off", False)])
def test_a_run_says_what_makes_its_codes_others(cache, is_told, run, codec, caplog):
    caplog.set_level("INFO")
    folder, kept = run[1].cache_folder, make_key(codec, "/GPU:0")
    keep_something(folder, kept)
    # One that has less in common is not what is compared.
    keep_something(folder, make_key(codec, "/GPU:0", replace(read_execution(), intra_op=77)))
    open_run_cache(run, codec, cache)
    told = f"The 1 codes in {find_key_folder(folder, kept)} cannot be used: preparing device was gpu, now cpu."
    assert (told in caplog.messages) == is_told
    assert "there already" not in caplog.text


def test_what_codes_depend_on_is_told_in_words(codec, monkeypatch):
    monkeypatch.setenv("TF_ENABLE_ONEDNN_OPTS", "1")
    monkeypatch.delenv("TF_XLA_FLAGS", raising=False)
    told = make_key(codec, execution=Execution(intra_op=0, inter_op=2, is_deterministic=True, is_synchronous=True))
    assert all(told.pop(name) for name in ("codec", "mel statistics", "MyXTTS", "encoding"))
    assert told == {
        "preparing device": "cpu",
        "--deterministic": "on",
        "threads of an operation": "TensorFlow's choice",
        "TF_ENABLE_ONEDNN_OPTS": "1",
        "TF_XLA_FLAGS": "not set",
    }


KEY = {"codec": "abc"}
NOT_ALIKE = Decision("off", "Augmentation changes the clips every time.")
ONCE = Decision("off", "Every clip is prepared only once in one epoch, so nothing would be read back.")
WHAT = "The codes of 4 clips take 0.00345 MB"
DISK = Decision("disk", f"{WHAT}, and are made once for this run and later ones.")
MEMORY = Decision("memory", f"{WHAT}, and are made once for this run: there is no room for them on the disk.")


@pytest.mark.parametrize(
    ("asked", "data", "epochs", "decision"),
    [
        ("auto", {}, 2, DISK),
        ("disk", {}, 1, Decision("disk", "--cache is disk.")),
        ("off", {}, 2, Decision("off", "--cache is off.")),
        ("auto", {"augment_gain_db": 3.0}, 2, NOT_ALIKE),
        ("disk", {"augment_gain_db": 3.0}, 2, NOT_ALIKE),
        ("auto", {}, 1, ONCE),
    ],
)
def test_what_is_asked_for_decides(tmp_path, asked, data, epochs, decision):
    assert decide(tmp_path, asked, data, epochs) == decision


def test_without_room_on_the_disk_codes_are_kept_in_memory_and_without_memory_nowhere(tmp_path):
    # A file system without room.
    assert decide(Path("/proc/codes"), "auto", {}, epochs=2) == MEMORY
    none = decide(tmp_path, "auto", {}, epochs=2, seconds=10**12)
    assert none.policy == "off"
    assert none.reason.endswith("MB, for which there is no memory.")


def test_codes_that_are_there_are_used_in_one_epoch_too(tmp_path):
    keep_something(tmp_path, KEY)
    assert decide(tmp_path, "auto", {}, epochs=1) == DISK


def decide(folder, asked, data, epochs, seconds=20):
    preparation = choose_preparation(XTTSConfig(data=data), Target.GPT, [1.0] * 80)
    clips = np.full(2, seconds * 22050)
    corpora = type("Corpus", (), {"samples": clips, "__len__": lambda self: 2})
    run_data = SimpleNamespace(train=corpora(), validation=corpora())
    return decide_cache(asked, preparation, run_data, folder, KEY, epochs=epochs)
