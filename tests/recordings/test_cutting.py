"""Long recordings are cut at pauses: where speech begins and ends, and nowhere else."""

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from myxtts.audio import reading
from myxtts.audio.reading import read_clip
from myxtts.errors import ClipError
from myxtts.recordings.cutting import (
    CHUNK_SECONDS,
    LEAST_SECONDS,
    MOST_SECONDS,
    ClipSpan,
    HeardSpeech,
    choose_spans,
    hear_speech,
    read_spans,
)
from tests.recordings.joined import FRAME, RATE_HZ, join, make_music, make_noise, make_silence, read_speech
from tests.support.shared_files import find_shared

TRUE_CUT_SECONDS = 0.1
FORMATS = {".wav", ".flac", ".ogg", ".mp3"}


def require_true_cuts(joined, within=TRUE_CUT_SECONDS):
    """Each clip has come back where it was, and nothing else."""
    spans = choose_spans(hear_speech(joined.path))
    assert len(spans) == len(joined.places)
    misses = np.array([(span.start, span.end) for span in spans]) - joined.places
    assert np.abs(misses).max() <= within, misses.round(3)
    assert not any(span.is_forced for span in spans)


@pytest.mark.parametrize(
    ("corpus", "name", "rate_hz", "channels"),
    [("kathleen", "talk.flac", 22050, 1), ("ljspeech_mini", "talk.mp3", 24000, 2)],
)
def test_clips_between_silence_noise_and_music_come_back_where_they_were(tmp_path, corpus, name, rate_hz, channels):
    clips, texts = read_speech(9, corpus)
    fillers = (make_silence, make_noise, make_music)
    require_true_cuts(
        join(tmp_path / name, clips, texts, fillers, seconds=(1.0, 3.0), rate_hz=rate_hz, channels=channels)
    )


@pytest.mark.parametrize(("filler", "within"), [(make_noise, TRUE_CUT_SECONDS), (make_music, 0.16)])
def test_noise_and_music_that_touch_speech_are_left_outside(tmp_path, filler, within):
    clips, texts = read_speech(9)
    require_true_cuts(join(tmp_path / "talk.wav", clips, texts, (filler,), seconds=(1.0, 2.5), breath=0.0), within)


