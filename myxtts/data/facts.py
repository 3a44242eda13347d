"""Facts about every clip and text of a corpus: from the index where they are known, else from workers."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from myxtts import __version__
from myxtts.data.clip_files import LocatedClips
from myxtts.data.columns import NameColumn, TextColumn
from myxtts.data.drops import DropReason
from myxtts.data.errors import WorkerError
from myxtts.data.index import Index
from myxtts.data.lazy_items import LazyItems
from myxtts.data.workers import CHUNK_ITEMS, Crashed, Task, run_task
from myxtts.hashing import digest64

Progress = Callable[[str, int, int], None]
"""Called with what is looked at ("audio" or "text"), how many are done, and how many there are to do."""

# Numbers in files on disk: never give one a new meaning.
_PROBLEM_CODES = {
    DropReason.MISSING: 1,
    DropReason.EMPTY: 2,
    DropReason.UNSUPPORTED: 3,
    DropReason.CORRUPT: 4,
    DropReason.TRUNCATED: 5,
    DropReason.NAN: 6,
    DropReason.SILENT: 7,
    DropReason.UNREADABLE: 8,
}
PROBLEMS = {code: reason for reason, code in _PROBLEM_CODES.items()}
"""What a clip's problem code means; 0 is none."""


@dataclass(frozen=True, eq=False)
class ClipFacts:
    """What workers found in the audio files. Zero for clips that were not asked about."""

    frames: NDArray[np.int64]
    rate_hz: NDArray[np.int64]
    problem: NDArray[np.int64]
    """A key of `PROBLEMS`, or 0."""
    checked: int
    """Files that had to be read; the rest was known."""


@dataclass(frozen=True, eq=False)
class TextFacts:
    """What workers found in the texts."""

    tokens: NDArray[np.int64]
    """Lengths, or `checks.NO_LANGUAGE`."""
    unknown: NDArray[np.int64]
    """Code point of the first character the vocabulary lacks, or 0."""


@dataclass(frozen=True)
class Asking:
    """How facts are got."""

    folder: Path | None
    """Where the index is; None remembers nothing."""
    workers: int
    progress: Progress


def collect_clip_facts(
    root: Path, clips: LocatedClips, wanted: NDArray[np.bool_], task: Task, asking: Asking
) -> ClipFacts:
    """Facts about the wanted clips. A file is read again only when its size or time of change is another one."""
    question = _Question(
        kind="audio",
        task=task,
        keys=clips.key,
        stamps=np.stack([clips.size_bytes, clips.mtime_ns], axis=1),
        wanted=wanted,
        make_item=lambda row: f"{root}/{clips.path[row]}",
        encode=_encode_clip,
        values=3,
        # Even one: a damaged file may crash the library that reads it.
        worth_a_worker=1,
    )
    values, checked = _answer(question, asking)
    return ClipFacts(values[:, 0], values[:, 1], values[:, 2], checked)


def collect_text_facts(texts: TextColumn, languages: NameColumn, task: Task, asking: Asking) -> TextFacts:
    """Facts about every text, which depend on its language."""
    prefixes = [f"{name}\0".encode() for name in languages.names]
    contents = (prefixes[code] + text for code, text in zip(languages.codes, texts.iter_bytes(), strict=True))
    question = _Question(
        kind="text",
        task=task,
        keys=np.fromiter(map(digest64, contents), dtype=np.int64, count=len(texts)),
        stamps=np.zeros((len(texts), 0), dtype=np.int64),
        wanted=np.ones(len(texts), dtype=np.bool_),
        make_item=lambda row: [texts[row], languages[row]],
        encode=_encode_text,
        values=2,
        worth_a_worker=2000,
    )
    values, _ = _answer(question, asking)
    return TextFacts(values[:, 0], values[:, 1])


def _encode_clip(result: Any) -> tuple[list[int], bool]:
    if isinstance(result, Crashed):
        # It may have been the machine's fault: ask again next time.
        return [0, 0, _PROBLEM_CODES[DropReason.CORRUPT]], False
    frames, rate_hz, problem = result
    # Permission to read can be given, and a mount come back, without touching the file: neither is ever remembered.
    is_lasting = problem not in (DropReason.MISSING, DropReason.UNREADABLE)
    return [frames, rate_hz, _PROBLEM_CODES[problem] if problem else 0], is_lasting


def _encode_text(result: Any) -> tuple[list[int], bool]:
    if isinstance(result, Crashed):
        raise WorkerError(f"A text killed its worker process with signal {result.signal}: a library is broken.")
    tokens, unknown = result
    return [tokens, ord(unknown) if unknown else 0], True


@dataclass(frozen=True, eq=False)
class _Question:
    kind: str
    task: Task
    keys: NDArray[np.int64]
    stamps: NDArray[np.int64]
    """Numbers a remembered row must agree with."""
    wanted: NDArray[np.bool_]
    make_item: Callable[[int], Any]
    """What workers get, by row."""
    encode: Callable[[Any], tuple[list[int], bool]]
    """A worker's result as numbers, and whether it may be remembered."""
    values: int
    worth_a_worker: int
    """So many items pay for starting a process; with fewer, this process does them."""


def _answer(question: _Question, asking: Asking) -> tuple[NDArray[np.int64], int]:
    """The values of every row, and how many were not known before."""
    stamps = question.stamps.shape[1]
    with Index(asking.folder, _name_index(question), columns=1 + stamps + question.values) as index:
        rows, known = index.find(question.keys)
        known &= np.all(rows[:, 1 : 1 + stamps] == question.stamps, axis=1)
        values = np.where((known & question.wanted)[:, None], rows[:, 1 + stamps :], 0)
        del rows
        pending = np.flatnonzero(question.wanted & ~known)
        if len(pending):
            _check_pending(question, pending, values, index, asking)
    return values, len(pending)


def _check_pending(
    question: _Question, pending: NDArray[np.intp], values: NDArray[np.int64], index: Index, asking: Asking
) -> None:
    """Let workers answer for the pending rows: into `values`, and into the index as soon as there is a chunk."""
    fresh: list[list[int]] = []
    asking.progress(question.kind, 0, len(pending))
    workers = min(asking.workers, len(pending) // question.worth_a_worker)
    results = run_task(question.task, LazyItems(pending, question.make_item), workers)
    for done, (position, result) in enumerate(results, start=1):
        row = pending[position]
        values[row], is_lasting = question.encode(result)
        if is_lasting:
            fresh.append([question.keys[row], *question.stamps[row], *values[row]])
        if len(fresh) >= CHUNK_ITEMS or done == len(pending):
            index.append(fresh)
            fresh = []
            asking.progress(question.kind, done, len(pending))
    index.merge()


def _name_index(question: _Question) -> str:
    # The version, because a later one may clean texts or judge clips in another way.
    task = question.task
    identity = "\0".join([__version__, task.factory, task.identity or json.dumps(task.settings, sort_keys=True)])
    return f"{question.kind}-{digest64(identity.encode()) & (1 << 64) - 1:016x}"
