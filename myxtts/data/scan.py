"""Looks at every clip of a corpus once: what can be used, what cannot, and how long it is.

Processes find out facts, not verdicts, so that other limits need no other scan. What they found is kept in an index, so that
nothing is looked at twice.
"""

from __future__ import annotations

import json
import logging
import sys
from collections.abc import Collection
from dataclasses import dataclass, replace
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from myxtts import __version__
from myxtts.audio.reading import check_clip
from myxtts.config import XTTSConfig
from myxtts.data.corpus import Corpus, Progress, TextIds
from myxtts.data.drops import Drop, DropReport
from myxtts.data.index import ClipIndex, choose_index_folder
from myxtts.data.ljspeech import Metadata, Split, demo_corpus_path, read_metadata
from myxtts.data.task_processes import CHUNK_ITEMS, Crashed, ProcessTask, Work, count_cores, run_task
from myxtts.data.texts import NO_LANGUAGE, VocabularyChoice, tokenise_texts
from myxtts.errors import ClipError, CorpusError, DropReason
from myxtts.hashing import digest64, hash_words
from myxtts.text.normalise import CHARACTER_LIMITS
from myxtts.text.tokenizer import Tokenizer
from myxtts.units import SAMPLE_RATE_HZ

_log = logging.getLogger(__name__)

CLIP_TASK = ProcessTask("myxtts.data.scan:make_clip_check")
"""Takes a path; gives frames, rate in Hz, and a `DropReason` or nothing."""

LONGEST_DECODED_SECONDS = 120.0
"""Longer than any model's limit: such a file is too long whatever is in it, and may not fit into memory."""

_REASONS = tuple(DropReason)
_FACTS = ((0, 1 << 40), (0, 1 << 40), (0, len(_REASONS)))
"""What is known of a clip: frames, rate in Hz, and its problem, counted from 1 in `_REASONS`; from where to where each goes."""


@dataclass(frozen=True)
class ClipLimits:
    """What a model takes. The defaults are those XTTS is fine-tuned with."""

    min_seconds: float = 0.5
    max_samples: int = 255_995
    """At the model's rate: 11.6 s."""
    max_tokens: int = 200

    def describe(self, reasons: Collection[DropReason]) -> str:
        """The limits behind these reasons, with the flags that set them; empty where none is behind any."""
        limits = {
            DropReason.TOO_SHORT: f"too_short is below {self.min_seconds:g} s (--min-clip-seconds)",
            DropReason.TOO_LONG: f"too_long is above {self.max_samples / SAMPLE_RATE_HZ:.4g} s (--max-clip-seconds)",
            DropReason.TEXT_TOO_LONG: f"text_too_long is above {self.max_tokens} tokens (--max-text-length)",
        }
        return "; ".join(text for reason, text in limits.items() if reason in reasons)


@dataclass(frozen=True, eq=False)
class ScanResult:
    """What a scan found."""

    corpus: Corpus
    drops: DropReport
    checked: int
    """Audio files that had to be read; those known from an earlier scan are not."""
    kept_in: Path | None
    """Where all this is remembered, for whoever looks at the corpus next."""
    vocabulary: Path | None


def scan_data(
    config: XTTSConfig, split: Split, vocabulary: VocabularyChoice, progress: Progress | None = None
) -> ScanResult:
    """The clips of `data.train_data`, or of the demo corpus where none is given; for "eval", those of `data.val_data`."""
    data = config.data
    path = data.val_data if split == "eval" else data.train_data or demo_corpus_path()
    assert path
    return scan_corpus(
        Path(path),
        split=split,
        language=data.language,
        limits=ClipLimits(
            min_seconds=data.min_clip_seconds,
            max_samples=int(data.max_clip_seconds * SAMPLE_RATE_HZ),
            max_tokens=data.max_text_length,
        ),
        vocabulary=vocabulary,
        follow_symlinks=data.follow_symlinks,
        strict=data.strict,
        processes=None if data.num_workers == "auto" else data.num_workers,
        progress=progress,
    )


