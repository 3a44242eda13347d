import logging

import pytest
import soundfile

from myxtts.config import DataConfig
from myxtts.data.loaders import (
    MOST_AUTO_READERS,
    LoadingEngine,
    ProcessEngine,
    ReadAhead,
    choose_read_ahead,
    choose_readers,
    explain_no_native_loading,
    open_engine,
)
from myxtts.data.loading_tf import NativeEngine
from myxtts.data.task_processes import count_cores
from tests.data.reading import make_sampler, scan_small
from tests.data.shared import make_tone, write_clips, write_metadata

pytestmark = pytest.mark.usefixtures("leaves_nothing")

AHEAD = ReadAhead(3, 1 << 20)


@pytest.mark.parametrize(
    ("corpus", "workers", "native", "engine", "words"),
    [
        ("lj", 2, "auto", ProcessEngine, "not in force (reader processes are faster): 2 reader processes."),
        ("lj", 0, "auto", NativeEngine, "in force: tf.data reads 1 batches at a time."),
        ("mixed", 0, "auto", LoadingEngine, "wavs/arctic_a0001.flac): clips are read in this process."),
        ("lj", 2, True, NativeEngine, "in force: tf.data reads 2 batches at a time."),
        ("mixed", 2, True, ProcessEngine, "such as wavs/arctic_a0001.flac): 2 reader processes."),
        ("lj", 2, False, ProcessEngine, "not in force (use_tf_native_loading is off): 2 reader processes."),
        ("lj", 0, False, LoadingEngine, "(use_tf_native_loading is off): clips are read in this process."),
    ],
)
def test_the_engine_follows_from_settings_and_files_and_is_said(
    corpus, workers, native, engine, words, request, caplog
):
    caplog.set_level(logging.INFO)
    data = DataConfig(num_workers=workers, use_tf_native_loading=native)
    with open_engine(data, [request.getfixturevalue(corpus)], AHEAD) as opened:
        assert type(opened) is engine
    assert words in caplog.text


def test_one_larger_file_among_many_is_found_by_its_size(tmp_path):
    write_clips(tmp_path / "corpus", ["a", "c"])
    soundfile.write(tmp_path / "corpus/wavs/b.wav", make_tone(), 22050, subtype="FLOAT")
    write_metadata(tmp_path / "corpus", "a|Plain.", "b|Float.", "c|Plain.")
    corpus = scan_small(tmp_path / "corpus", tmp_path / "index")
    objection = explain_no_native_loading([corpus])
    assert objection == "1 of 3 clips are not 16-bit PCM mono wav at 22050 Hz, such as wavs/b.wav"


def test_automatic_workers_are_as_many_as_cores_but_not_too_many(monkeypatch):
    assert choose_readers(DataConfig()) == min(count_cores(), MOST_AUTO_READERS)
    monkeypatch.setattr("myxtts.data.loaders.count_cores", lambda: 64)
    assert choose_readers(DataConfig()) == MOST_AUTO_READERS
    assert choose_readers(DataConfig(num_workers=40)) == 40


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
    with open_engine(DataConfig(**settings), [lj], AHEAD, batches=AHEAD):
        pass
    lines = [line for line in caplog.messages if "ahead" in line or "Buffer" in line]
    assert len(lines) == len(said)
    assert all(words in line for words, line in zip(said, lines, strict=True))


@pytest.mark.parametrize(
    ("room", "accumulation", "clips", "depth"), [(1000, 1, 1, 50), (10, 1, 1, 10), (10, 1, 2, 5), (0, 84, 1, 85)]
)
def test_read_ahead_is_what_was_asked_for_as_far_as_a_quarter_of_the_memory_allows(
    lj, room, accumulation, clips, depth
):
    plan = make_sampler(lj).plan
    largest = max(bucket.rows * bucket.samples for bucket in plan.buckets)
    settings = {"accumulation": accumulation, "clips_per_row": clips, "free_bytes": largest * 4 * 4 * room}
    ahead = choose_read_ahead(DataConfig(), [plan], **settings)
    assert (ahead.depth, ahead.slot_samples) == (depth, largest * clips)
