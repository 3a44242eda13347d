"""A batch and what is known about it, through a slot and onto the model device."""

import logging
from dataclasses import replace

import numpy as np
import pytest

from myxtts.data.drops import Drop, DropReport
from myxtts.data.sampler import Failure, Kind, RowShare
from myxtts.errors import DropReason
from myxtts.pipeline.batch import (
    MOST_NOTE_BYTES,
    Batch,
    BatchFacts,
    BatchInfo,
    BatchMemory,
    BatchSpans,
    Span,
    measure_batch_bytes,
    specify_batch,
)
from myxtts.pipeline.batches import NoteReader, place_batch
from myxtts.pipeline.factory import NoteTaker
from myxtts.pipeline.recipe import Target, read_recipe
from myxtts.pipeline.ring import Ring
from tests.pipeline.small_runs import make_batches, make_run, make_run_folder

INFO = BatchInfo(
    facts=BatchFacts(7, Kind.VALIDATION, 5, 0, 1, 2, 3, 4, 5000, 6000),
    clip_numbers=(4, -1),
    replaced=(Failure(1, 2, 3), Failure(1, -1, 3)),
    totals=(float(np.float32(0.1)), 12.0),
    spans=BatchSpans(Span(1.0, 1.5), Span(1.5, 1.0 / 3.0)),
    memory=BatchMemory(42, 1 << 40, None),
    cache_hits=3,
    cache_misses=2,
    traces=1,
    # A file's name that is no UTF-8.
    notes=(["log", 30, "myxtts.data", "wavs/\udc80.wav کتاب"],),
)
DROP = Drop(DropReason.CORRUPT, "wavs/a.wav", "step 3, row 1", "no header")


def test_a_slot_that_is_overwritten_changes_nothing_of_a_batch():
    tensors = {
        "mel_BFM": np.arange(2 * 3 * 80, dtype=np.float32).reshape(2, 3, 80),
        "codes_BM": np.arange(10, dtype=np.int32).reshape(2, 5),
    }
    arrays = Batch(tensors, INFO).pack()
    reading = Ring.create(1, 1 << 16)
    writing = Ring.attach(reading.fileno(), 1, reading.slot_bytes)
    views = reading.read(0, writing.pack(0, arrays))
    assert all(view.ctypes.data % 64 == 0 for view in views.values()), "aligned: the case in which memory may be shared"
    batch = place_batch(Batch.unpack(views), "/CPU:0")
    writing.pack(0, {name: np.zeros_like(array) for name, array in arrays.items()})
    assert not views["mel_BFM"].any()
    assert {name: tensor.numpy().tolist() for name, tensor in batch.tensors.items()} == {
        name: array.tolist() for name, array in tensors.items()
    }
    assert batch.info.spans.transfer.seconds > 0
    assert replace(batch.info, spans=INFO.spans) == INFO
    assert batch.info.spans[:2] == INFO.spans[:2]
    del views
    reading.close()


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return make_run_folder(tmp_path_factory.mktemp("run"), clips=8)


@pytest.mark.parametrize("target", Target)
def test_the_tensors_and_the_size_of_a_batch_are_known_beforehand(target, folder):
    data, recipe = make_run(folder, target, data={"num_workers": 0})
    (batch,) = make_batches((data, recipe), [0])
    bucket = data.sampler.plan.buckets[batch.info.facts.bucket_number]
    told = [(name, tuple(tensor.shape), np.asarray(tensor).dtype.name) for name, tensor in batch.tensors.items()]
    assert told == [(name, *spec) for name, spec in specify_batch(recipe.preparation, bucket).items()]
    if target is Target.CODEC:
        assert batch.info.totals == (batch.tensors["frame_lengths_B"].sum(),) * 2
    really = sum(array.nbytes for array in batch.pack().values())
    assert really <= measure_batch_bytes(recipe.preparation, bucket) <= really * 1.1


def test_a_recipe_is_read_as_it_was_written(folder, tmp_path):
    _, recipe = make_run(folder, data={"augment_speed": 0.1})
    odd = replace(
        recipe,
        cache_folder=tmp_path / "\udc80",
        failures=(Failure(3, -1, 2),),
        share=RowShare(1, 2),
        is_validated=False,
    )
    for each in (recipe, odd):
        each.write(tmp_path / "recipe.json")
        assert read_recipe(tmp_path / "recipe.json") == each


def make_report():
    return DropReport(lines=3, kept_seconds=1.0)


def say(taker, *lines):
    for line in lines:
        taker.handle(logging.LogRecord("myxtts.data", logging.WARNING, "", 0, line, (), None))


def carry(taker, reader):
    """Hands over what was noted, with a batch; gives how much longer that is for it."""
    plain = replace(INFO, notes=())
    batch = Batch({}, replace(plain, notes=taker.take()))
    (array,) = batch.pack().values()
    reader.read(Batch.unpack(batch.pack()).info.notes)
    return array.nbytes - Batch({}, plain).pack()["info_U"].nbytes


def test_what_does_not_fit_goes_with_the_next_batch(caplog):
    taker, reader = NoteTaker(make_report()), NoteReader(make_report())
    lines = [f"{number} {'x' * 1500}" for number in range(60)]
    say(taker, *lines)
    with caplog.at_level(logging.INFO, "myxtts"):
        sizes = [carry(taker, reader) for _ in range(4)]
    assert max(sizes) <= MOST_NOTE_BYTES
    assert caplog.messages == lines
