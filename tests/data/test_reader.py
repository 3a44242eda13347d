import os

import numpy as np
import psutil
import pytest

from myxtts.audio.augment import choose_evaluation_slices, draw_slices
from myxtts.audio.reading import read_clip
from myxtts.data.sampler import EMPTY_ROW, WHOLE, Position, RowShare
from myxtts.text.tokenizer import Tokenizer
from tests.data.reading import (
    DEPTH,
    VOCABULARY,
    CountingEngine,
    freeze,
    freeze_all,
    make_sampler,
    open_reader,
    read_steps,
    scan_small,
    shape_of,
)
from tests.data.shared import write_clips, write_metadata

pytestmark = pytest.mark.usefixtures("leaves_nothing")

ENGINES = ["here", "3 workers", "tensorflow"]


def read_epoch(texted, kind="here", *, sampler=None, **options):
    sampler = sampler or make_sampler(texted)
    with open_reader(texted, kind, sampler=sampler, **options) as reader:
        return freeze_all(read_steps(reader, 0, sampler.steps_per_epoch))


@pytest.mark.parametrize("corpus", ["lj", "mixed", "demo"])
def test_all_engines_give_the_same_bits(corpus, request):
    texted = request.getfixturevalue(corpus)
    expected = read_epoch(texted)
    for kind in ENGINES[1:]:
        assert read_epoch(texted, kind) == expected, kind


def test_a_batch_holds_what_the_files_say(mixed):
    sampler = make_sampler(mixed, accumulation=2)
    tokenizer = Tokenizer(VOCABULARY)
    with open_reader(mixed, "2 workers", sampler=sampler) as reader:
        for batch in read_steps(reader, 0, sampler.steps_per_epoch):
            bucket = sampler.plan.buckets[batch.bucket_number]
            assert shape_of(batch) == (bucket.rows, bucket.samples, bucket.tokens)
            for row, clip in enumerate(batch.clips_B.tolist()):
                if clip == EMPTY_ROW:
                    assert_empty(batch, row)
                    continue
                wav = read_clip(mixed.find_file(clip))
                ids = tokenizer.encode(mixed.text[clip], mixed.language[clip])
                assert batch.weights_B[row] == 1
                assert batch.wav_lengths_B[row] == len(wav)
                assert np.array_equal(batch.wav_BS[row], np.pad(wav, (0, bucket.samples - len(wav))))
                assert batch.text_lengths_B[row] == len(ids)
                assert batch.text_BL[row].tolist() == ids + [0] * (bucket.tokens - len(ids))
                slices = draw_slices([len(wav)], seed=sampler.seed, epoch=batch.epoch, sample_ids=[clip])
                assert (batch.slice_starts_B[row], batch.slice_lengths_B[row]) == (slices.starts[0], slices.lengths[0])


def assert_empty(batch, row):
    assert batch.weights_B[row] == 0
    assert not batch.wav_BS[row].any()
    assert not batch.text_BL[row].any()
    numbers = (batch.wav_lengths_B, batch.text_lengths_B, batch.slice_starts_B, batch.slice_lengths_B)
    assert [int(array[row]) for array in numbers] == [0, 0, 0, 0]


@pytest.mark.parametrize("kind", ENGINES)
def test_a_place_gives_the_same_batch_however_it_is_come_to(kind, mixed):
    sampler = make_sampler(mixed, accumulation=3)
    with open_reader(mixed, "here", sampler=sampler) as reader:
        expected = {batch.position: freeze(batch) for batch in read_steps(reader, 0, 3)}
    with open_reader(mixed, kind, sampler=make_sampler(mixed, accumulation=3)) as reader:
        places = [(1, 1), (1, 1), (1, 2), (2, 0), (0, 2), (0, 0), (0, 1), (2, 2), (0, 0)]
        for place in places:
            assert freeze(reader.read(Position(*place))) == expected[place], place


def test_validation_slices_are_the_same_in_every_epoch(lj):
    sampler = make_sampler(lj)
    with open_reader(lj, sampler=sampler, for_validation=True) as reader:
        for batch in read_steps(reader, 0, 2 * sampler.steps_per_epoch):
            rows = batch.clips_B != EMPTY_ROW
            slices = choose_evaluation_slices(batch.wav_lengths_B[rows])
            assert np.array_equal(batch.slice_starts_B[rows], slices.starts)
            assert np.array_equal(batch.slice_lengths_B[rows], slices.lengths)


