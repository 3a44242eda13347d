"""Clips that fail while a run reads them."""

import json
import logging
import os
import re
import textwrap

import numpy as np
import pytest

from myxtts.data.host_batches import CorpusBatches
from myxtts.data.run_data import load_failures, save_position, take_fingerprint
from myxtts.data.sampler import EMPTY_ROW, Failure, Position
from myxtts.errors import DropReason, ReadingError
from tests.data.reading import VOCABULARY, freeze, freeze_all, make_sampler, open_reader, read_steps, scan_small
from tests.data.shared import write_clips, write_metadata

pytestmark = pytest.mark.usefixtures("leaves_nothing")

ENGINES = ["here", "2 workers", "tensorflow"]
STEPS = 5


def damage(corpus, clips):
    """Make four clips fail, each in its own way. Returns the reasons by file name."""
    missing, cut, longer, touched = (corpus.find_file(int(clip)) for clip in clips)
    missing.unlink()
    rewrite(cut, lambda content: content[:-4000])
    rewrite(longer, lambda content: content + bytes(4000))
    os.utime(touched, ns=(1, 1))
    reasons = (DropReason.MISSING, DropReason.CHANGED, DropReason.CHANGED, DropReason.CHANGED)
    return {f"wavs/{path.name}": reason for path, reason in zip((missing, cut, longer, touched), reasons, strict=True)}


def rewrite(path, change):
    """Another content under the old time, as a restored backup has it."""
    times = path.stat().st_atime_ns, path.stat().st_mtime_ns
    path.write_bytes(change(path.read_bytes()))
    os.utime(path, ns=times)


def read_first_steps(texted, kind, steps=STEPS, **options):
    sampler = make_sampler(texted, accumulation=2)
    with open_reader(texted, kind, sampler=sampler, **options) as reader:
        return freeze_all(read_steps(reader, 0, steps)), reader


def list_early_clips(texted, count):
    """Clips of the first steps, one a step."""
    sampler = make_sampler(texted, accumulation=2)
    return [int(sampler.make_batch(step).micro_batches[-1].clips[0]) for step in range(count)]


def test_failing_clips_are_replaced_alike_by_all_engines_and_reported(own_lj, caplog):
    whole, _ = read_first_steps(own_lj, "here")
    expected = damage(own_lj, list_early_clips(own_lj, 4))
    batches, reader = read_first_steps(own_lj, "here")
    assert batches != whole
    assert {drop.file: drop.reason for drop in reader.report.replaced}.items() >= expected.items()
    assert reader.report.replaced[0].where.startswith("step 0, row ")
    assert json.loads(json.dumps(reader.report.to_json()))["replaced"][0]["reason"] in ("missing", "changed")
    assert "is replaced by another clip: missing, cannot be read: No such file or directory." in caplog.text
    for kind in ENGINES[1:]:
        others, other = read_first_steps(own_lj, kind)
        assert others == batches, kind
        assert other.journal.list_failures() == reader.journal.list_failures()


@pytest.mark.parametrize("kind", ENGINES)
def test_a_replaced_clip_never_reaches_a_batch_and_its_substitute_is_counted(kind, own_lj):
    bad = list_early_clips(own_lj, 4)
    damage(own_lj, bad)
    sampler = make_sampler(own_lj, accumulation=2)
    maker = CorpusBatches(own_lj, sampler)
    with open_reader(own_lj, kind, sampler=sampler) as reader:
        for step in range(4):
            rest = read_steps(reader, step, step + 1)
            batches = [next(rest)]
            # The failure is in the last micro-batch; what the losses are divided by is counted with the first one.
            known = maker.plan_step(step, reader.journal).clips
            batches += rest
            assert sorted(known) == sorted(clip for b in batches for clip in b.clips_B[b.weights_B > 0])
            assert not set(bad) & {clip for b in batches for clip in b.clips_B.tolist()}
            assert bad[step] in sampler.make_batch(step).clips
            assert all(b.wav_BS[row].any() for b in batches for row in np.flatnonzero(b.weights_B))


@pytest.mark.parametrize("kind", ENGINES)
def test_a_resumed_run_repeats_replacements_even_if_the_clip_can_be_read_again(kind, own_lj):
    clip = list_early_clips(own_lj, 3)[2]
    path = own_lj.find_file(clip)
    content, status = path.read_bytes(), path.stat()
    path.unlink()
    unbroken, reader = read_first_steps(own_lj, kind)
    path.write_bytes(content)
    os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))
    sampler = make_sampler(own_lj, accumulation=2)
    fingerprint = take_fingerprint(own_lj, sampler, validation=own_lj, vocabulary=VOCABULARY)
    # The failure at step 2 is found while step 0 is trained on; the run is saved there and killed.
    state = json.loads(json.dumps(save_position(1, reader.journal, fingerprint, sampler)))
    with open_reader(own_lj, kind, sampler=sampler, journal=load_failures(state, fingerprint)) as resumed:
        batches = freeze_all(read_steps(resumed, state["step"], STEPS))
    assert batches == unbroken[2:]
    assert resumed.report.replaced == []
    without_journal, _ = read_first_steps(own_lj, kind)
    assert without_journal != unbroken


