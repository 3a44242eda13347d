"""What is prepared for a clip depends on that clip alone."""

import shutil
from dataclasses import replace

import numpy as np
import pytest

from myxtts.audio.reading import read_clip
from myxtts.audio.resampling import resample_clip
from myxtts.data.host_batches import HostSource
from myxtts.data.sampler import EMPTY_ROW, Kind
from myxtts.models.sizes import SAMPLES_PER_FRAME, SEGMENT_FRAMES, SEGMENT_SAMPLES, count_frames
from myxtts.pipeline.prepare import choose_segments
from myxtts.pipeline.recipe import Target
from myxtts.units import MAX_SLICE_SAMPLES, SAMPLES_PER_CODE
from tests.pipeline.small_runs import make_batches, make_run, make_run_folder, open_factory


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return make_run_folder(tmp_path_factory.mktemp("run"), clips=16)


@pytest.fixture(scope="module")
def run(folder):
    return make_run(folder, data={"num_workers": 0, "batch_size": 5, "prompt_from": "speaker"})


@pytest.fixture(scope="module")
def batches(run):
    return make_batches(run, range(6))


def read_values(batch):
    """All that is not a matter of time."""
    info = batch.info
    tensors = {name: np.asarray(array).tolist() for name, array in batch.tensors.items()}
    return tensors, info.facts, info.clip_numbers, info.replaced, info.totals


def test_preparing_lasts_until_a_batch_is_really_made(run):
    with open_factory(run) as factory:
        made = factory.make(0)
        settled = factory.finish(made, on_host=False)
        fetched = factory.finish(settled, on_host=True)
    told, done = made.info.spans, fetched.info.spans
    assert told.prepare.began_s == told.read.ended_s == done.prepare.began_s
    assert told.prepare.ended_s < settled.info.spans.prepare.ended_s < done.prepare.ended_s
    assert (fetched.info.meters.read_s, fetched.info.meters.prepare_s) == (done.read.seconds, done.prepare.seconds)


