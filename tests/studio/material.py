"""Workspaces with something in them, made without training or hearing anything."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import soundfile

from myxtts.config import XTTSConfig
from myxtts.recordings.book import BookedClip, ClipBook, write_corpus
from tests.studio.hosting import DEMO

RATE_HZ = 22_050


def write_book_of(folder: Path, clips: int, doubtful: int = 2) -> Path:
    """A corpus in which the last clips are doubtful, and the very last was set aside; without doubtful ones all are kept."""
    (folder / "wavs").mkdir(parents=True)
    samples = np.sin(np.arange(RATE_HZ) / 20).astype(np.float32) * np.linspace(0, 0.5, RATE_HZ, dtype=np.float32)
    sound = folder / "sound"
    soundfile.write(sound, samples, RATE_HZ, format="WAV", subtype="PCM_16")
    booked = []
    for number in range(clips):
        is_aside = doubtful > 0 and number == clips - 1
        reasons = ["misheard"] if number >= clips - doubtful else []
        (folder / "wavs" / f"clip_{number:05}.wav").hardlink_to(sound)
        booked.append(BookedClip(f"clip_{number:05}", "a.wav", number, number + 1, 1.0, f"This is sentence {number}.", reasons=reasons, kept=not is_aside, figures={"snr_db": 30.0}))  # fmt: skip
    sound.unlink()
    write_corpus(folder, ClipBook("x", "en", "none", None, clips=booked, complete=True))
    return folder


def write_run(folder: Path, *, ending: str | None = None, status: str | None = "stopped") -> Path:
    """The folder of a run that has told two rows; without a status its process was killed."""
    folder.mkdir(parents=True)
    from myxtts.config.sources import dump_sections

    config = XTTSConfig(training={"rehearsal": True, "checkpoint_dir": str(folder)})
    start = {"time": "2026-01-01T00:00:00", "step": 0, "end_step": 20, "command": ["myxtts", "train", "--checkpoint-dir", str(folder), "--rehearsal"]}  # fmt: skip
    record = {"format": "myxtts run", "version": 1, "stage": "gpt", "config": dump_sections(config), "foreign": [], "starts": [start], "end_step": 20, "ending": ending}  # fmt: skip
    (folder / "run.json").write_text(json.dumps(record))
    common = {"time_s": 1.7e9, "step": 10}
    rows = [
        {"kind": "run", **common, "step": 0, "end_step": 20, "stage": "gpt", "mode": "single", "devices": {"model": "/CPU:0"}},
        {"kind": "train", **common, "epoch": 0, "losses": [4.5, 4.25], "learning_rate": 1e-4, "step_times_s": [0.5], "left_out": 0, "spent": {"step": 5.0, "data stall": 1.0}, "batches": 2, "clips": 8, "samples": 99, "padded_samples": 120, "clips_per_s": 2.0, "audio_seconds_per_s": 3.0, "retraces": 0, "flow": None, "memory": [{"device": "host, trainer", "used_bytes": 1000000, "limit_bytes": None}]},
        {"kind": "summary", **common, "status": status, "spent": {}},
    ]  # fmt: skip
    kept = rows if status else rows[:-1]
    (folder / "metrics.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in kept))
    (folder / "samples").mkdir()
    for name in ("step-00000010.wav", "step-00000010-free.wav"):
        (folder / "samples" / name).write_bytes(b"RIFF-sample")
    return folder


def join_clips(path: Path, seconds: float, gap_s: float = 0.9) -> list[str]:
    """A recording of demo clips with pauses between them; returns what is said in it."""
    rng, parts, said, total = np.random.default_rng(0), [], [], 0.0
    texts = dict(line.split("|")[:2] for line in (DEMO.parent / "metadata.csv").read_text().splitlines() if "|" in line)
    for clip in sorted(DEMO.glob("slt_*.flac")):
        samples, rate_hz = soundfile.read(clip, dtype="float32")
        parts += [samples, rng.normal(0, 2e-4, round(gap_s * rate_hz)).astype(np.float32)]
        said.append(texts.get(clip.stem, ""))
        total += len(samples) / rate_hz + gap_s
        if total >= seconds:
            break
    soundfile.write(path, np.concatenate(parts), RATE_HZ, subtype="PCM_16")
    return said
