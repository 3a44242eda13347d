"""Looks at every clip of a corpus once: what can be used, what cannot, and how long it is."""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from myxtts.data.checks import CHARACTER_TASK, CLIP_TASK
from myxtts.data.clip_files import LocatedClips, locate_clips
from myxtts.data.corpus import Corpus
from myxtts.data.drops import DropReport
from myxtts.data.errors import NothingToTrainOnError
from myxtts.data.facts import Asking, Progress, collect_clip_facts, collect_text_facts
from myxtts.data.index import choose_index_folder
from myxtts.data.ljspeech import Split, read_metadata
from myxtts.data.verdicts import ClipLimits, Evidence, judge_lines, list_malformed
from myxtts.data.workers import Task, count_workers

_log = logging.getLogger(__name__)

TextTaskMaker = Callable[[Corpus], Task]
"""Chooses how texts are measured, given the clips that can be used as far as their audio is concerned."""


@dataclass(frozen=True, eq=False)
class ScanResult:
    """What a scan found."""

    corpus: Corpus
    drops: DropReport
    checked: int
    """Audio files that had to be read; those known from an earlier scan are not."""
    linked: int
    """Clips that are symbolic links, or lie behind one."""
    kept_in: Path | None
    """Where all this is remembered, for whoever looks at the corpus next."""


def scan_corpus(
    path: Path,
    *,
    split: Split = "train",
    language: str = "en",
    limits: ClipLimits | None = None,
    text_task: Task | TextTaskMaker = CHARACTER_TASK,
    clip_task: Task = CLIP_TASK,
    follow_symlinks: bool = True,
    strict: bool = False,
    workers: int | None = None,
    index_folder: Path | None = None,
    progress: Progress | None = None,
) -> ScanResult:
    """Read a corpus's metadata and look at every clip that no earlier scan has seen.

    A killed scan goes on where it was. Logs the drop report.

    Args:
        path: the corpus folder, a folder of speaker folders, or a metadata file.
        split: which of `metadata_train.csv` and `metadata_eval.csv` to read where a folder has them.
        language: of lines that name none.
        limits: what clips must keep to.
        text_task: how texts are measured; see `checks`. Or what makes it from the clips, such as a new vocabulary.
        clip_task: how audio files are checked; see `checks`.
        follow_symlinks: whether clips behind symbolic links are used or set aside.
        strict: make it an error to set anything aside.
        workers: processes; None is one per core, 0 is this process.
        index_folder: where results are remembered; None is where `choose_index_folder` says.
        progress: called now and then while clips and texts are looked at.
    """
    metadata = read_metadata(path, split=split, language=language)
    clips = locate_clips(metadata)
    _report_links(clips, follow_symlinks)
    is_duplicate = _find_duplicates(clips)
    wanted = clips.is_found & ~is_duplicate & (follow_symlinks | ~clips.is_linked)
    asking = Asking(
        folder=choose_index_folder(metadata.root, given=index_folder),
        workers=count_workers() if workers is None else workers,
        progress=progress or _ignore_progress,
    )
    clip_facts = collect_clip_facts(metadata.root, clips, wanted, clip_task, asking)
    limits = limits or ClipLimits()

    def weigh_evidence(task: Task) -> Evidence:
        text_facts = collect_text_facts(metadata.text, metadata.language, task, asking)
        return Evidence(metadata, clips, is_duplicate, clip_facts, text_facts)

    if not isinstance(text_task, Task):
        unlimited = replace(limits, max_tokens=sys.maxsize)
        usable, _ = judge_lines(weigh_evidence(CHARACTER_TASK), unlimited, follow_symlinks=follow_symlinks)
        text_task = text_task(usable) if len(usable) else CHARACTER_TASK
    corpus, drops = judge_lines(weigh_evidence(text_task), limits, follow_symlinks=follow_symlinks)
    malformed = list_malformed(metadata)
    report = DropReport(
        lines=len(metadata) + len(malformed), kept_seconds=corpus.total_seconds, drops=[*malformed, *drops]
    )
    _judge_report(path, report, corpus, limits, strict)
    _log.info("What was found out is kept in %s.", asking.folder or "memory only")
    return ScanResult(corpus, report, clip_facts.checked, int(clips.is_linked.sum()), asking.folder)


def _find_duplicates(clips: LocatedClips) -> NDArray[np.bool_]:
    """Which lines name a file that an earlier line has named."""
    _, first = np.unique(clips.key, return_index=True)
    is_repeated = np.ones(len(clips.key), dtype=np.bool_)
    is_repeated[first] = False
    return is_repeated & clips.is_found


def _report_links(clips: LocatedClips, follow_symlinks: bool) -> None:
    count = int(clips.is_linked.sum())
    if count:
        what = "they are followed" if follow_symlinks else "they are set aside, as --no-follow-symlinks asks"
        _log.info(
            "%d of %d clips lie behind symbolic links, such as %s: %s.", count, len(clips.path), clips.first_link, what
        )


def _judge_report(path: Path, report: DropReport, corpus: Corpus, limits: ClipLimits, strict: bool) -> None:
    if strict:
        report.refuse_drops()
    if len(corpus) == 0:
        broken = limits.describe(report.group_by_reason())
        raise NothingToTrainOnError(
            f"{path}: no clip can be used.\n{report.format_table()}" + (f"\nLimits: {broken}." if broken else "")
        )
    _log.log(logging.WARNING if report.drops else logging.INFO, "%s:\n%s", path, report.format_table())


def _ignore_progress(kind: str, done: int, total: int) -> None:
    """For callers that show none."""
