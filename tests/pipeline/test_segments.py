"""A decoder's batch: the sound of a segment of each clip, where the decoder's frames say it lies."""

from dataclasses import replace

import numpy as np
import pytest

from myxtts.audio.resampling import resample_clip
from myxtts.models.speech_units import SAMPLES_PER_FRAME, SEGMENT_FRAMES, SEGMENT_SAMPLES, count_frames
from myxtts.pipeline.batch_factory import BatchFactory
from myxtts.pipeline.batch_facts import BatchFacts
from myxtts.pipeline.batch_size import measure_batch_bytes
from myxtts.pipeline.order import Kind
from myxtts.pipeline.preparation_settings import Target
from myxtts.pipeline.segments import choose_segments
from tests.pipeline.small_runs import make_production, make_run_folder

CODES = np.array([200, 7, 0, 50], np.int32)
CLIPS = np.array([4, 9, -1, 2], np.int32)


def choose(kind=Kind.TRAIN, epoch=0, clips=CLIPS, codes=CODES):
    return choose_segments(kind, codes, seed=3, epoch=epoch, clips_B=clips)


def test_a_segment_lies_inside_its_clip_and_short_clips_are_filled():
    segments = choose()
    frames = np.array([count_frames(int(codes)) for codes in CODES])
    assert (segments.starts_B + segments.frames_B <= frames).all()
    assert segments.frames_B.tolist() == [SEGMENT_FRAMES, 30, 0, SEGMENT_FRAMES]
    assert segments.starts_B[1:3].tolist() == [0, 0]
    np.testing.assert_array_equal(segments.samples_B, segments.frames_B * SAMPLES_PER_FRAME)


def test_another_part_is_heard_in_every_epoch_and_all_of_a_clip_in_time():
    starts = np.array([choose(epoch=epoch).starts_B[0] for epoch in range(400)])
    last = count_frames(200) - SEGMENT_FRAMES
    assert starts.min() < 0.05 * last
    assert starts.max() > 0.95 * last
    assert len(np.unique(starts)) > 200
    assert choose(epoch=7).starts_B[0] == choose(epoch=7, clips=CLIPS[:1], codes=CODES[:1]).starts_B[0]


def test_validation_hears_the_middle():
    segments = choose(Kind.VALIDATION, epoch=5)
    assert segments.starts_B.tolist() == choose(Kind.VALIDATION, epoch=6).starts_B.tolist()
    assert segments.starts_B[0] == (count_frames(200) - SEGMENT_FRAMES) // 2


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    folder = make_run_folder(tmp_path_factory.mktemp("run"), clips=12)
    return make_production(folder, Target.DECODER, data={"num_workers": 0, "batch_size": 4, "augment_gain_db": 6.0})


def make_batches(run, **preparation):
    data, production = run
    settings = replace(production.preparation, **preparation)
    factory = BatchFactory(data, replace(production, preparation=settings), "/CPU:0")
    try:
        factory.warm_up()
        warm = factory.preparer.count_traces()
        batches = [factory.fetch(factory.make(number)) for number in range(2)]
        assert factory.preparer.count_traces() == warm
        return batches
    finally:
        factory.close()


def test_speech_is_the_clip_itself_at_the_decoders_rate(run):
    data, production = run
    for batch in make_batches(run):
        facts = BatchFacts.parse(batch["facts_N"])
        bucket = data.sampler.plan.buckets[facts.bucket_number]
        assert batch["speech_BS"].shape == (bucket.rows, SEGMENT_SAMPLES)
        assert batch["totals_2"].tolist() == [facts.clips, facts.clips]
        numbers = sum(array.nbytes for name, array in batch.items() if not name.startswith("meters"))
        assert numbers <= measure_batch_bytes(production.preparation, bucket)
        for row in np.flatnonzero(batch["weights_B"]):
            expected = cut_by_hand(data.train, int(batch["clips_B"][row]), int(batch["segment_starts_B"][row]))
            expected[int(batch["segment_frames_B"][row]) * SAMPLES_PER_FRAME :] = 0
            np.testing.assert_allclose(batch["speech_BS"][row], expected, atol=2e-5)
            assert np.abs(expected).max() > 0.01


def cut_by_hand(corpus, clip, start):
    from myxtts.audio.reading import read_clip

    samples = resample_clip(read_clip(corpus.find_file(clip)), 22050, 24000)
    first = start * SAMPLES_PER_FRAME
    cut = samples[first : first + SEGMENT_SAMPLES]
    return np.pad(cut, (0, SEGMENT_SAMPLES - len(cut)))


def test_rows_at_a_time_change_nothing(run):
    for whole, apart in zip(make_batches(run), make_batches(run, rows_at_a_time=1), strict=True):
        for name in ("speech_BS", "segment_starts_B", "codes_BM", "mel_BFM"):
            np.testing.assert_array_equal(whole[name], apart[name], err_msg=name)
