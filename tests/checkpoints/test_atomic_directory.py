"""A directory is the old one or the new one, whole, whatever happens while it is written."""

import fcntl
import os
import subprocess
import sys
import tempfile
import threading
from pathlib import Path

import pytest

from myxtts.checkpoints import atomic_directory
from myxtts.checkpoints.atomic_directory import (
    open_file_atomically,
    open_scratch_folder,
    recover_directory,
    write_directory_atomically,
)
from myxtts.checkpoints.errors import CheckpointWriteError, OutputFolderError
from tests.checkpoints.kill_points import read_version, write_version
from tests.support.processes import run_code


def kill_everywhere(folder, arguments):
    code = f"from pathlib import Path\nfrom tests.checkpoints.kill_points import kill_everywhere\nreport(kill_everywhere(Path({str(folder)!r}), {arguments}))"
    return run_code(code)


def test_a_killed_writer_leaves_the_old_or_the_new_directory(tmp_path):
    result = kill_everywhere(tmp_path, "'directory', replace=True")
    assert result["kills"] > 60
    assert result["states"].keys() == {"1", "2"}, "both must occur, and nothing else"
    assert result["recovered"] == result["states"]
    assert result["final"] == 2


def test_a_killed_first_writer_leaves_nothing_or_the_whole_directory(tmp_path):
    result = kill_everywhere(tmp_path, "'directory', replace=False")
    assert result["states"].keys() == {"absent", "2"}
    assert result["recovered"] == result["states"]


def test_without_an_exchange_of_names_recovery_gives_the_old_or_the_new(tmp_path):
    result = kill_everywhere(tmp_path, "'directory', replace=True, exchange=False")
    assert result["states"].keys() == {"1", "absent", "2"}, "the moment in which it is absent must have been hit"
    assert result["recovered"].keys() == {"1", "2"}


def test_a_killed_writer_leaves_the_old_or_the_new_file(tmp_path):
    result = kill_everywhere(tmp_path, "'file', replace=True")
    assert result["states"].keys() == {"1", "2"}
    assert result["final"] == 2


def list_names(folder):
    return sorted(entry.name for entry in folder.iterdir())


def test_a_directory_is_replaced_as_a_whole(tmp_path):
    target = tmp_path / "deep" / "target"
    write_version(target, 1)
    (target / "stale.txt").write_text("of the old one")
    write_version(target, 2)
    assert read_version(target) == 2
    assert list_names(target.parent) == ["target"]


def test_everything_is_flushed_before_the_name_and_the_name_after_it(tmp_path, monkeypatch):
    target = tmp_path / "target"
    write_version(target, 1)
    events = []
    real_fsync, real_exchange = os.fsync, atomic_directory._exchange_names

    def record_fsync(descriptor):
        events.append(Path(os.readlink(f"/proc/self/fd/{descriptor}")).name)
        real_fsync(descriptor)

    def record_exchange(first, second):
        events.append("EXCHANGE")
        return real_exchange(first, second)

    monkeypatch.setattr(os, "fsync", record_fsync)
    monkeypatch.setattr(atomic_directory, "_exchange_names", record_exchange)
    write_version(target, 2)
    position = events.index("EXCHANGE")
    flushed = [name if not name.startswith(".target.new-") else "target" for name in events[:position]]
    assert sorted(flushed) == ["a.bin", "b.bin", "c.bin", "sub", "target"]
    assert flushed.index("c.bin") < flushed.index("sub") < flushed.index("target")
    assert events[position + 1 :] == [tmp_path.name]


def test_this_file_system_exchanges_names(tmp_path):
    first, second = tmp_path / "first", tmp_path / "second"
    first.mkdir()
    second.mkdir()
    (first / "mark").touch()
    assert atomic_directory._exchange_names(first, second)
    assert (second / "mark").exists()
    with pytest.raises(OSError, match="No such file"):
        atomic_directory._exchange_names(first, tmp_path / "absent")


class StopError(Exception):
    pass


def test_an_error_while_writing_leaves_the_old_directory_and_no_traces(tmp_path):
    target = tmp_path / "target"
    write_version(target, 1)

    def write(directory):
        (directory / "half").write_bytes(b"x")
        raise StopError

    with pytest.raises(StopError):
        write_directory_atomically(target, write)
    assert read_version(target) == 1
    assert list_names(tmp_path) == ["target"]


def test_a_full_disk_is_explained(tmp_path):
    target = tmp_path / "target"
    write_version(target, 1)

    def write(directory):
        with open("/dev/full", "wb") as handle:
            handle.write(bytes(2**20))

    with pytest.raises(
        CheckpointWriteError, match=r"the disk is full \(\d+ MiB free\).*What was there before is untouched"
    ) as caught:
        write_directory_atomically(target, write)
    assert str(target) in str(caught.value)
    assert read_version(target) == 1
    assert list_names(tmp_path) == ["target"]


def test_a_file_in_the_place_of_the_directory_is_not_overwritten(tmp_path):
    target = tmp_path / "target"
    target.write_text("precious")
    with pytest.raises(CheckpointWriteError, match="is a file where a directory should be written"):
        write_version(target, 1)
    with pytest.raises(CheckpointWriteError, match="cannot be written"):
        write_version(target / "below", 1)
    assert target.read_text() == "precious"


