"""A process killed with SIGKILL while it saves, before any line it executes, leaves a store from which a run goes on."""

import os
import shutil
from collections import Counter

import pytest

from myxtts import files
from myxtts.checkpoints import model_directory, store
from myxtts.checkpoints import tensors as safetensors_file
from tests.checkpoints.training_states import assert_content, collect_warnings, list_steps, open_store, save
from tests.support.kills import run_killed
from tests.support.processes import run_code

WATCHED = tuple(module.__file__ for module in (files, model_directory, safetensors_file, store, shutil))

LOSSES = {10: 1.0, 20: 3.0, 30: 2.0}
NEW_STEP, NEW_LOSS = 40, 4.0
KEPT_BEFORE, KEPT_AFTER = [10, 20, 30], [10, 30, 40]


def restore(folder, template):
    if not template.exists():
        store = open_store(template)
        for step, loss in LOSSES.items():
            save(store, step, val_loss=loss)
        assert list_steps(store) == KEPT_BEFORE
    shutil.rmtree(folder, ignore_errors=True)
    shutil.copytree(template, folder)


def kill_and_look(folder, prepare):
    """The newest step after a kill, everything about the store having been checked; None when nothing was killed."""
    restore(folder, folder.with_name("template"))
    if not run_killed(lambda: save(open_store(folder), NEW_STEP, val_loss=NEW_LOSS), prepare):
        return None
    store = open_store(folder)
    with collect_warnings() as warnings:
        latest = store.latest()
        assert latest is not None
        assert latest.step in (30, NEW_STEP)
        best = store.best()
        assert best is not None
        assert best.step == 10
        for checkpoint in store.list():
            assert_content(checkpoint)
        steps = list_steps(store)
        assert set(steps) >= {10, 30}
        assert len(steps) >= 3, "never fewer than are to be kept"
        save(store, NEW_STEP, val_loss=NEW_LOSS)
    assert warnings == []
    assert list_steps(store) == KEPT_AFTER
    names = sorted(entry.name for entry in folder.iterdir())
    assert names == ["checkpoints.json", *(f"step-{step:08d}" for step in KEPT_AFTER)], names
    return latest.step


def kill_at(folder, prepares):
    """The newest steps found after each kill, counted; ends with the first kill that comes too late."""
    # A kill loses nothing that was handed to the kernel; flushing would only make this slow.
    os.fsync = lambda descriptor: None
    found = Counter()
    for prepare in prepares:
        latest = kill_and_look(folder, prepare)
        if latest is None:
            break
        found[latest] += 1
    return {"kills": found.total(), "latest": found}


SHARES = 16
"""The lines of a save are shared out among so many processes."""


def kill_before_lines(folder, points):
    return run_code(f"""
import functools, itertools
from pathlib import Path
from tests.checkpoints.test_store_kills import WATCHED, kill_at
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
