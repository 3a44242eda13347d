"""A studio whose workspace lies on a disk that is really full, and what killed studios leave on one."""

import subprocess
import sys

import pytest

from myxtts.studio.workspace import Workspace
from tests.studio.hosting import DEMO
from tests.support.processes import ROOT, clean_environ
from tests.support.small_disks import MOUNTING, require_small_disks

DISK_KIB = 512
ON_A_SMALL_DISK = f'disk=$1; shift; mount -t tmpfs -o size={DISK_KIB}k tmpfs "$disk" || exit 77; "$@"'
UPLOAD = """
import os, sys
from pathlib import Path
from tests.studio.hosting import host_studio

root, clip, free = Path(sys.argv[1]), Path(sys.argv[2]).read_bytes(), int(sys.argv[3])
with host_studio(root / "workspace") as (client, studio):
    disk = os.statvfs(root)
    (root / "filler").write_bytes(bytes(disk.f_bavail * disk.f_bsize - free))
    answer = client.upload(clip)
    print(answer.status, sorted(os.listdir(studio.workspace.recordings)), answer.error["message"])
    (root / "filler").unlink()
    print(client.upload(clip).status, len(os.listdir(studio.workspace.recordings)))
"""


@pytest.mark.parametrize("room", ["for half of the sound", "for the sound and no more"])
def test_a_recording_for_which_there_is_no_room_leaves_nothing(tmp_path, room):
    require_small_disks()
    clip = min(DEMO.glob("*.flac"), key=lambda path: path.stat().st_size)
    size = clip.stat().st_size
    free = size // 2 if room == "for half of the sound" else -(-size // 4096) * 4096
    words = [*MOUNTING, ON_A_SMALL_DISK, "sh", tmp_path, sys.executable, "-c", UPLOAD, tmp_path, clip, free]
    ended = subprocess.run(list(map(str, words)), capture_output=True, text=True, cwd=ROOT, env=clean_environ(PYTHONPATH=str(ROOT)))  # fmt: skip
    assert ended.returncode == 0, ended.stderr
    refused, kept = ended.stdout.splitlines()
    assert refused.startswith("507 [] ")
    assert "full" in refused
    assert kept == "201 2"


def test_what_a_killed_studio_has_received_in_part_is_removed_and_what_still_comes_is_not(tmp_path):
    workspace = Workspace(tmp_path)
    workspace.make()
    left, coming = (workspace.name_incoming() for _ in range(2))
    script = "import fcntl, os, sys; d = os.open(sys.argv[1], os.O_WRONLY | os.O_CREAT); fcntl.flock(d, fcntl.LOCK_EX); print(flush=True); sys.stdin.read()"  # fmt: skip
    left.write_bytes(b"half")
    with subprocess.Popen([sys.executable, "-c", script, coming], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as other:  # fmt: skip
        other.stdout.readline()
        workspace.make()
        assert list(workspace.recordings.iterdir()) == [coming]
        other.kill()
    workspace.make()
    assert list(workspace.recordings.iterdir()) == []