def test_a_clip_that_fails_is_tried_again_in_the_next_epoch(own_lj):
    sampler = make_sampler(own_lj, accumulation=2)
    own_lj.find_file(5).unlink()
    with open_reader(own_lj, sampler=sampler) as reader:
        list(read_steps(reader, 0, 2 * sampler.steps_per_epoch))
    steps = {failure.step // sampler.steps_per_epoch for failure in reader.journal.list_failures() if failure.clip == 5}
    assert steps == {0, 1}


def test_too_many_failures_end_the_run_though_every_batch_could_be_filled(own_lj):
    for clip in range(0, len(own_lj), 2):
        own_lj.find_file(clip).unlink()
    with open_reader(own_lj) as reader, pytest.raises(ReadingError) as caught:
        list(read_steps(reader, 0, 1000))
    assert re.search(r"Of the last \d+ clips 4\d could not be read", str(caught.value))


@pytest.mark.parametrize("kind", ENGINES)
def test_a_corpus_that_vanishes_ends_the_run_with_the_report(kind, own_lj):
    for clip in range(len(own_lj)):
        own_lj.find_file(clip).unlink()
    with open_reader(own_lj, kind) as reader, pytest.raises(ReadingError) as caught:
        list(read_steps(reader, 0, 100))
    assert "replaced during training" in str(caught.value)
    assert "LJ001-00" in str(caught.value)
    assert len(reader.report.replaced) <= 60


def test_one_of_two_clips_leaves_an_empty_row(tmp_path):
    write_clips(tmp_path / "two", ["a", "b"])
    write_metadata(tmp_path / "two", "a|One.", "b|Two.")
    texted = scan_small(tmp_path / "two", tmp_path / "index")
    texted.find_file(0).unlink()
    for kind in ENGINES:
        with open_reader(texted, kind, sampler=make_sampler(texted, batch_size=2)) as reader:
            batch = reader.read(Position(0))
            (row,) = np.flatnonzero(batch.clips_B == EMPTY_ROW)
            assert batch.weights_B.sum() == 1
            assert not batch.wav_BS[row].any()
    texted.find_file(1).unlink()
    with open_reader(texted) as reader, pytest.raises(ReadingError, match="Step 0 has no clip left"):
        reader.read(Position(0))


@pytest.mark.parametrize("kind", ENGINES)
def test_a_batch_replaced_from_outside_has_other_clips_from_then_on(kind, lj, caplog):
    caplog.set_level(logging.WARNING)
    with open_reader(lj, kind) as reader:
        before = reader.read(Position(1)).clips_B
        rows = np.flatnonzero(before != EMPTY_ROW).tolist()
        names = reader.replace_batch(Position(1), "kills the encoder")
        after = freeze(reader.read(Position(1)))
        replaced = reader.read(Position(1)).clips_B
        assert [drop.file for drop in reader.report.replaced] == names
    assert names == [lj.audio[before[row]] for row in rows]
    assert not {*before.tolist()} & {*replaced.tolist()} - {EMPTY_ROW}
    assert reader.journal.list_failures() == [Failure(1, row, int(before[row])) for row in rows]
    assert caplog.text.count("kills the encoder") == len(names)
    with open_reader(lj, journal=reader.journal) as other:
        assert freeze(other.read(Position(1))) == after


def make_deadly(folder, monkeypatch, name, signal):
    """Has every reader process die of a signal when it reads a file of this name."""
    (folder / "sitecustomize.py").write_text(
        textwrap.dedent(
            f"""
            import os
            import myxtts.data.loaders as loading
            real = loading.load_clip
            def load(file, row):
                if file.path.endswith({name!r}):
                    os.kill(os.getpid(), {signal})
                return real(file, row)
            loading.load_clip = load
            """
        )
    )
    monkeypatch.setenv("PYTHONPATH", str(folder))


@pytest.mark.parametrize("signal", [11, 9])
def test_a_clip_that_keeps_killing_readers_is_replaced(signal, lj, tmp_path, monkeypatch):
    sampler = make_sampler(lj)
    deadly = int(sampler.make_batch(1).clips[1])
    make_deadly(tmp_path, monkeypatch, lj.audio[deadly], signal)
    with open_reader(lj, "2 workers", sampler=sampler) as reader:
        batches = freeze_all(read_steps(reader, 0, 4))
    (failure,) = reader.journal.list_failures()
    assert failure.clip == deadly
    (drop,) = reader.report.replaced
    assert drop.detail == f"3 reader processes died while they read it, the last of signal {signal}"
    with open_reader(lj, sampler=sampler, journal=reader.journal) as other:
        assert freeze_all(read_steps(other, 0, 4)) == batches
