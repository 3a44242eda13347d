"""Real runs of `train_main.py` with the smallest model, as a user would start them."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from myxtts.monitoring.metrics_log import list_losses, read_metrics
from myxtts.monitoring.metrics_rows import ValidationRow
from tests.support.processes import clean_environ

ROOT = Path(__file__).resolve().parents[2]

SMALLEST = {
    "model.gpt_layers": 1, "model.gpt_width": 16, "model.gpt_heads": 2, "model.dvae_width": 16, "model.audio_codes": 32,
    "model.dropout": 0.1, "data.prompt_seconds": 0.5, "data.batch_size": 16, "data.num_workers": 0,
}  # fmt: skip


def make_command(folder: Path, *flags: str, **settings: object) -> list[str]:
    """The words of a run in a folder."""
    words = [sys.executable, str(ROOT / "train_main.py"), "--rehearsal", "--deterministic", "--log-interval", "1"]
    for name, value in {**SMALLEST, **settings}.items():
        words += ["--set", f"{name}={value}"]
    return [*words, "--checkpoint-dir", str(folder), *flags]


def start(folder: Path, *flags: str, **settings: object) -> subprocess.Popen[str]:
    """A run that goes on beside the test."""
    return subprocess.Popen(
        make_command(folder, *flags, **settings),
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=make_environ(folder), cwd=ROOT,
    )  # fmt: skip


def train(folder: Path, *flags: str, expect: int = 0, **settings: object) -> str:
    """A run from its start to its end; returns what it said."""
    result = subprocess.run(
        make_command(folder, *flags, **settings),
        capture_output=True, text=True, env=make_environ(folder), cwd=ROOT, timeout=600,
    )  # fmt: skip
    said = result.stdout + result.stderr
    assert result.returncode == expect, f"exit code {result.returncode}\n{said[-6000:]}"
    return said


def make_environ(folder: Path) -> dict[str, str]:
    """Without what the machine's own user has set, and with a cache of its own."""
    return clean_environ() | {"XDG_CACHE_HOME": str(folder.parent / "cache"), "PYTHONPATH": str(ROOT)} | {
        name: value for name, value in os.environ.items() if name.startswith("COVERAGE")
    }


def read_losses(folder: Path) -> list[tuple[int, float]]:
    """The loss of every update, to the last bit."""
    return list_losses(read_metrics(folder / "metrics.jsonl"))


def read_validations(folder: Path) -> list[tuple[int, float]]:
    """The loss of every validation."""
    rows = read_metrics(folder / "metrics.jsonl").rows
    return [(row.step, row.loss) for row in rows if isinstance(row, ValidationRow)]