def scan_corpus(
    path: Path,
    *,
    split: Split = "train",
    language: str = "en",
    limits: ClipLimits | None = None,
    vocabulary: VocabularyChoice | None = None,
    clip_task: ProcessTask = CLIP_TASK,
    follow_symlinks: bool = True,
    strict: bool = False,
    processes: int | None = None,
    index_folder: Path | None = None,
    progress: Progress | None = None,
) -> ScanResult:
    """Read a corpus's metadata and look at every clip that no earlier scan has seen.

    A killed scan goes on with the clips where it was. Logs the drop report.

    Args:
        path, split, language: as for `read_metadata`.
        vocabulary: what texts are tokenised with. Without it every character is a token.
        strict: make it an error to set anything aside.
        processes: None is one per core, 0 is this process.
        index_folder: where results are remembered; None is where `choose_index_folder` says.
    """
    if isinstance(vocabulary, Path):
        # A file that is no vocabulary is refused now, and not after the metadata.
        Tokenizer(vocabulary)
    metadata = read_metadata(path, split=split, language=language, follow_symlinks=follow_symlinks)
    folder = choose_index_folder(metadata.root, given=index_folder)
    processes = count_cores() if processes is None else processes
    progress = progress or (lambda *_: None)
    audio, checked = _look_at_clips(metadata, clip_task, folder, processes, progress)
    judge = partial(_judge_lines, metadata, audio)
    limits = limits or ClipLimits()
    tokens, unknown = _count_characters(metadata)
    ids = TextIds(np.zeros(0, np.uint16), np.zeros(len(metadata) + 1, np.int64))
    if callable(vocabulary):
        usable, _ = judge(ids, tokens, unknown, replace(limits, max_tokens=sys.maxsize))
        vocabulary = vocabulary(usable) if len(usable) else None
    if vocabulary is not None:
        ids, unknown = tokenise_texts(
            metadata.text, metadata.language, vocabulary, processes=processes, progress=progress
        )
        tokens = np.diff(ids.offsets)
    corpus, drops = judge(ids, tokens, unknown, limits)
    drops = [*metadata.malformed, *drops]
    report = DropReport(
        lines=len(metadata) + len(metadata.malformed), kept_seconds=corpus.total_seconds, drops=tuple(drops)
    )
    if strict:
        report.refuse_drops()
    if len(corpus) == 0:
        broken = limits.describe(report.group_by_reason())
        raise CorpusError(
            f"{path}: no clip can be used.\n{report.format_table()}" + (f"\nLimits: {broken}." if broken else "")
        )
    _log.log(logging.WARNING if report.drops else logging.INFO, "%s:\n%s", path, report.format_table())
    _log.info("What was found out is kept in %s.", folder or "memory only")
    return ScanResult(corpus, report, checked, folder, vocabulary)


def make_clip_check() -> Work:
    """The work of `CLIP_TASK`."""

    def check_audio(path: str) -> list[int | str]:
        try:
            info = check_clip(path, most_seconds=LONGEST_DECODED_SECONDS)
        except ClipError as error:
            return [0, 0, error.reason.value]
        return [info.frames, info.rate_hz, ""]

    return check_audio


