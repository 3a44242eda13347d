"""A file or a folder is the old one or the new one, whole, whatever happens while it is written."""

import errno
import os
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest

from myxtts.checkpoints.model_directory import require_model_folder, write_model_directory
from myxtts.config import XTTSConfig
from myxtts.files import (
    OutputFolderError,
    WriteError,
    open_file_atomically,
    open_folder_atomically,
    open_scratch_folder,
    recover_folder,
    require_free_folder,
)
from tests.support.processes import run_code
from tests.support.writing_kills import read_version, write_version


def kill_everywhere(folder, arguments):
    code = "from pathlib import Path\nfrom tests.support.writing_kills import kill_everywhere"
    return run_code(f"{code}\nreport(kill_everywhere(Path({str(folder)!r}), {arguments}))")


@pytest.mark.parametrize(
    ("arguments", "killed", "recovered"),
    [
        ("'folder', replace=True", {"1", "absent", "2"}, {"1", "2"}),
        ("'folder', replace=False", {"absent", "2"}, {"absent", "2"}),
        ("'file', replace=True", {"1", "2"}, {"1", "2"}),
    ],
)
def test_a_writer_killed_anywhere_leaves_the_old_or_the_new(tmp_path, arguments, killed, recovered):
    result = kill_everywhere(tmp_path, arguments)
    assert result["kills"] > 60
    assert result["states"].keys() == killed, "each must have been hit, and nothing else"
    assert result["recovered"].keys() == recovered
    assert result["final"] == 2


def list_names(folder):
    return sorted(entry.name for entry in folder.iterdir())


def test_everything_is_flushed_before_the_name_and_the_name_after_it(tmp_path, monkeypatch):
    events = []
    real_fsync, real_rename = os.fsync, Path.rename

    def record_fsync(descriptor):
        events.append(Path(os.readlink(f"/proc/self/fd/{descriptor}")).name)
        real_fsync(descriptor)

    def record_rename(path, target):
        events.append("RENAME")
        return real_rename(path, target)

    monkeypatch.setattr(os, "fsync", record_fsync)
    monkeypatch.setattr(Path, "rename", record_rename)
    write_version(tmp_path / "target", 2)
    position = events.index("RENAME")
    assert sorted(events[:position]) == ["a.bin", "b.bin", "c.bin", "new", "sub"]
    assert events.index("c.bin") < events.index("sub") < events.index("new")
    assert events[position + 1 :] == [tmp_path.name]


@pytest.mark.parametrize("file", [None, "a.bin"])
@pytest.mark.parametrize(
    ("raised", "error", "message"),
    [
        (KeyError("stop"), KeyError, "stop"),
        (OSError(errno.ENOSPC, "full"), WriteError, r"target.*the disk is full \(\d+ MiB free\).*before is untouched"),
    ],
)
def test_an_error_while_writing_leaves_the_old_and_no_traces(tmp_path, file, raised, error, message):
    target = tmp_path / "target"
    write_version(target, 1)

    def write():
        with open_file_atomically(target / file) if file else open_folder_atomically(target) as begun:
            begun.write(b"half") if file else (begun / "half").touch()
            raise raised

    with pytest.raises(error, match=message):
        write()
    assert read_version(target) == 1
    assert list_names(tmp_path) == ["target"]


def test_what_was_taken_away_comes_back_when_the_new_one_cannot_take_its_place(tmp_path, monkeypatch):
    write_version(tmp_path / "target", 1)
    real = Path.rename
    renames = []

    def rename(path, target):
        renames.append(path.name)
        if renames == ["new", "target", "new"]:
            raise OSError(5, "Input/output error")
        return real(path, target)

    monkeypatch.setattr(Path, "rename", rename)
    with pytest.raises(WriteError, match="Input/output error"):
        write_version(tmp_path / "target", 2)
    assert read_version(tmp_path / "target") == 1
    assert list_names(tmp_path) == ["target"]


def test_a_file_in_the_place_of_the_folder_is_not_overwritten(tmp_path):
    target = tmp_path / "target"
    target.write_text("precious")
    with pytest.raises(WriteError, match="is a file where a folder should be written"):
        write_version(target, 1)
    with pytest.raises(WriteError, match="cannot be written"):
        write_version(target / "below", 1)
    assert target.read_text() == "precious"


@pytest.mark.parametrize("made", ["file", "folder"])
def test_what_comes_while_a_free_place_is_written_stays(tmp_path, made):
    target = tmp_path / "target"
    kept = target / "precious" if made == "folder" else target

    def write():
        with open_folder_atomically(target, replaces=False):
            kept.parent.mkdir(exist_ok=True)
            kept.write_text("of another")

    with pytest.raises(OutputFolderError, match="holds files by now, which stay as they are"):
        write()
    assert kept.read_text() == "of another"
    assert list_names(tmp_path) == ["target"]


def leave_work(folder, name=".myxtts-0123456789abcdef"):
    (folder / name / "new").mkdir(parents=True)
    return folder / name


