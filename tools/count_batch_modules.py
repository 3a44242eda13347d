#!/usr/bin/env python3
"""Counts the modules whose code runs for one steady-state batch of an isolated run.

A small run is trained in rehearsal, and every function of the package notes when it is called, in each process of the run. What is
called between two rows of the metrics file is counted, in threads that carry batches: start, validation, checkpoints and the end
lie outside. What was traced into a graph before does not run as Python, and is not counted.

  python tools/count_batch_modules.py
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
LOG_INTERVAL = 20
FLAGS = (
    f"--model-size tiny --codec-steps 5 --max-steps {4 * LOG_INTERVAL} --log-interval {LOG_INTERVAL} --rehearsal --mode isolated "
    f"--no-speak --cache off --buffer-size 4 --validation-interval {4 * LOG_INTERVAL} --checkpoint-interval {4 * LOG_INTERVAL}"
)
EDGE_S = 0.2
"""Around a row of the metrics file, whose own writing is no part of a batch."""
WATCHERS = ("sampler", "watchdog", "view")
"""Threads that look on, by a part of their names."""

HOOK = """
import ast, builtins, importlib.machinery, os, sys, threading, time
_room = os.environ["COUNTED_ROOT"] + os.sep
_file, _last = [], {}

def _note(name):
    now, key = time.time(), (name, threading.current_thread().name)
    if now - _last.get(key, 0) > 0.05:
        _last[key] = now
        if not _file:
            _file.append(open(os.path.join(os.environ["COUNTED_OUT"], f"{os.getpid()}.txt"), "a", buffering=1))
        _file[0].write(f"{now}|{key[1]}|{name}\\n")

def _compile(self, data, path, *, _optimize=-1):
    tree = ast.parse(data, path)
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef) and path.startswith(_room):
            call = ast.parse(f"_note_called({path[len(_room):]!r})").body
            node.body[ast.get_docstring(node) is not None : 0] = call
    return compile(ast.fix_missing_locations(tree), path, "exec", dont_inherit=True, optimize=_optimize)

builtins._note_called = _note
importlib.machinery.SourceFileLoader.source_to_code = _compile
"""


def run_counted(folder: Path) -> Path:
    """Trains, and returns the folder of the run; each process has left a file of what it called in `folder`."""
    (folder / "sitecustomize.py").write_text(HOOK)
    run = folder / "run"
    environment = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join([str(folder), str(ROOT)]),
        "PYTHONPYCACHEPREFIX": str(folder / "compiled"),
        "COUNTED_ROOT": str(ROOT / "myxtts"),
        "COUNTED_OUT": str(folder),
    }
    command = [sys.executable, str(ROOT / "train_main.py"), *FLAGS.split(), "--checkpoint-dir", str(run)]
    subprocess.run(command, env=environment, check=True, stdout=subprocess.DEVNULL)
    return run


def find_window(run: Path) -> tuple[float, float]:
    """The time between the second and the third row of training steps."""
    rows = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    times = [row["time_s"] for row in rows if row.get("kind") == "train"]
    return times[1] + EDGE_S, times[2] - EDGE_S


def list_called(folder: Path, first_s: float, last_s: float) -> dict[str, set[str]]:
    """Module -> the threads that called it in the window, of those that carry batches."""
    found: dict[str, set[str]] = {}
    for file in folder.glob("*.txt"):
        for line in file.read_text().splitlines():
            time_s, thread, module = line.split("|")
            if first_s < float(time_s) < last_s and not any(word in thread.lower() for word in WATCHERS):
                found.setdefault(module, set()).add(thread)
    return found


def main() -> None:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        run = run_counted(folder)
        called = list_called(folder, *find_window(run))
    for module, threads in sorted(called.items()):
        print(f"{module:<40} {', '.join(sorted(threads))}")
    print(f"{len(called)} modules")


if __name__ == "__main__":
    main()
