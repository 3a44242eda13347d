"""A disk that takes no more leaves the older checkpoints as they were, and an error that says what to do."""

import errno
import os

import pytest

from myxtts.checkpoints import model_directory
from myxtts.files import DiskFullError
from tests.checkpoints.training_states import assert_content, collect_warnings, list_steps, open_store, save
from tests.support.processes import run_code
from tests.support.small_disks import MOUNTING, require_small_disks

ON_A_SMALL_DISK = """
import shutil
from pathlib import Path
from myxtts.files import DiskFullError
from tests.checkpoints.training_states import assert_content, list_steps, make_content, make_state, open_store
folder = Path({folder!r}) / "run"
store = open_store(folder, keep_last=2, keep_best=0)
saved, message = 0, None
while message is None:
    try:
        store.save(**make_content(saved + 1, size=50_000), state=make_state(saved + 1))
        saved += 1
    except DiskFullError as error:
        message, free = str(error), error.free_bytes
store = open_store(folder, keep_last=2, keep_best=0)
latest = store.latest()
names = sorted(entry.name for entry in folder.iterdir())
hidden = [name for name in names if name.startswith(".")]
shutil.rmtree(folder / f"step-{{saved:08d}}")
store.save(**make_content(99, size=50_000), state=make_state(99))
report(dict(saved=saved, message=message, free=free, steps=list_steps(store), latest=latest.step,
            hidden=hidden, folder=str(folder)))
"""


@pytest.fixture
def small_disk(tmp_path):
    """A folder, and the words that mount a disk of one mebibyte there for a command of their own."""
    require_small_disks()
    mount = f"mount -t tmpfs -o size=1m tmpfs '{tmp_path}'"
    return tmp_path, [*MOUNTING, f'{mount} && exec "$@"', "sh"]


def test_a_real_disk_that_is_full_loses_nothing(small_disk):
    folder, words = small_disk
    code = ON_A_SMALL_DISK.format(folder=str(folder))
    result = run_code(
        "import subprocess, sys\n"
        "prelude = 'import json\\ndef report(value): print(chr(10) + chr(64) * 2 + json.dumps(value))\\n'\n"
        f"words = {words!r} + [sys.executable, '-c', prelude + {code!r}]\n"
        "inner = subprocess.run(words, capture_output=True, text=True)\n"
        "assert inner.returncode == 0, inner.stderr\n"
        "report(json.loads(inner.stdout.rpartition(chr(64) * 2)[2]))\n"
    )
    # 400 kB each: two fit on the disk, and a third beside them does not.
    assert result["saved"] == 2
    assert result["latest"] == 2
    assert result["hidden"] == [], "nothing half-written takes up room"
    assert "which needs 400016 bytes" in result["message"]
    assert result["free"] < 400_016
    message = result["message"]
    assert message.startswith(
        f"{result['folder']}: no room for the checkpoint of step 3, which needs 400016 bytes (0.4 MiB)"
    )
    assert "--keep-last" in message
    assert "--checkpoint-dir" in message
    assert "The run can go on from step 2." in message
    assert result["steps"] == [1, 99], "once there is room, saving works again"


@pytest.mark.parametrize("writes", range(0, 14, 2))
def test_wherever_the_disk_becomes_full_the_older_ones_are_as_they_were(tmp_path, monkeypatch, writes):
    store = open_store(tmp_path)
    for step in (10, 20, 30):
        save(store, step, val_loss=float(step))
    before = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    real = model_directory.HashedFile.write
    done = []

    def fill_up(file, content):
        done.append(len(content))
        if len(done) > writes:
            real(file, content[: len(content) // 2])
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return real(file, content)

    with monkeypatch.context() as patch, collect_warnings() as warnings:
        patch.setattr(model_directory.HashedFile, "write", fill_up)
        with pytest.raises(DiskFullError, match=rf"{tmp_path}: no room for the checkpoint of step 40") as caught:
            save(store, 40, val_loss=1.0)
    assert caught.value.path == tmp_path
    assert "which needs 816 bytes" in str(caught.value)
    assert warnings == []
    assert {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()} == before
    assert_content(store.latest())
    save(store, 40, val_loss=1.0)
    assert list_steps(store) == [30, 40]


def test_a_limit_of_the_kernel_on_file_sizes_is_said_as_what_it_is(tmp_path):
    code = f"""
import resource
from pathlib import Path
from myxtts.files import DiskFullError, WriteError
from tests.checkpoints.training_states import list_steps, make_content, make_state, open_store, save
store = open_store(Path({str(tmp_path)!r}))
save(store, 10)
resource.setrlimit(resource.RLIMIT_FSIZE, (9999, 9999))
try:
    store.save(**make_content(20, size=50_000), state=make_state(20))
except WriteError as error:
    report([isinstance(error, DiskFullError), str(error), store.latest().step])
"""
    is_full, message, latest = run_code(code)
    assert (is_full, latest) == (False, 10)
    assert "step-00000020: cannot be written ([Errno 27] File too large)" in message