@pytest.mark.parametrize("made", ["file", "folder"])
def test_what_comes_while_a_free_place_is_written_stays(tmp_path, made):
    target = tmp_path / "target"
    kept = target / "precious" if made == "folder" else target

    def write_while_others_do(directory):
        (directory / "mine").touch()
        kept.parent.mkdir(exist_ok=True)
        kept.write_text("of another")

    with pytest.raises(OutputFolderError, match="holds files by now, which stay as they are"):
        write_directory_atomically(target, write_while_others_do, replaces=False)
    assert kept.read_text() == "of another"
    assert list_names(tmp_path) == ["target"]


@pytest.mark.parametrize("is_there", [False, True])
def test_a_free_place_is_filled_whether_new_or_empty(tmp_path, is_there):
    if is_there:
        (tmp_path / "target").mkdir()
    write_directory_atomically(tmp_path / "target", lambda directory: (directory / "mine").touch(), replaces=False)
    assert list_names(tmp_path / "target") == ["mine"]
    assert list_names(tmp_path) == ["target"]


def test_what_dead_writers_left_is_removed_and_nothing_else(tmp_path):
    for name in (".target.new-dead", ".target.old-dead", ".other.new-dead", ".target", "target.new-mine"):
        (tmp_path / name / "inside").mkdir(parents=True)
    write_version(tmp_path / "target", 1)
    assert list_names(tmp_path) == [".other.new-dead", ".target", "target", "target.new-mine"]


def test_a_living_writer_is_left_alone(tmp_path):
    target = tmp_path / "target"

    def write_while_others_do(directory):
        write_version(target, 1)
        recover_directory(target)
        assert directory.is_dir()
        (directory / "late").touch()

    write_directory_atomically(target, write_while_others_do)
    assert list_names(target) == ["late"]
    assert list_names(tmp_path) == ["target"]


def test_writers_at_the_same_time_leave_one_whole_directory(tmp_path):
    target = tmp_path / "target"
    errors = []

    def write_many(version):
        try:
            for _ in range(10):
                write_version(target, version)
        except CheckpointWriteError as error:
            errors.append(error)

    threads = [threading.Thread(target=write_many, args=(version,)) for version in (1, 2, 3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert errors == []
    assert read_version(target) in (1, 2, 3)
    recover_directory(target)
    assert list_names(tmp_path) == ["target"]


def test_a_link_is_followed(tmp_path):
    write_version(tmp_path / "real", 1)
    (tmp_path / "link").symlink_to("real")
    write_version(tmp_path / "link", 2)
    assert (tmp_path / "link").is_symlink()
    assert read_version(tmp_path / "real") == 2


def test_reading_what_cannot_be_written_is_possible(tmp_path):
    recover_directory(tmp_path / "absent" / "target")
    recover_directory("/proc/target")


def write_file(target, content, then=lambda: None):
    with open_file_atomically(target) as handle:
        handle.write(content)
        then()


def fail():
    raise StopError


def fill_the_disk():
    with open("/dev/full", "wb", buffering=0) as full:
        full.write(b"x")


def test_a_file_is_replaced_only_when_it_is_whole(tmp_path):
    target = tmp_path / "new" / "file.bin"
    write_file(target, b"old")
    with pytest.raises(StopError):
        write_file(target, b"half", fail)
    with pytest.raises(CheckpointWriteError, match="the disk is full"):
        write_file(target, b"half", fill_the_disk)
    assert target.read_bytes() == b"old"
    write_file(target, b"new")
    assert target.read_bytes() == b"new"
    assert list_names(target.parent) == ["file.bin"]


def test_a_writer_that_comes_second_replaces_the_first(tmp_path, monkeypatch):
    target = tmp_path / "target"
    write_version(target, 1)
    # As when the other writer was not there yet a moment ago.
    monkeypatch.setattr(Path, "exists", lambda path: path != target and os.path.exists(path))
    write_version(target, 2)
    assert (target / "a.bin").read_bytes()[0] == 2


def test_a_scratch_folder_takes_what_is_written_atomically():
    with open_scratch_folder("data") as folder:
        descriptor = os.open(folder, os.O_RDONLY)
        # First asked without waiting: a writer would wait for ever.
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        os.close(descriptor)
        write_version(folder / "model", 1)


def test_a_scratch_folder_that_a_killed_process_left_is_removed_by_the_next(tmp_path, monkeypatch):
    code = (
        "import time; from myxtts.checkpoints.atomic_directory import open_scratch_folder\n"
        "with open_scratch_folder('trial') as folder: print(folder, flush=True); time.sleep(600)"
    )
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.setattr(atomic_directory, "_SCRATCH_IS_NEW_S", -1.0)
    (tmp_path / "myxtts-trial-notmine!").mkdir()
    (tmp_path / "myxtts-trial-abcd1234").symlink_to(tmp_path)
    environ = {**os.environ, "TMPDIR": str(tmp_path)}
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True, env=environ) as process:
        left = Path(process.stdout.readline().strip())
        with open_scratch_folder("data") as own:
            assert left.is_dir(), "whoever made it is still there"
        process.kill()
        process.wait()
    assert left.is_dir()
    with open_scratch_folder("data") as own, open_scratch_folder("data"):
        # It can be written into, too, though whoever made it holds its lock.
        write_version(own / "model", 1)
        assert (own / "model").is_dir()
        assert not left.exists()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["myxtts-trial-abcd1234", "myxtts-trial-notmine!"]
