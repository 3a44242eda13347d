from pathlib import Path

import numpy as np
import pytest

from myxtts.audio.reading import find_plain_samples, read_clip
from myxtts.data.loaders import ClipFile, load_clip
from myxtts.errors import ClipError, DropReason
from tests.data.shared import write_clips
from tests.data.wav_files import OTHER, PLAIN
from tests.support.shared_files import find_shared


def make_file(path, samples):
    status = path.stat()
    return ClipFile(str(path), samples, status.st_size, status.st_mtime_ns)


def make_row(samples=30_000):
    return np.full(samples, 9.0, np.float32)


def check_load(path, assumed_samples):
    """`load_clip` must give what `read_clip` gives: the samples, or the reason there are none."""
    expected, problem, message = np.zeros(0, np.float32), "", ""
    try:
        expected = read_clip(path)
    except ClipError as error:
        problem, message = error.reason.value, str(error)
    row = make_row(len(expected) + 5000)
    failure = load_clip(make_file(path, assumed_samples if problem else len(expected)), row)
    if problem:
        assert failure is not None
        assert failure.reason == problem
        assert failure.detail in message
    else:
        assert failure is None
        assert row[: len(expected)].tobytes() == expected.tobytes()
        assert not row[len(expected) :].any()


FORMATS = [path.name for path in sorted(find_shared("data", "formats", "audio").iterdir())]


@pytest.mark.parametrize("name", FORMATS)
def test_every_format_gives_what_the_audio_room_reads_or_its_reason(name):
    check_load(find_shared("data", "formats", "audio", name), 1000)


def test_any_cut_leaves_no_shorter_clip():
    content = PLAIN["with a remark in front, as ffmpeg writes"]
    assert all(find_plain_samples(content[:size]) is None for size in range(len(content)))
    assert not [name for name, other in OTHER.items() if find_plain_samples(other) is not None]


@pytest.fixture
def clip(tmp_path) -> Path:
    write_clips(tmp_path, ["a"])
    return tmp_path / "wavs" / "a.wav"


def test_a_file_that_may_not_be_read_is_unreadable(clip, monkeypatch):
    file = make_file(clip, 22050)
    # Root may read everything, so the refusal is played.
    monkeypatch.setattr("os.open", lambda *args, **kwargs: (_ for _ in ()).throw(PermissionError(13, "Denied")))
    failure = load_clip(file, make_row())
    assert failure.reason is DropReason.UNREADABLE
    assert failure.detail.startswith("cannot be read (Denied).")
