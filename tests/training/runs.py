"""Real runs of `train_main.py` with the smallest model, as a user would start them."""

from __future__ import annotations

import itertools
import json
import os
import shlex
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from myxtts.monitoring.metrics_log import list_losses, read_metrics
from myxtts.monitoring.metrics_rows import EventRow, TrainRow, ValidationRow
from tests.data.wav_files import make_chunk, make_wav
from tests.support.processes import clean_environ

ROOT = Path(__file__).resolve().parents[2]

SMALLEST = {
    "model.gpt_layers": 1, "model.gpt_width": 16, "model.gpt_heads": 2, "model.dvae_width": 16, "model.audio_codes": 32,
    "model.dropout": 0.1, "data.prompt_seconds": 0.5, "data.batch_size": 4, "data.num_workers": 0, "data.cache": "off",
    "data.model_start_delay": 0, "data.use_tf_native_loading": "false",
    # So that every update shows in the losses after it.
    "training.learning_rate": 0.003, "training.warmup_steps": 0,
    # Loading a model to speak takes longer than such a run.
    "training.speak": "false",
}  # fmt: skip
MARK = "TESTED_RUN_FOLDER"
PATIENCE_S = 900
"""For runs on a machine that has much else to do."""

WORDS = (
    *("yellow", "willow", "velvet", "timber", "silver", "purple", "orange", "nickel"),
    *("mellow", "kettle", "indigo", "hollow", "golden", "forest", "copper", "bronze"),
)
RARE_WORD = "jonquil"
"""With letters that no other text has."""


class Said(NamedTuple):
    """How a run ended."""

    code: int
    text: str
    """Everything it wrote."""