@pytest.mark.parametrize("kind", ["2 workers", "tensorflow"])
def test_without_static_shapes_a_batch_is_as_long_as_its_longest_clip_and_text(kind, lj):
    sampler = make_sampler(lj)
    with (
        open_reader(lj, sampler=sampler) as padded,
        open_reader(lj, kind, sampler=sampler, static_shapes=False) as reader,
    ):
        for batch in read_steps(reader, 0, sampler.steps_per_epoch):
            samples = -(-int(batch.wav_lengths_B.max()) // 1024) * 1024
            full = padded.read(batch.position)
            assert shape_of(batch) == (full.rows, samples, batch.text_lengths_B.max())
            assert np.array_equal(batch.wav_BS, full.wav_BS[:, :samples])
            assert np.array_equal(batch.text_BL, full.text_BL[:, : shape_of(batch)[2]])


@pytest.mark.parametrize("kind", ENGINES)
def test_batches_that_are_kept_are_not_overwritten(kind, lj):
    expected = read_epoch(lj)
    sampler = make_sampler(lj)
    with open_reader(lj, kind, sampler=sampler) as reader:
        kept = list(read_steps(reader, 0, sampler.steps_per_epoch))
        assert len(kept) > DEPTH
        assert freeze_all(kept) == expected
    assert freeze_all(kept) == expected


def test_killed_readers_change_nothing(lj):
    expected = read_epoch(lj)
    sampler = make_sampler(lj)
    got = []
    with open_reader(lj, "2 workers", sampler=sampler) as reader:
        for batch in read_steps(reader, 0, sampler.steps_per_epoch):
            got.append(freeze(batch))
            del batch
            if len(got) % 3 == 0:
                psutil.Process().children()[len(got) % 2].kill()
    assert got == expected
    assert reader.report.replaced == []


@pytest.mark.parametrize("accumulation", [1, 3])
def test_reading_ahead_is_bounded_and_goes_on_while_the_caller_works(lj, accumulation):
    engine, sampler = CountingEngine(), make_sampler(lj, accumulation=accumulation)
    with open_reader(lj, engine, sampler=sampler, depth=4) as reader:
        for _ in read_steps(reader, 0, 5):
            assert engine.under_way == 4
    assert engine.most == 4


def test_nothing_is_read_ahead_beyond_the_end(lj):
    engine, sampler = CountingEngine(), make_sampler(lj, accumulation=2)
    with open_reader(lj, engine, sampler=sampler, depth=50, end_step=3) as reader:
        batches = list(read_steps(reader, 0, 3))
        assert engine.started == len(batches) == 6
        assert reader.read(Position(3)).position == (3, 0)


def test_of_steps_that_others_read_nothing_is_read_ahead(lj):
    engine, sampler = CountingEngine(), make_sampler(lj, accumulation=2)
    with open_reader(lj, "here", sampler=sampler) as reader:
        expected = {batch.position: freeze(batch) for batch in read_steps(reader, 0, 6)}
    with open_reader(lj, engine, sampler=sampler, depth=5) as reader:
        # One of three readers that take turns, each told what it will be asked for.
        for step, upcoming in ((0, [3]), (3, [3, 5]), (5, [])):
            for micro_batch in range(2):
                reader.expect(upcoming)
                assert freeze(reader.read(Position(step, micro_batch))) == expected[step, micro_batch]
        assert engine.started == 6
        assert engine.under_way == 0
        assert freeze(reader.read(Position(1))) == expected[1, 0], "another one is given all the same"


def test_a_folder_whose_name_is_not_utf8_is_read(tmp_path):
    folder = tmp_path / os.fsdecode(b"caf\xe9")
    write_clips(tmp_path / "plain", ["é"])
    write_metadata(tmp_path / "plain", "é|A cup of coffee.")
    (tmp_path / "plain").rename(folder)
    texted = scan_small(folder, tmp_path / "index")
    assert read_epoch(texted, "1 worker") == read_epoch(texted, "tensorflow") == read_epoch(texted)


def read_share(texted, share):
    sampler, engine = make_sampler(texted, accumulation=2), CountingEngine()
    with open_reader(texted, engine, sampler=sampler, share=share, end_step=sampler.steps_per_epoch) as reader:
        return list(read_steps(reader, 0, sampler.steps_per_epoch)), engine.files


@pytest.mark.parametrize("parts", [2, 3, 5])
def test_shares_are_disjoint_and_join_to_the_batch(lj, parts):
    whole, all_files = read_share(lj, WHOLE)
    shares = [read_share(lj, RowShare(part, parts)) for part in range(parts)]
    for number, batch in enumerate(whole):
        own = [batches[number] for batches, _ in shares]
        assert len({each.wav_BS.shape for each in own}) == 1, "all have one shape"
        lengths = ("wav_lengths_B", "text_lengths_B", "slice_starts_B", "slice_lengths_B")
        for name in ("clips_B", "wav_BS", "text_BL", "weights_B", *lengths):
            joined = np.concatenate([getattr(each, name) for each in own])[: batch.rows]
            np.testing.assert_array_equal(joined, getattr(batch, name), err_msg=name)
    read = [file for _, files in shares for file in files]
    assert sorted(map(str, read)) == sorted(map(str, all_files)), "no clip is read twice, and none is left out"


def test_a_share_may_be_empty(lj):
    """More workers than rows: those who have none still take part in every step."""
    batches, files = read_share(lj, RowShare(63, 64))
    whole, _ = read_share(lj, WHOLE)
    assert len(batches) == len(whole)
    assert all((batch.clips_B == EMPTY_ROW).all() for batch in batches)
    assert files == []
