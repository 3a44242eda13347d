"""Kills a process that keeps a run aside, before every line it executes, and looks at what is left. For a process of its own."""

from __future__ import annotations

import shutil
from collections import Counter
from functools import partial
from pathlib import Path
from typing import Any

from myxtts.config import XTTSConfig
from myxtts.training import run_folder as previous_runs
from myxtts.training.run_folder import complete_interrupted_move, keep_run_aside, open_run
from tests.checkpoints.training_states import save
from tests.support.kills import kill_before_line, run_killed

MINE = ["checkpoints.json", "metrics.jsonl", "run.json", "step-00000010"]
OTHERS = ["run.lock", "thesis.tex"]


def make_run(folder: Path) -> None:
    folder.mkdir()
    (folder / "thesis.tex").touch()
    with open_run(
        XTTSConfig(model={"size": "tiny"}, training={"checkpoint_dir": str(folder)}), command=["train"]
    ) as run:
        run.begin(100, {})
        save(run.store, 10)
    (folder / "metrics.jsonl").touch()


def list_names(folder: Path) -> list[str]:
    return sorted(entry.name for entry in folder.iterdir())


def kill_everywhere(directory: str) -> dict[str, Any]:
    """What was found after each kill once the folder was opened again, counted: the old run in place, or moved whole."""
    template, folder = Path(directory, "template"), Path(directory, "run")
    make_run(template)
    states: Counter[str] = Counter()
    while True:
        shutil.rmtree(folder, ignore_errors=True)
        shutil.copytree(template, folder)
        kill = partial(kill_before_line, states.total(), [previous_runs.__file__])
        if not run_killed(lambda: keep_run_aside(folder), kill):
            break
        complete_interrupted_move(folder)
        names = list_names(folder)
        if names == sorted([*MINE, *OTHERS]):
            states["old"] += 1
        else:
            assert names == sorted(["previous-run-1", *OTHERS]), names
            assert list_names(folder / "previous-run-1") == MINE
            states["moved"] += 1
    return {"kills": states.total(), "states": states}
