"""What every engine must do alike."""

import errno
import os

import numpy as np
import pytest

from myxtts.audio.reading import find_plain_samples, read_clip
from myxtts.data.loaders import ClipFile, LoadFailure
from myxtts.errors import ClipError, DropReason, MachineError, ReadingError
from tests.data.reading import make_engine
from tests.data.wav_files import OTHER, PLAIN
from tests.support.shared_files import find_shared

pytestmark = pytest.mark.usefixtures("leaves_nothing")

WIDTH = 1 << 18


@pytest.fixture(params=["here", "2 workers", "tensorflow"])
def engine(request):
    with make_engine(request.param) as engine:
        yield engine


def describe(path, samples=None):
    status = os.stat(path)
    return ClipFile(str(path), len(read_clip(path)) if samples is None else samples, status.st_size, status.st_mtime_ns)


@pytest.fixture(scope="module")
def files():
    folder = find_shared("data", "ljspeech_mini", "wavs")
    return [describe(path) for path in sorted(folder.iterdir())[:20]]


def check_rows(array, files):
    for row, file in zip(array, files, strict=True):
        expected = read_clip(file.path) if file else np.zeros(0, np.float32)
        assert np.array_equal(row[: len(expected)], expected)
        assert not row[len(expected) :].any()


def test_wav_files_of_every_kind(engine, tmp_path):
    files, is_usable = [], []
    for number, content in enumerate([*PLAIN.values(), *OTHER.values()]):
        path = tmp_path / f"{number}.wav"
        path.write_bytes(content)
        try:
            samples = len(read_clip(path))
        except ClipError:
            samples = 0
        is_usable.append(0 < samples <= 8192)
        files.append(describe(path, samples if is_usable[-1] else 6000))
    load = engine.start(files, 8192)
    engine.finish(load)
    assert sorted(load.failures) == [row for row, usable in enumerate(is_usable) if not usable]
    array = engine.take(load)
    usable = [row for row, usable in enumerate(is_usable) if usable]
    assert len(PLAIN) < len(usable) < len(files)
    check_rows(array[usable], [files[row] for row in usable])


def test_plain_files_and_no_others_are_read_by_tensorflow_itself(tmp_path, monkeypatch):
    # What TensorFlow has left is loaded in this process.
    left = []
    monkeypatch.setattr("myxtts.data.loaders.load_clip", lambda file, row: left.append(file.path))
    with make_engine("tensorflow") as engine:
        for name, content in {**PLAIN, **OTHER}.items():
            path = tmp_path / f"{name}.wav"
            path.write_bytes(content)
            file = describe(path, 1 if name == "one sample" else 6000)
            load = engine.start([file, None], 6144)
            engine.finish(load)
            if file.path not in left:
                check_rows(engine.take(load), [file, None])
    assert left == [str(tmp_path / f"{name}.wav") for name in OTHER]


def test_failures_name_their_row_and_reason(engine, files, tmp_path):
    gone = files[0]._replace(path=str(tmp_path / "gone.wav"))
    changed = files[1]._replace(mtime_ns=1)
    samples = files[2].samples
    longer = files[2]._replace(samples=samples - 1)

    load = engine.start([gone, files[3], None, changed, longer], WIDTH)
    engine.finish(load)

    assert load.failures == {
        0: LoadFailure(DropReason.MISSING, "cannot be read: No such file or directory"),
        3: LoadFailure(DropReason.CHANGED, "the file is not the one that was scanned; start again to scan it anew"),
        4: LoadFailure(DropReason.CHANGED, f"has {samples} samples, but had {samples - 1} when it was scanned"),
    }
    engine.retry(load, 0, files[5])
    engine.retry(load, 3, gone)
    engine.retry(load, 4, None)
    engine.finish(load)
    assert sorted(load.failures) == [3]
    engine.retry(load, 3, files[6])
    engine.finish(load)
    assert load.failures == {}
    check_rows(engine.take(load), [files[5], files[3], None, files[6], None])


def test_any_cut_leaves_no_shorter_clip():
    content = PLAIN["with a remark in front, as ffmpeg writes"]
    assert all(find_plain_samples(content[:size]) is None for size in range(len(content)))


def test_processes_that_die_whatever_they_do_are_an_error_and_no_clip_is_blamed(files, tmp_path, monkeypatch):
    (tmp_path / "sitecustomize.py").write_text("import os\nos.kill(os.getpid(), 9)\n")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    with make_engine("1 worker") as engine:
        load = engine.start(files, WIDTH)
        with pytest.raises(ReadingError, match="20 worker processes in a row died of signal 9"):
            engine.finish(load)
        assert load.failures == {}


def test_a_machine_without_memory_says_so(files, monkeypatch):
    def refuse(*arguments):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "posix_fallocate", refuse)
    told = r"batch 1 of 8 .* Lower --buffer-size"
    with make_engine("1 worker") as engine, pytest.raises(MachineError, match=told):
        engine.start(files, WIDTH)
