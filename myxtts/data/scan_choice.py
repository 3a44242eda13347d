"""The scans that a configuration asks for."""

from __future__ import annotations

from pathlib import Path

from myxtts.audio.units import SAMPLE_RATE_HZ
from myxtts.config import XTTSConfig
from myxtts.data.checks import CHARACTER_TASK
from myxtts.data.demo_corpus import demo_corpus_path
from myxtts.data.facts import Progress
from myxtts.data.scan import ScanResult, TextTaskMaker, scan_corpus
from myxtts.data.verdicts import ClipLimits
from myxtts.data.workers import Task, count_workers


def choose_workers(config: XTTSConfig) -> int:
    """How many processes look at clips."""
    return count_workers() if config.data.num_workers == "auto" else config.data.num_workers


def scan_train_data(
    config: XTTSConfig, text_task: Task | TextTaskMaker, progress: Progress | None = None
) -> ScanResult:
    """The clips of `data.train_data`, or of the demo corpus where none is given."""
    path = Path(config.data.train_data) if config.data.train_data else demo_corpus_path()
    return _scan(config, path, text_task, progress)


def scan_val_data(config: XTTSConfig, text_task: Task, progress: Progress | None = None) -> ScanResult:
    """The clips of `data.val_data`, which must be given."""
    assert config.data.val_data
    return _scan(config, Path(config.data.val_data), text_task, progress, is_validation=True)


def _scan(
    config: XTTSConfig,
    path: Path,
    text_task: Task | TextTaskMaker,
    progress: Progress | None,
    is_validation: bool = False,
) -> ScanResult:
    data = config.data
    limits = ClipLimits(
        min_seconds=data.min_clip_seconds,
        max_samples=int(data.max_clip_seconds * SAMPLE_RATE_HZ),
        # Without a vocabulary characters are counted, and a token is at least one of them.
        max_tokens=config.model.max_text_tokens if text_task == CHARACTER_TASK else data.max_text_length,
    )
    return scan_corpus(
        path,
        split="eval" if is_validation else "train",
        language=data.language,
        limits=limits,
        text_task=text_task,
        follow_symlinks=data.follow_symlinks,
        strict=data.strict,
        workers=choose_workers(config),
        progress=progress,
    )
