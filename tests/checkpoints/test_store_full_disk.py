"""A disk that takes no more leaves the older checkpoints as they were, and an error that says what to do."""

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


def test_a_real_disk_that_is_full_loses_nothing(tmp_path):
    require_small_disks()
    mount = f"mount -t tmpfs -o size=1m tmpfs '{tmp_path}'"
    result = run_code(ON_A_SMALL_DISK.format(folder=str(tmp_path)), before=[*MOUNTING, f'{mount} && exec "$@"', "sh"])
    # 400 kB each: two fit on the disk, and a third beside them does not.
    assert result["saved"] == 2
    assert result["latest"] == 2
    assert result["hidden"] == [], "nothing half-written takes up room"
    assert result["free"] < 400_016
    message = result["message"]
    needed = "no room for the checkpoint of step 3, which needs 400016 bytes (0.4 MiB)"
    assert message.startswith(f"{result['folder']}: {needed}")
    for way_out in ("--keep-last", "--checkpoint-dir", "The run can go on from step 2."):
        assert way_out in message
    assert result["steps"] == [1, 99], "once there is room, saving works again"