def test_a_long_reading_without_a_gap_is_cut_in_pauses_only(tmp_path):
    clips, texts = read_speech(20)
    joined = join(tmp_path / "talk.wav", clips, texts, seconds=(0.0, 0.0), breath=0.0)
    spans = choose_spans(hear_speech(joined.path))
    assert sum(map(last, spans)) > 0.9 * joined.places[-1][1]
    samples = read_clip(joined.path)
    level_db = 10 * np.log10(np.square(samples[: len(samples) // FRAME * FRAME].reshape(-1, FRAME)).mean(1) + 1e-12)
    is_quiet = level_db < np.median(level_db) - 18
    cuts = [(a.end + b.start) / 2 for a, b in itertools.pairwise(spans) if not (a.is_forced and b.is_forced)]
    assert len(cuts) > 5
    for cut in cuts:
        # The gap before a plosive is shorter than this.
        around = is_quiet[int(cut * RATE_HZ / FRAME) - 15 :][:31]
        assert np.convolve(around, np.ones(10)).max() == 10, cut


def test_what_cannot_be_read_whole_is_refused(tmp_path):
    clips, texts = read_speech(2)
    path = join(tmp_path / "talk.flac", clips, texts).path
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])
    with pytest.raises(ClipError, match=r"talk\.flac"):
        hear_speech(path)


def make_speech(*parts):
    """Heard speech and silence by turns, in seconds, beginning with speech."""
    chunks = [round(part / CHUNK_SECONDS) for part in parts]
    probability = np.repeat(np.resize(np.float32([0.99, 0.01]), len(parts)), chunks)
    level = np.where(probability > 0.5, -20, -70).astype(np.float32)
    return HeardSpeech(
        len(probability) * CHUNK_SECONDS, probability, probability, level, np.repeat(level[:, None], 7, axis=1)
    )


def last(span):
    return span.end - span.start


def test_speech_is_cut_at_each_sure_pause_and_at_the_longest_others_where_it_is_too_long():
    spans = choose_spans(make_speech(3.0, 0.8, 5.0, 0.2, 4.0, 0.3, 5.0, 0.2, 3.0))
    assert [round(last(span), 1) for span in spans] == [3.1, 9.3, 8.2]
    assert not any(span.is_forced for span in spans)
    assert [(round(last(span)), span.is_forced) for span in choose_spans(make_speech(8.0, 0.15, 9.0))] == [
        (8, False),
        (9, False),
    ]


def test_what_is_too_short_is_joined_with_a_near_neighbour():
    near, far = choose_spans(make_speech(3.0, 0.7, 0.4, 2.0, 0.4))
    assert last(near) == pytest.approx(4.1, abs=0.15)
    assert last(far) < LEAST_SECONDS


def test_speech_without_a_pause_is_cut_where_it_is_weakest_and_marked():
    speech = make_speech(18.0)
    weakest = round(8.7 / CHUNK_SECONDS)
    speech.level_db[weakest] = -31
    first, second = choose_spans(speech)
    assert first.is_forced
    assert second.is_forced
    assert first.end == second.start == pytest.approx(weakest * CHUNK_SECONDS)


@given(st.lists(st.floats(0.03, 40.0), min_size=1, max_size=40))
@settings(max_examples=60, deadline=None)
def test_clips_are_in_order_apart_and_short_enough(parts):
    speech = make_speech(*parts)
    spans = choose_spans(speech)
    edges = [edge for span in spans for edge in (span.start, span.end)]
    assert edges == sorted(edges)
    assert all(last(span) <= MOST_SECONDS + 1e-6 for span in spans)
    assert all(span.start >= 0 and span.end <= speech.seconds + 1e-6 for span in spans)
    for span in spans:
        outside = [int(edge / CHUNK_SECONDS) for edge in (span.start - 0.001, span.end + 0.001)]
        inside_recording = [chunk for chunk in outside if 0 < chunk < len(speech.probability)]
        assert span.is_forced or all(speech.probability[inside_recording] < 0.5)


def test_clips_are_taken_out_as_if_the_whole_recording_were_in_memory(tmp_path, monkeypatch):
    monkeypatch.setattr(reading, "BLOCK_FRAMES", 7001)
    clips, texts = read_speech(3)
    path = join(tmp_path / "talk.wav", clips, texts).path
    whole = read_clip(path)
    seconds = len(whole) / 22050
    spans = [ClipSpan(0.0, 0.31), ClipSpan(0.31, 1.5), ClipSpan(4.25, 6.0), ClipSpan(seconds - 0.5, seconds)]
    for span, samples in zip(spans, read_spans(path, spans), strict=True):
        np.testing.assert_array_equal(samples, whole[round(span.start * 22050) : round(span.end * 22050)])


def test_every_format_that_is_read_is_read_in_blocks():
    files = [path for path in sorted((find_shared("data", "formats") / "audio").iterdir()) if path.suffix in FORMATS]
    read = []
    for file in files:
        try:
            whole = read_clip(file, 16000)
        except ClipError as error:
            with pytest.raises(type(error)):
                list(reading.iter_clip(file, 16000))
            continue
        blocks = np.concatenate(list(reading.iter_clip(file, 16000)))
        assert abs(len(blocks) - len(whole)) <= 1, file
        # Two resamplers differ a little at the highest frequencies.
        difference = blocks[: len(whole)] - whole[: len(blocks)]
        assert np.square(difference).mean() <= 0.01 * np.square(whole).mean() + 1e-9, file
        read.append(file.suffix)
    assert set(read) == FORMATS
    assert len(read) > len(files) / 2
