"""A process killed with SIGKILL while it saves leaves a store from which a run goes on."""

import pytest

from tests.support.processes import run_code

SHARES = 16
"""The lines of a save are shared out among so many processes."""


def kill_before_lines(folder, points):
    return run_code(f"""
import functools, itertools
from pathlib import Path
from tests.checkpoints.store_kill_points import WATCHED, kill_at
from tests.support.kills import kill_before_line
points = {points}
report(kill_at(Path({str(folder)!r}) / "run", (functools.partial(kill_before_line, point, WATCHED) for point in points)))
""")


def test_a_kill_while_saving_leaves_the_old_or_the_new_one(tmp_path):
    result = kill_before_lines(tmp_path, "itertools.count(40, 61)")
    assert result["kills"] > 15
    assert result["latest"].keys() == {"30", "40"}, "before and after the new one was there"


@pytest.mark.soak
@pytest.mark.parametrize("share", range(SHARES))
def test_a_kill_before_any_line_of_saving_leaves_the_old_or_the_new_one(tmp_path, share):
    result = kill_before_lines(tmp_path, f"itertools.count({share}, {SHARES})")
    assert result["kills"] > 1000 / SHARES
    assert min(result["latest"].values()) > 100 / SHARES
