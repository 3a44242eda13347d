import logging

import numpy as np
import pytest
import soundfile

from myxtts.config import DataConfig
from myxtts.data.loading import InProcessEngine
from myxtts.data.loading_workers import WorkerEngine
from myxtts.data.open_engine import (
    MOST_AUTO_WORKERS,
    Engine,
    ReadAhead,
    choose_engine,
    choose_read_ahead,
    choose_workers,
    explain_no_native_loading,
    open_engine,
)
from myxtts.data.workers import count_workers
from tests.data.reading import make_sampler, scan_small
from tests.data.shared import make_tone, write_clips, write_metadata

pytestmark = pytest.mark.usefixtures("leaves_nothing")

AHEAD = ReadAhead(3, 1 << 20)


def test_left_to_itself_it_takes_the_faster_engine_and_says_so(lj, caplog):
    caplog.set_level(logging.INFO)
    with open_engine(DataConfig(num_workers=1), [lj.corpus], AHEAD) as engine:
        assert isinstance(engine, WorkerEngine)
    assert "TF-native loading is not in force (reader processes are faster): 1 reader processes." in caplog.text


@pytest.mark.parametrize(
    ("corpus", "data", "engine"),
    [
        ("lj", DataConfig(num_workers=2), Engine.PROCESSES),
        ("lj", DataConfig(num_workers=0), Engine.NATIVE),
        ("mixed", DataConfig(num_workers=0), Engine.HERE),
        ("lj", DataConfig(num_workers=2, use_tf_native_loading=True), Engine.NATIVE),
        ("mixed", DataConfig(num_workers=2, use_tf_native_loading=True), Engine.PROCESSES),
        ("lj", DataConfig(num_workers=2, use_tf_native_loading=False), Engine.PROCESSES),
    ],
)
def test_the_engine_follows_from_settings_and_files(corpus, data, engine, request):
    choice = choose_engine(data, [request.getfixturevalue(corpus).corpus])
    assert choice.engine is engine
    assert (choice.why_not_native is None) == (engine is Engine.NATIVE)


def test_plain_wav_corpora_are_read_by_tensorflow_where_asked_and_it_is_said(lj, caplog):
    from myxtts.data.loading_tf import NativeEngine

    caplog.set_level(logging.INFO)
    with open_engine(DataConfig(num_workers=2, use_tf_native_loading=True), [lj.corpus], AHEAD) as engine:
        assert isinstance(engine, NativeEngine)
    assert "TF-native loading is in force: tf.data reads 2 batches at a time." in caplog.text


def test_other_corpora_are_read_by_processes_and_it_is_said_why(lj, mixed, caplog):
    caplog.set_level(logging.INFO)
    with open_engine(DataConfig(num_workers=1, use_tf_native_loading=True), [lj.corpus, mixed.corpus], AHEAD) as engine:
        assert isinstance(engine, WorkerEngine)
    assert (
        "TF-native loading is not in force (25 of 37 clips are not 16-bit PCM mono wav at 22050 Hz, such as "
        "wavs/arctic_a0001.flac): 1 reader processes." in caplog.text
    )


def test_it_can_be_turned_off(lj, caplog):
    caplog.set_level(logging.INFO)
    with open_engine(DataConfig(num_workers=0, use_tf_native_loading=False), [lj.corpus], AHEAD) as engine:
        assert isinstance(engine, InProcessEngine)
    assert "(use_tf_native_loading is off): clips are read in this process." in caplog.text


@pytest.mark.parametrize(
    ("rate_hz", "channels", "subtype"), [(44100, 1, "PCM_U8"), (22050, 2, "PCM_U8"), (11025, 1, "PCM_32")]
)
def test_files_of_the_right_size_and_the_wrong_format_are_found_by_their_headers(tmp_path, rate_hz, channels, subtype):
    (tmp_path / "corpus/wavs").mkdir(parents=True)
    tone = np.stack([make_tone(1.0, rate_hz)] * channels, axis=1)
    soundfile.write(tmp_path / "corpus/wavs/a.wav", tone, rate_hz, subtype=subtype)
    write_metadata(tmp_path / "corpus", "a|Odd.")
    corpus = scan_small(tmp_path / "corpus", tmp_path / "index").corpus

    objection = explain_no_native_loading([corpus])

    assert objection is not None
    assert f"but wavs/a.wav is WAV {subtype}, {channels} channels, {rate_hz} Hz" in objection


