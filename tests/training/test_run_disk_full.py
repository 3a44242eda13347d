"""A disk that is full when a checkpoint is due."""

import pytest

from tests.support.small_disks import MOUNTING, require_small_disks
from tests.training.runs import finish, make_command, read_losses, read_story, start_command

# Whole runs; tests/checkpoints fills a disk under the store alone.
pytestmark = pytest.mark.soak

ON_A_SMALL_DISK = """
folder=$1 kept=$2; shift 2
mount -t tmpfs -o size={size}k tmpfs "$folder" || exit 77
"$@" > "$kept/full.said" 2>&1; echo $? > "$kept/full.code"
cp -r "$folder" "$kept/full"
mount -o remount,size=64m "$folder"
"$@" --resume > "$kept/resumed.said" 2>&1; echo $? > "$kept/resumed.code"
cp -r "$folder" "$kept/resumed"
"""


@pytest.fixture(scope="module")
def kept(share, flags, unbroken):
    """What a run on a disk with room for two and a half checkpoints said and left, and then with more room."""
    require_small_disks()
    checkpoint_kib = sum(file.stat().st_size for file in (unbroken / "step-00000008").iterdir()) // 1024

    def make(folder):
        disk = folder / "disk"
        disk.mkdir(parents=True)
        script = ON_A_SMALL_DISK.format(size=int(2.5 * checkpoint_kib) + 300)
        words = [*MOUNTING, script, "sh", str(disk), str(folder)]
        said = finish(start_command(disk, [*words, *make_command(disk, *flags, "--mode", "single")]), disk)
        assert said.code == 0, said.text

    return share("disk_full", make)


@pytest.fixture
def steps(unbroken):
    """The steps that are saved when there is room: two find it on the small disk, the third does not."""
    return [int(path.name.removeprefix("step-")) for path in sorted(unbroken.glob("step-*"))]


def read_text(path):
    return path.read_text(encoding="utf-8")


def test_the_error_says_what_is_needed_and_what_is_left(kept, steps):
    assert read_text(kept / "full.code") == "1\n"
    said = read_text(kept / "full.said")
    assert "Traceback" not in said
    assert f"no room for the checkpoint of step {steps[2]}" in said
    assert f"The run can go on from step {steps[1]}" in said


def test_the_older_checkpoints_are_as_they_were(kept, unbroken, steps):
    names = [f"step-{step:08d}" for step in steps[:2]]
    assert sorted(path.name for path in (kept / "full").glob("*step-*")) == names
    for name in names:
        for file in ("model.safetensors", "training.safetensors"):
            assert (kept / "full" / name / file).read_bytes() == (unbroken / name / file).read_bytes()


def test_with_room_again_the_run_is_the_unbroken_run(kept, unbroken, steps):
    assert read_text(kept / "resumed.code") == "0\n", read_text(kept / "resumed.said")[-6000:]
    assert f"goes on at step {steps[1]} of 8" in read_text(kept / "resumed.said")
    assert len(read_losses(kept / "full")) == steps[2]
    assert read_story(kept / "resumed") == read_story(unbroken)
