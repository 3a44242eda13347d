"""A disk that is full when a checkpoint is due."""

import pytest

from tests.support.small_disks import MOUNTING, require_small_disks
from tests.support.tiny_run import TRAIN_MAIN, LiveRun, TinyRun, tiny_words

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
    checkpoint_kib = sum(file.stat().st_size for file in (unbroken.folder / "step-00000008").iterdir()) // 1024

    def make(folder):
        disk = folder / "disk"
        disk.mkdir(parents=True)
        script = ON_A_SMALL_DISK.format(size=int(2.5 * checkpoint_kib) + 300)
        LiveRun(disk, [*MOUNTING, script, "sh", disk, folder, *TRAIN_MAIN, *tiny_words(disk, *flags)]).finish(0)

    return share("disk_full", make)


def test_the_error_says_what_is_needed_and_the_older_checkpoints_are_as_they_were(kept, unbroken):
    """Two of the steps that are saved when there is room find it on the small disk, the third does not."""
    run, steps = TinyRun.at(kept / "full").expect(1), unbroken.checkpoints
    assert "Traceback" not in run.text
    assert f"no room for the checkpoint of step {steps[2]}" in run.text
    assert f"The run can go on from step {steps[1]}" in run.text
    names = [f"step-{step:08d}" for step in steps[:2]]
    assert sorted(path.name for path in run.folder.glob("*step-*")) == names
    for name in names:
        for file in ("model.safetensors", "training.safetensors"):
            assert (run.folder / name / file).read_bytes() == (unbroken.folder / name / file).read_bytes()


def test_with_room_again_the_run_is_the_unbroken_run(kept, unbroken):
    run, steps = TinyRun.at(kept / "resumed").expect(0), unbroken.checkpoints
    assert f"goes on at step {steps[1]} of 8" in run.text
    assert len(TinyRun.at(kept / "full").losses) == steps[2]
    assert run.story == unbroken.story