def make_corpus(folder: Path, clips: int = 25, seconds: tuple[float, float] = (0.98, 1.02)) -> Path:
    """A corpus of short tones in noise, so alike in length that its batches have one shape: a shape is slow to trace."""
    (folder / "wavs").mkdir(parents=True)
    draw = np.random.default_rng(11)
    lines = []
    for number in range(clips):
        samples = int(np.interp(number % 7, (0, 6), seconds) * 22050)
        tone = 9000 * np.sin(np.arange(samples) * (0.02 + 0.01 * number)) + draw.normal(scale=900, size=samples)
        (folder / "wavs" / f"clip_{number:02d}.wav").write_bytes(
            make_wav(make_chunk(b"data", tone.astype("<i2").tobytes()))
        )
        second = RARE_WORD if number == 3 else WORDS[number * 5 // 3 % len(WORDS)]
        lines.append(f"clip_{number:02d}|{WORDS[number % len(WORDS)]} {second}\n")
    (folder / "metadata.csv").write_text("".join(lines), encoding="utf-8")
    return folder


def make_words(folder: Path, *flags: object, **settings: object) -> list[str]:
    """The words of a run in a folder, behind `train_main.py`. A setting of None is left out."""
    words = ["--rehearsal", "--deterministic", "--log-interval", "1", "--checkpoint-dir", str(folder)]
    for name, value in {**SMALLEST, **settings}.items():
        words += [] if value is None else ["--set", f"{name}={value}"]
    return [*words, *map(str, flags)]


def make_command(folder: Path, *flags: object, **settings: object) -> list[str]:
    """The words of a process that runs in a folder."""
    return [sys.executable, str(ROOT / "train_main.py"), *make_words(folder, *flags, **settings)]


def start(folder: Path, *flags: object, **settings: object) -> subprocess.Popen[str]:
    """A run that goes on beside the test; what it says goes to `<folder>.said`."""
    return start_command(folder, make_command(folder, *flags, **settings))


def start_command(folder: Path, command: Sequence[str], **variables: str) -> subprocess.Popen[str]:
    """A process that goes on beside the test; what it says goes to `<folder>.said`."""
    environ = {**make_environ(folder), **variables}
    with open(f"{folder}.said", "w", encoding="utf-8") as said:
        return subprocess.Popen(command, stdout=said, stderr=subprocess.STDOUT, text=True, env=environ, cwd=ROOT)


def finish(run: subprocess.Popen[str], folder: Path, patience_s: float = PATIENCE_S) -> Said:
    """Waits for a run that `start` began."""
    code = run.wait(patience_s)
    return Said(code, Path(f"{folder}.said").read_text(encoding="utf-8"))


def train(folder: Path, *flags: object, expect: int = 0, **settings: object) -> str:
    """A run from its start to its end; returns what it said."""
    said = finish(start(folder, *flags, **settings), folder)
    assert said.code == expect, f"exit code {said.code}\n{said.text[-6000:]}"
    return said.text


class Fault(NamedTuple):
    """Out of memory in a run, where TensorFlow would raise it."""

    function: str
    """Of `TrainStep`."""
    call: int
    """Which of its calls fails, from 1."""


def train_all(folder: Path, *runs: Sequence[str], faults: Mapping[int, Fault] | None = None) -> list[Said]:
    """Runs one after another in one process, which imports TensorFlow once; they must be of one mode.

    Args:
        folder: for what they say.
        runs: the words of each, as `make_words` gives them.
        faults: by the run's number.
    """
    folder.mkdir(exist_ok=True)
    task = folder / "runs.json"
    content = [{"words": words, "fault": (faults or {}).get(number)} for number, words in enumerate(runs)]
    task.write_text(json.dumps(content), encoding="utf-8")
    command = [sys.executable, "-m", "tests.training.runs", str(task)]
    said = finish(start_command(folder / "runs", command), folder / "runs")
    assert said.code == 0, said.text[-6000:]
    return [
        Said(code, (folder / f"run-{number}.said").read_text(encoding="utf-8"))
        for number, code in enumerate(json.loads(task.with_suffix(".codes").read_text()))
    ]


def make_environ(folder: Path) -> dict[str, str]:
    """Without what the machine's own user has set, and marked, so that every process of the run can be found."""
    return clean_environ(**{"PYTHONPATH": str(ROOT), MARK: str(folder)})


def read_losses(folder: Path) -> list[tuple[int, float]]:
    """The loss of every update, to the last bit."""
    return list_losses(read_metrics(folder / "metrics.jsonl"))


def read_validations(folder: Path) -> list[tuple[int, float]]:
    """The loss of every validation."""
    rows = read_metrics(folder / "metrics.jsonl").rows
    return [(row.step, row.loss) for row in rows if isinstance(row, ValidationRow)]


def read_counts(folder: Path) -> list[tuple[int, int, int, int]]:
    """What was trained on between two readings: step, clips, samples, samples with their padding."""
    rows = read_metrics(folder / "metrics.jsonl").rows
    return [(row.step, row.clips, row.samples, row.padded_samples) for row in rows if isinstance(row, TrainRow)]


def read_events(folder: Path) -> list[EventRow]:
    """What happened besides training."""
    return [row for row in read_metrics(folder / "metrics.jsonl").rows if isinstance(row, EventRow)]


def read_story(folder: Path) -> dict[str, Any]:
    """Everything that must be the same to the last bit however a run was made."""
    return {
        "losses": read_losses(folder),
        "validations": read_validations(folder),
        "counts": read_counts(folder),
        "weights": hash_weights(folder),
    }


def hash_weights(folder: Path) -> str:
    """The digest of the newest checkpoint's weights and optimizer, from its manifest."""
    newest = max(folder.glob("step-*"))
    files = json.loads((newest / "manifest.json").read_text(encoding="utf-8"))["files"]
    return ", ".join(f"{name} {files[name]['sha256']}" for name in ("model.safetensors", "training.safetensors"))


def find_resume_command(said: str) -> list[str]:
    """The words behind `train_main.py` in the command that a run printed for its continuation."""
    line = next(line for line in said.splitlines() if line.startswith("Resume  "))
    words = shlex.split(line.removeprefix("Resume  "))
    assert words[:2] == ["python", "train_main.py"], words
    return words[2:]


def _run_all(task: Path) -> None:
    """The process of `train_all`."""
    from myxtts.cli.main import run_command

    out, codes = os.dup(1), []
    for number, run in enumerate(json.loads(task.read_text(encoding="utf-8"))):
        with open(task.parent / f"run-{number}.said", "wb") as said:
            os.dup2(said.fileno(), 1)
            os.dup2(said.fileno(), 2)
        with _inject(Fault(*run["fault"])) if run["fault"] else nullcontext():
            codes.append(run_command("train", run["words"], "train_main.py"))
        sys.stdout.flush()
        sys.stderr.flush()
    os.dup2(out, 1)
    os.dup2(out, 2)
    task.with_suffix(".codes").write_text(json.dumps(codes))


@contextmanager
def _inject(fault: Fault) -> Iterator[None]:
    import tensorflow as tf

    from myxtts.training.step import TrainStep

    whole = getattr(TrainStep, fault.function)
    calls = itertools.count(1)

    def fail_once(*arguments: Any, **options: Any) -> Any:
        if next(calls) == fault.call:
            raise tf.errors.ResourceExhaustedError(None, None, "OOM when allocating tensor")
        return whole(*arguments, **options)

    setattr(TrainStep, fault.function, fail_once)
    try:
        yield
    finally:
        setattr(TrainStep, fault.function, whole)


if __name__ == "__main__":
    _run_all(Path(sys.argv[1]))