def _look_at_clips(
    metadata: Metadata, task: ProcessTask, folder: Path | None, processes: int, progress: Progress
) -> tuple[NDArray[np.int64], int]:
    """The `_FACTS` of every row, zero where they are not wanted, and how many rows were not known before.

    They come from the index in this folder, unless a file's size or time of change is another one, else from processes.
    """
    # The version, because a later one may judge clips in another way, and the reasons, which are kept by their numbers.
    identity = "\0".join([__version__, *_REASONS, task.factory, json.dumps(task.settings, sort_keys=True)])
    index = ClipIndex(folder, f"clips-{digest64(identity.encode()) & (1 << 64) - 1:016x}", _FACTS)
    keys = hash_words(metadata.key, metadata.size_bytes, metadata.mtime_ns).view(np.int64)
    is_wanted = metadata.is_found & ~metadata.is_repeated & ~metadata.is_linked
    facts, known = index.find(keys)
    facts[~(known & is_wanted)] = 0
    pending = np.flatnonzero(is_wanted & ~known)
    if not len(pending):
        return facts, 0
    progress("audio", 0, len(pending))
    paths = (f"{metadata.root}/{metadata.audio[int(row)]}" for row in pending)
    # In processes, were it a single one: a damaged file may crash the library that reads it.
    results = run_task(task, paths, min(processes, -(-len(pending) // CHUNK_ITEMS)))
    unsaved: list[NDArray[np.intp]] = []
    done = saved = 0
    for chunk in iter(lambda: list(islice(results, CHUNK_ITEMS)), []):
        rows = pending[[position for position, _ in chunk]]
        numbers, is_lasting = zip(*(_encode_clip(result) for _, result in chunk), strict=True)
        facts[rows] = numbers
        unsaved.append(rows[list(is_lasting)])
        done += len(rows)
        # Ever more at a time: files must stay few, and who is killed shall lose no more than an eighth.
        if done - saved >= done // 8 or done == len(pending):
            fresh = np.concatenate(unsaved)
            index.append(np.column_stack([keys[fresh], facts[fresh]]))
            unsaved, saved = [], done
        progress("audio", done, len(pending))
    return facts, len(pending)


def _encode_clip(result: Any) -> tuple[list[int], bool]:
    """The `_FACTS` of a clip, and whether they may be remembered."""
    if isinstance(result, Crashed):
        # It may have been the machine's fault: ask again next time.
        return [0, 0, 1 + _REASONS.index(DropReason.CORRUPT)], False
    frames, rate_hz, problem = result
    # Permission to read can be given, and a mount come back, without touching the file: neither is ever remembered.
    is_lasting = problem not in (DropReason.MISSING, DropReason.UNREADABLE)
    return [frames, rate_hz, 1 + _REASONS.index(DropReason(problem)) if problem else 0], is_lasting


def _count_characters(metadata: Metadata) -> tuple[NDArray[np.int64], NDArray[np.int32]]:
    """The texts' lengths, where every character is a token, and what `tokenise_texts` says of their characters then."""
    lengths = np.fromiter(map(len, metadata.text), dtype=np.int64, count=len(metadata))
    is_read = np.array([0 if name in CHARACTER_LIMITS else NO_LANGUAGE for name in metadata.language.names], np.int32)
    return lengths, is_read[metadata.language.codes]


# From facts to a verdict on every line.


def _judge_lines(
    metadata: Metadata,
    audio: NDArray[np.int64],
    ids: TextIds,
    tokens: NDArray[np.int64],
    unknown: NDArray[np.int32],
    limits: ClipLimits,
) -> tuple[Corpus, list[Drop]]:
    """The clips that can be used, and every line that gives none, with the first reason found."""
    frames, rate_hz, problem = audio.T
    # Rounded up, as the resampler does.
    samples = -(-frames * SAMPLE_RATE_HZ // np.maximum(rate_hz, 1))
    verdict = np.full(len(metadata), -1, dtype=np.int8)
    tests: list[tuple[DropReason, NDArray[np.bool_]]] = [
        (DropReason.MISSING, ~metadata.is_found),
        (DropReason.SYMLINK, metadata.is_linked),
        (DropReason.DUPLICATE, metadata.is_repeated),
        *((reason, problem == number) for number, reason in enumerate(_REASONS, start=1)),
        (DropReason.TOO_SHORT, samples < limits.min_seconds * SAMPLE_RATE_HZ),
        (DropReason.TOO_LONG, samples > limits.max_samples),
        (DropReason.LANGUAGE, unknown == NO_LANGUAGE),
        (DropReason.TEXT_EMPTY, tokens == 0),
        (DropReason.UNKNOWN_CHARACTERS, unknown != 0),
        (DropReason.TEXT_TOO_LONG, tokens > limits.max_tokens),
    ]
    for reason, applies in tests:
        verdict[applies & (verdict < 0)] = _REASONS.index(reason)
    kept = np.flatnonzero(verdict < 0)
    corpus = Corpus(
        root=metadata.root,
        audio=metadata.audio.take(kept),
        text=metadata.text.take(kept),
        speaker=metadata.speaker.take(kept),
        language=metadata.language.take(kept),
        samples=samples[kept],
        tokens=tokens[kept].astype(np.int32),
        ids=ids.take(kept),
        size_bytes=metadata.size_bytes[kept],
        mtime_ns=metadata.mtime_ns[kept],
    )

    def describe(reason: DropReason, row: int) -> str:
        if reason in (DropReason.TOO_SHORT, DropReason.TOO_LONG):
            return f"{samples[row] / SAMPLE_RATE_HZ:.2f} s"
        if reason is DropReason.LANGUAGE:
            return metadata.language[row]
        if reason is DropReason.TEXT_TOO_LONG:
            return f"{tokens[row]} tokens"
        return f"{chr(unknown[row])!r} U+{unknown[row]:04X}" if reason is DropReason.UNKNOWN_CHARACTERS else ""

    drops = [
        Drop(reason, metadata.audio[row], metadata.describe_line(row), describe(reason, row))
        for row in np.flatnonzero(verdict >= 0).tolist()
        for reason in [_REASONS[verdict[row]]]
    ]
    return corpus, drops