def test_what_killed_writers_left_is_removed_and_nothing_else(tmp_path):
    leave_work(tmp_path)
    leave_work(tmp_path, "myxtts-trial-0123456789abcdef")
    mine = (".myxtts", ".myxtts-notes", "myxtts-voice-training", "myxtts-voice-2026-11-18", "myxtts-7", "step-00000001")
    others = [leave_work(tmp_path, name).name for name in mine]
    elsewhere = tmp_path / f".myxtts-{0:016x}"
    elsewhere.symlink_to(tmp_path)
    write_version(tmp_path / "target", 1)
    assert list_names(tmp_path) == sorted([*others, elsewhere.name, "target"])


def test_a_living_writer_is_left_alone(tmp_path):
    target = tmp_path / "target"
    with open_folder_atomically(target) as folder:
        write_version(target, 1)
        recover_folder(tmp_path)
        (folder / "late").touch()
    assert list_names(target) == ["late"]
    assert list_names(tmp_path) == ["target"]


def test_writers_at_the_same_time_leave_one_whole_folder(tmp_path):
    target = tmp_path / "target"
    with ThreadPoolExecutor(3) as pool:
        for writing in [pool.submit(write_version, target, version) for version in (1, 2, 3) * 40]:
            writing.result()
    assert read_version(target) in (1, 2, 3)
    assert list_names(tmp_path) == ["target"]


def test_a_link_is_followed_unless_it_must_not_be_and_the_mode_kept(tmp_path):
    write_version(tmp_path / "real", 1)
    (tmp_path / "link").symlink_to("real")
    write_version(tmp_path / "link", 2)
    assert (tmp_path / "link").is_symlink()
    (tmp_path / "real" / "a.bin").chmod(0o640)
    with open_file_atomically(tmp_path / "link" / "a.bin") as file:
        file.write(b"\2" * 2000)
    assert read_version(tmp_path / "real") == 2
    assert (tmp_path / "real" / "a.bin").stat().st_mode & 0o777 == 0o640
    own = tmp_path / "own"
    own.symlink_to("real/a.bin")
    with open_file_atomically(own, follows_link=False) as file:
        file.write(b"mine")
    assert (own.is_symlink(), own.read_bytes()) == (False, b"mine")
    assert read_version(tmp_path / "real") == 2


def test_a_scratch_folder_that_a_killed_process_left_is_removed_by_the_next(tmp_path, monkeypatch):
    code = (
        "import time; from myxtts.files import open_scratch_folder\n"
        "with open_scratch_folder('trial') as folder: print(folder, flush=True); time.sleep(600)"
    )
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    environ = {**os.environ, "TMPDIR": str(tmp_path)}
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True, env=environ) as process:
        left = Path(process.stdout.readline().strip())
        with open_scratch_folder("data"):
            assert left.is_dir(), "whoever made it is still there"
        process.kill()
        process.wait()
    assert left.is_dir()
    with open_scratch_folder("data") as own, open_scratch_folder("data"):
        assert own.is_dir()
        assert not left.exists()
    assert list_names(tmp_path) == []


BOTH = pytest.mark.parametrize("require", [require_free_folder, require_model_folder])


@BOTH
def test_a_new_or_empty_folder_is_free_and_nothing_is_left_beside_it(tmp_path, require):
    require(tmp_path / "not" / "yet")
    (tmp_path / "empty").mkdir()
    require(tmp_path / "empty")
    assert list_names(tmp_path) == ["empty"]
    with open_folder_atomically(tmp_path / "empty", replaces=False) as folder:
        (folder / "mine").touch()
    assert list_names(tmp_path / "empty") == ["mine"]


def test_a_model_alone_may_be_replaced_by_a_model_only(tmp_path):
    model = tmp_path / "model"
    write_model_directory(model, config=XTTSConfig(), model={"mel_stats": np.ones(80, np.float32)})
    require_model_folder(model)
    with pytest.raises(OutputFolderError, match=r"config\.yaml, manifest\.json, model\.safetensors"):
        require_free_folder(model)
    (model / "training.safetensors").touch()
    with pytest.raises(OutputFolderError, match=r"\(training\.safetensors\)"):
        require_model_folder(model)


@BOTH
def test_a_folder_whose_replacement_was_interrupted_counts_as_there(tmp_path, require):
    taken = leave_work(tmp_path) / ".myxtts-taken"
    (taken / "target").mkdir(parents=True)
    (taken / "target" / "precious").touch()
    with pytest.raises(OutputFolderError, match=r"holds other files \(precious\)"):
        require(tmp_path / "target")
    assert (tmp_path / "target" / "precious").exists()


@BOTH
def test_the_folder_one_stands_in_is_not_replaced(tmp_path, monkeypatch, require):
    (tmp_path / "a" / "b").mkdir(parents=True)
    monkeypatch.chdir(tmp_path / "a" / "b")
    for place in (tmp_path / "a" / "b", tmp_path / "a"):
        with pytest.raises(OutputFolderError, match="started in, or one above it"):
            require(place)