def test_totals_are_those_of_the_global_batch(folder):
    run = make_run(
        folder,
        data={"num_workers": 0, "batch_size": 3, "prompt_seconds": 6.0, "prompt_from": "clip"},
        training={"gradient_accumulation_steps": 2},
    )
    for blank in (False, True):
        batches = [batch.tensors for batch in make_batches(run, range(2), blank_prompt=blank)]
        text = sum(int(np.sum((batch["text_lengths_B"] + 1) * batch["weights_B"])) for batch in batches)
        audio = sum(int(np.sum((batch["code_lengths_B"] + 4) * batch["weights_B"])) for batch in batches)
        bounds = [batch["spans_B2"] // SAMPLES_PER_CODE for batch in batches]
        prompt = sum(int(np.sum(bound[:, 1] - bound[:, 0])) for bound in bounds)
        assert prompt > 0
        for batch in batches:
            assert batch["totals_2"].tolist() == [text, audio - (prompt if blank else 0)]


def crowd(host, row, extra_codes):
    """The batch with noise of full length in all rows but one, in a bucket that is longer by so many codes."""
    samples = host.wav_BS.shape[1] + extra_codes * SAMPLES_PER_CODE
    assert host.prompt_BS is not None
    noise = np.random.default_rng(row).normal(scale=0.3, size=(2, host.rows, samples)).astype(np.float32)
    for crowded_BS, own_BS in zip(noise, (host.wav_BS, host.prompt_BS), strict=True):
        crowded_BS[row] = 0
        crowded_BS[row, : own_BS.shape[1]] = own_BS[row]
    lengths_B = np.where(np.arange(host.rows) == row, host.wav_lengths_B, samples).astype(np.int32)
    return replace(host, wav_BS=noise[0], prompt_BS=noise[1], wav_lengths_B=lengths_B)


def read_row(tensors, row):
    """Codes and mel of a row."""
    length = int(tensors["code_lengths_B"][row])
    assert not tensors["codes_BM"][row, length:].any()
    return tensors["codes_BM"][row, :length].tolist(), np.asarray(tensors["mel_BFM"])[row].tolist()


def test_neighbours_and_bucket_change_nothing(run, batches):
    data, recipe = run
    rows = range(len(batches[0].info.clip_numbers))
    before = [read_row(batches[0].tensors, row) for row in rows]
    assert all(len(set(codes)) > 3 for codes, _ in before), "codes that are all alike would be equal anyway"
    source = HostSource(data, recipe.make_order(data), recipe.config.data, reads_prompts=True)
    with open_factory(run) as factory:
        _, host = source.read(0)
        for number, extra_codes in enumerate((0, 1, 17, 40)):
            row = number % len(rows)
            prepared = factory.preparer.prepare(crowd(host, row, extra_codes), Kind.TRAIN, np.ones(2, np.float32))
            after = [read_row(prepared, each) for each in rows]
            assert [each for each in rows if after[each] == before[each]] == [row], "the neighbours are others now"
    source.close()


def test_empty_rows_hold_nothing(run):
    short = [batch for batch in make_batches(run, range(8)) if (batch.tensors["weights_B"] == 0).any()]
    assert short
    for batch in short:
        empty = batch.tensors["weights_B"] == 0
        assert not batch.tensors["codes_BM"][empty].any()
        assert not batch.tensors["code_lengths_B"][empty].any()
        assert (np.array(batch.info.clip_numbers)[empty] == EMPTY_ROW).all()


def test_with_codes_and_prompts_kept_no_audio_is_read_and_nothing_changes(tmp_path):
    folder = make_run_folder(tmp_path, clips=16)
    data = {"num_workers": 0, "batch_size": 5, "cache": "memory"}
    run = make_run(folder, data=data)
    with open_factory(run) as factory:
        factory.warm_up()
        wanted = [factory.make(number) for number in range(4)]
        shutil.rmtree(folder / "corpus" / "wavs")
        made = [factory.make(number) for number in range(4)]
    assert list(map(read_values, made)) == list(map(read_values, wanted))
    rows, voices = len(made[0].info.clip_numbers), made[0].tensors["voices_B"]
    assert made[0].tensors["mel_BFM"].shape[0] == run[0].speakers < rows
    speakers = run[0].train.speaker.codes[list(made[0].info.clip_numbers)]
    assert len({*zip(voices, speakers, strict=True)}) == len({*voices}) == len({*speakers}), "one for each speaker"


def test_augmentation_changes_training_but_not_validation(folder, batches):
    augment = {"gain_db": 6.0, "noise_db": -40.0, "speed": 0.1, "frame_masks": 1, "band_masks": 1}
    data = {"num_workers": 0, "batch_size": 5} | {f"augment_{name}": value for name, value in augment.items()}
    changed = make_batches(make_run(folder, data=data), range(6))
    for plain, batch in zip(batches, changed, strict=True):
        if batch.info.facts.kind is Kind.VALIDATION:
            assert read_values(batch) == read_values(plain)
            continue
        before, after = plain.tensors, batch.tensors
        assert after["mel_BFM"].tolist() != before["mel_BFM"].tolist()
        assert (after["code_lengths_B"] != before["code_lengths_B"]).any()
        assert after["codes_BM"].shape[1] > before["codes_BM"].shape[1]
        assert after["totals_2"][1] == np.sum((after["code_lengths_B"] + 4) * after["weights_B"])
        assert (after["spans_B2"][:, 1] <= after["code_lengths_B"] * SAMPLES_PER_CODE).all()
    assert {batch.info.facts.kind for batch in changed} == set(Kind)


def test_prompts_are_cut_to_the_longest_allowed(run):
    ((short,), (long,)) = (make_batches(run, [0], prompt_samples=most) for most in (8192, MAX_SLICE_SAMPLES))
    lengths = [np.diff(batch.tensors["spans_B2"])[:, 0] for batch in (short, long)]
    assert lengths[0].max() == 8192
    assert lengths[0].tolist() == np.minimum(lengths[1], 8192).tolist()
    assert short.tensors["mel_BFM"].shape[1] == 33


CODES = np.array([200, 7, 0, 50], np.int32)
CLIPS = np.array([4, 9, -1, 2], np.int32)


def choose(kind=Kind.TRAIN, epoch=0, rows=slice(None)):
    return choose_segments(kind, CODES[rows], seed=3, epoch=epoch, clips_B=CLIPS[rows])


def test_another_part_is_heard_in_every_epoch_and_all_of_a_clip_in_time_and_the_middle_in_validation():
    starts = np.array([choose(epoch=epoch).starts_B[0] for epoch in range(400)])
    last = count_frames(200) - SEGMENT_FRAMES
    assert starts.min() < 0.05 * last
    assert starts.max() > 0.95 * last
    assert len(np.unique(starts)) > 200
    assert starts[7] == choose(epoch=7, rows=slice(1)).starts_B[0]
    middles = [choose(Kind.VALIDATION, epoch=epoch).starts_B.tolist() for epoch in (5, 6)]
    assert middles[0] == middles[1]
    assert middles[0][0] == last // 2


def test_speech_is_the_clip_itself_at_the_decoders_rate_whatever_is_prepared_at_a_time(folder):
    run = make_run(folder, Target.DECODER, data={"num_workers": 0, "batch_size": 4, "augment_gain_db": 6.0})
    whole, apart = make_batches(run, range(2), warm=True), make_batches(run, range(2), rows_at_a_time=1)
    assert list(map(read_values, whole)) == list(map(read_values, apart))
    data, _ = run
    for batch in whole:
        assert batch.info.traces == 0, "traced after warm-up"
        assert batch.info.totals == (batch.info.facts.clips,) * 2
        tensors = batch.tensors
        bucket = data.sampler.plan.buckets[batch.info.facts.bucket_number]
        assert tensors["speech_BS"].shape == (bucket.rows, SEGMENT_SAMPLES)
        for row in np.flatnonzero(tensors["weights_B"]):
            path = data.train.find_file(batch.info.clip_numbers[row])
            first = tensors["segment_starts_B"][row] * SAMPLES_PER_FRAME
            cut = resample_clip(read_clip(path), 22050, 24000)[first : first + SEGMENT_SAMPLES]
            expected = np.pad(cut, (0, SEGMENT_SAMPLES - len(cut)))
            expected[tensors["segment_frames_B"][row] * SAMPLES_PER_FRAME :] = 0
            np.testing.assert_allclose(tensors["speech_BS"][row], expected, atol=2e-5)
            assert np.abs(expected).max() > 0.01
