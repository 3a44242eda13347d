"""What a scan costs: FLAGS is one of scan, lines and padding.

- `scan`: a corpus of symbolic links to real clips, scanned cold (no index) and warm (nothing changed).
- `lines`: as many lines as asked for, with a check that opens no file: the memory and time that lines alone cost.
- `padding`: the share of a batch that is padding, for lengths as LJSpeech has them.

Every scan runs in a process of its own, whose highest memory is reported. Corpora are made in a temporary folder.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import resource
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import soundfile

from benchmarks.measuring import run_bench
from myxtts.data.buckets import plan_buckets
from myxtts.data.scan import CLIP_TASK, scan_corpus
from myxtts.data.task_processes import ProcessTask, Work
from myxtts.processes import make_importable

LJSPEECH_LINES = 13_100
RATE_HZ = 22050
UNOPENED_TASK = ProcessTask("benchmarks.corpus_scan:make_constant_check")
"""Says of every clip that it is fine, without a look at it."""


def make_constant_check() -> Work:
    """The work of `UNOPENED_TASK`: three seconds at the model's rate."""
    return lambda path: [3 * RATE_HZ, RATE_HZ, ""]


def make_corpus(folder: Path, clips: list[Path], lines: int) -> None:
    """Links to the clips in turn, and as many lines of about a hundred characters as LJSpeech has them."""
    (folder / "wavs").mkdir(parents=True)
    with (folder / "metadata.csv").open("w") as file:
        for n in range(lines):
            (folder / "wavs" / f"clip{n:07d}.wav").symlink_to(clips[n % len(clips)])
            file.write(f"clip{n:07d}|{f'This is sentence number {n} of a long story. ' * 2}\n")


def measure_scan(corpus: Path, index: Path, *, opens_clips: bool) -> dict[str, Any]:
    """Scan in another process: seconds, without Python's start; its highest memory; what was kept and looked at."""
    command = [sys.executable, "-P", "-m", "benchmarks.corpus_scan", "one", str(corpus), str(index)]
    command += [] if opens_clips else ["--unopened"]
    done = subprocess.run(command, check=True, capture_output=True, text=True, env=make_importable(os.environ))
    facts: dict[str, Any] = json.loads(done.stdout)
    return facts


def scan_here(corpus: Path, index: Path, *, opens_clips: bool) -> dict[str, Any]:
    """The other side of `measure_scan`."""
    before = time.perf_counter()
    result = scan_corpus(corpus, index_folder=index, clip_task=CLIP_TASK if opens_clips else UNOPENED_TASK)
    return {
        "seconds": round(time.perf_counter() - before, 2),
        "peak_mb": round(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024),
        "kept": len(result.corpus),
        "checked": result.checked,
    }


def bench_scan(clips: list[Path], lines: int, *, opens_clips: bool) -> dict[str, Any]:
    """A cold and a warm scan of a corpus that did not exist before."""
    with TemporaryDirectory(prefix="myxtts-scan-") as folder:
        corpus, index = Path(folder, "corpus"), Path(folder, "index")
        make_corpus(corpus, clips, lines)
        cold = measure_scan(corpus, index, opens_clips=opens_clips)
        warm = measure_scan(corpus, index, opens_clips=opens_clips)
        index_mb = sum(path.stat().st_size for path in index.iterdir()) / 1e6
    return {"lines": lines, "cold": cold, "warm": warm, "index_mb": round(index_mb, 1)}


def make_ljspeech_lengths(clips: int) -> tuple[np.ndarray, np.ndarray]:
    """Samples and tokens as LJSpeech has them: 1.1 to 10.1 s, 6.6 s on average, most of them long."""
    random = np.random.default_rng(7)
    seconds = np.clip(10.1 - random.gamma(1.9, 1.9, clips), 1.1, 10.1)
    tokens = np.maximum(3, seconds * 6 * np.exp(random.normal(0, 0.15, clips)))
    return (seconds * RATE_HZ).astype(np.int64), tokens.astype(np.int64)


def bench_padding(clips: int) -> dict[str, Any]:
    """Padding by batch size, beside batches of clips in random order padded to their longest."""
    samples, tokens = make_ljspeech_lengths(clips)
    order = np.random.default_rng(8).permutation(clips)
    result: dict[str, Any] = {"clips": clips, "mean_s": round(float(samples.mean()) / RATE_HZ, 2)}
    for batch_size in (8, 16, 32):
        plan = plan_buckets(samples, tokens, batch_size=batch_size)
        batches = [samples[order[n : n + batch_size]] for n in range(0, clips, batch_size)]
        unsorted = 1 - samples.sum() / sum(batch.max() * len(batch) for batch in batches)
        result[f"batch {batch_size}"] = {
            "audio": round(plan.waste.audio_share, 4),
            "sequence": round(plan.waste.sequence_share, 4),
            "shapes": len(plan.buckets),
            "audio in random order": round(float(unsorted), 4),
        }
    return result


def find_clips(folder: Path | None, scratch: Path) -> list[Path]:
    """The wav files of a folder; for want of one a tone of three seconds."""
    if folder:
        return sorted(folder.resolve().glob("*.wav"))
    tone = 0.3 * np.sin(np.arange(3 * RATE_HZ) * 0.05)
    soundfile.write(scratch / "tone.wav", tone, RATE_HZ)
    return [scratch / "tone.wav"]


def main(words: Sequence[str]) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parts = parser.add_subparsers(dest="part", required=True)
    for name in ("scan", "lines"):
        part = parts.add_parser(name)
        part.add_argument("--clips", type=Path, help="folder with wav files to link to (default: one tone)")
        part.add_argument("--lines", type=int, default=LJSPEECH_LINES if name == "scan" else 1_000_000)
    parts.add_parser("padding")
    one = parts.add_parser("one")
    one.add_argument("corpus", type=Path)
    one.add_argument("index", type=Path)
    one.add_argument("--unopened", action="store_true")
    arguments = parser.parse_args(words)
    if arguments.part == "one":
        print(json.dumps(scan_here(arguments.corpus, arguments.index, opens_clips=not arguments.unopened)))
        return
    load = os.getloadavg()[0]
    if arguments.part == "padding":
        figures = bench_padding(LJSPEECH_LINES)
    else:
        with TemporaryDirectory(prefix="myxtts-scan-") as scratch:
            clips = find_clips(arguments.clips, Path(scratch))
            figures = bench_scan(clips, arguments.lines, opens_clips=arguments.part == "scan")
    machine = {"python": platform.python_version(), "cores": os.cpu_count(), "load": [load, os.getloadavg()[0]]}
    print(json.dumps({**figures, **machine}, indent=1))


if __name__ == "__main__":
    run_bench(main)
