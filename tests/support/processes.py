"""Child processes for tests: TensorFlow's devices can be set up once per process, so each such test gets its own."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]

CHANGES_BEHAVIOUR = (
    "MYXTTS_REHEARSAL",
    "CUDA_VISIBLE_DEVICES",
    "CUDA_DEVICE_ORDER",
    "TF_GPU_ALLOCATOR",
    "PYTHONUNBUFFERED",
    "MYXTTS_SERVE_TOKEN",
    "MYXTTS_TRAINER",
)


def clean_environ(**more: str) -> dict[str, str]:
    """This process's variables without those that a user may have set for real runs, and with no real card in sight."""
    kept = {key: value for key, value in os.environ.items() if key not in CHANGES_BEHAVIOUR}
    return {**kept, "CUDA_VISIBLE_DEVICES": "-1", **more}


def run_python(
    arguments: Sequence[str],
    environ: Mapping[str, str] | None = None,
    cwd: Path = ROOT,
    before: Sequence[str] = (),
) -> subprocess.CompletedProcess[str]:
    """Runs this Python from a checkout, by another command where one is given, and returns what it printed and its exit code."""
    variables = clean_environ() if environ is None else dict(environ)
    variables["PYTHONPATH"] = str(ROOT)
    return subprocess.run(
        [*before, sys.executable, *arguments],
        capture_output=True, text=True, env=variables, cwd=cwd, timeout=300, stdin=subprocess.DEVNULL,
    )  # fmt: skip


def run_code(code: str, environ: Mapping[str, str] | None = None, before: Sequence[str] = ()) -> Any:
    """Runs code that calls `report(value)` once, and returns the value (through JSON). Fails with the child's stderr."""
    prelude = "import json, sys\ndef report(value): print('\\n@@' + json.dumps(value))\n"
    result = run_python(["-c", prelude + code], environ, before=before)
    assert result.returncode == 0, result.stderr[-4000:]
    return json.loads(result.stdout.rpartition("@@")[2])


def run_train(*flags: str, environ: Mapping[str, str] | None = None) -> subprocess.CompletedProcess[str]:
    """Runs `python train_main.py` with these flags."""
    return run_python(["train_main.py", *flags], environ)
