"""A process killed with SIGKILL while it saves leaves a store from which a run goes on."""

import pytest

from tests.support.processes import run_code

SHARES = 16
"""The lines of a save are shared out among so many processes."""

PRELUDE = """
import functools, itertools
from pathlib import Path
from tests.checkpoints.store_kill_points import WATCHED, kill_at, kill_in_function, kill_inside_removal, kill_inside_write
from tests.support.kills import kill_before_line
folder = Path({folder!r}) / "run"
"""


def kill_at(folder, prepares):
    return run_code(PRELUDE.format(folder=str(folder)) + f"report(kill_at(folder, {prepares}))")


@pytest.mark.parametrize(
    ("kill", "latest"),
    [
        ("functools.partial(kill_inside_write, 5, 0.5)", "30"),
        ("functools.partial(kill_in_function, 'myxtts.checkpoints.store', '_choose_kept')", "40"),
        ("functools.partial(kill_inside_removal, 2)", "40"),
    ],
    ids=["inside a write", "before the old one goes", "while the old one goes"],
)
def test_a_kill_while_saving_leaves_the_old_or_the_new_one(tmp_path, kill, latest):
    assert kill_at(tmp_path, f"[{kill}]") == {"kills": 1, "latest": {latest: 1}}


@pytest.mark.soak
@pytest.mark.parametrize("share", range(SHARES))
def test_a_kill_before_any_line_of_saving_leaves_the_old_or_the_new_one(tmp_path, share):
    points = f"itertools.count({share}, {SHARES})"
    result = kill_at(tmp_path, f"(functools.partial(kill_before_line, point, WATCHED) for point in {points})")
    assert result["kills"] > 1000 / SHARES
    assert result["latest"].keys() == {"30", "40"}
    assert min(result["latest"].values()) > 100 / SHARES


@pytest.mark.soak
@pytest.mark.parametrize("part", [0.01, 0.5, 0.99])
def test_a_kill_inside_any_write_leaves_the_old_one(tmp_path, part):
    result = kill_at(tmp_path, f"(functools.partial(kill_inside_write, point, {part}) for point in itertools.count())")
    assert result["kills"] > 10
    assert result["latest"].keys() == {"30"}