def test_one_larger_file_among_many_is_found_by_its_size(tmp_path, monkeypatch):
    monkeypatch.setattr("myxtts.data.open_engine._HEADERS_LOOKED_AT", 1)
    write_clips(tmp_path / "corpus", ["a", "c"])
    soundfile.write(tmp_path / "corpus/wavs/b.wav", make_tone(), 22050, subtype="FLOAT")
    write_metadata(tmp_path / "corpus", "a|Plain.", "b|Float.", "c|Plain.")
    corpus = scan_small(tmp_path / "corpus", tmp_path / "index").corpus

    objection = explain_no_native_loading([corpus])

    assert objection == "1 of 3 clips are not 16-bit PCM mono wav at 22050 Hz, such as wavs/b.wav"


def test_automatic_workers_are_as_many_as_cores_but_not_too_many(monkeypatch):
    assert choose_workers(DataConfig()) == min(count_workers(), MOST_AUTO_WORKERS)
    monkeypatch.setattr("myxtts.data.open_engine.count_workers", lambda: 64)
    assert choose_workers(DataConfig()) == MOST_AUTO_WORKERS
    assert choose_workers(DataConfig(num_workers=40)) == 40


def test_read_ahead_is_what_was_asked_for_where_memory_allows(lj):
    plan = make_sampler(lj.corpus).plan
    largest = max(bucket.rows * bucket.samples for bucket in plan.buckets)

    ahead = choose_read_ahead(DataConfig(pipeline_buffer_size=50), [plan], accumulation=1, free_bytes=1 << 40)

    assert (ahead.depth, ahead.slot_samples) == (50, largest)


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"num_workers": 1, "pipeline_buffer_size": 3}, ["Reading ahead up to 3 batches (13 MB of host memory)", "Buffer Size: 3"]),
        ({"num_workers": 1}, ["Reading ahead 3 batches instead of 50: one takes up to 4 MB", "Reading ahead up to 3", "Buffer Size: 3"]),
        ({"num_workers": 0}, ["Reading ahead 3 batches instead of 50: one takes up to 4 MB", "Reading ahead up to 3", "Buffer Size: 3"]),
        ({"num_workers": 0, "use_tf_native_loading": False}, ["clips are read in this process. Nothing is read ahead."]),
    ],
)  # fmt: skip
def test_reading_ahead_is_said_where_something_reads_ahead(lj, caplog, settings, said):
    caplog.set_level(logging.INFO)
    with open_engine(DataConfig(**settings), [lj.corpus], AHEAD, batches=AHEAD):
        pass
    lines = [
        record.getMessage()
        for record in caplog.records
        if "ahead" in record.getMessage() or "Buffer" in record.getMessage()
    ]
    assert len(lines) == len(said)
    assert all(words in line for words, line in zip(said, lines, strict=True))


def test_read_ahead_shrinks_with_the_memory(lj):
    plan = make_sampler(lj.corpus).plan
    largest = max(bucket.rows * bucket.samples for bucket in plan.buckets)

    ahead = choose_read_ahead(DataConfig(), [plan], accumulation=1, free_bytes=largest * 4 * 4 * 10)

    assert ahead.depth == 10


def test_a_second_clip_for_each_prompt_takes_twice_the_memory_and_is_read_half_as_far_ahead(lj):
    plan = make_sampler(lj.corpus).plan
    free_bytes = max(bucket.rows * bucket.samples for bucket in plan.buckets) * 4 * 4 * 10

    alone, both = (
        choose_read_ahead(DataConfig(), [plan], accumulation=1, clips_per_row=clips, free_bytes=free_bytes)
        for clips in (1, 2)
    )

    assert (both.depth, both.slot_samples) == (alone.depth // 2, alone.slot_samples * 2)
    assert both.size_bytes == alone.size_bytes


def test_a_global_batch_always_fits(lj):
    plan = make_sampler(lj.corpus).plan
    assert choose_read_ahead(DataConfig(), [plan], accumulation=84, free_bytes=0).depth == 85
