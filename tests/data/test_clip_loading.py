import numpy as np
import pytest

from myxtts.audio.reading import find_plain_samples, read_clip
from myxtts.data.loaders import ClipFile, load_clip
from myxtts.errors import ClipError
from tests.data.wav_files import OTHER, PLAIN
from tests.support.shared_files import find_shared


def make_file(path, samples):
    status = path.stat()
    return ClipFile(str(path), samples, status.st_size, status.st_mtime_ns)


def check_load(path, assumed_samples):
    """`load_clip` must give what `read_clip` gives: the samples, or the reason there are none."""
    expected, problem, message = np.zeros(0, np.float32), "", ""
    try:
        expected = read_clip(path)
    except ClipError as error:
        problem, message = error.reason.value, str(error)
    row = np.full(len(expected) + 5000, 9.0, np.float32)
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
