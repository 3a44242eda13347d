"""Looks at every clip of a corpus once: what can be used, what cannot, and how long it is.

Workers find out facts, not verdicts, so that other limits need no other scan. What they found is kept in an index, so that
nothing is looked at twice.
"""

from __future__ import annotations

import hashlib
import json
import logging
import sys
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass, replace
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from myxtts import __version__
from myxtts.audio.reading import check_clip, inspect_clip
from myxtts.config import XTTSConfig
from myxtts.data.corpus import Corpus, Progress
from myxtts.data.drops import Drop, DropReport
from myxtts.data.index import MOST_ROWS, Index, choose_index_folder
from myxtts.data.ljspeech import LocatedClips, Metadata, Split, demo_corpus_path, locate_clips, read_metadata
from myxtts.data.task_processes import CHUNK_ITEMS, Crashed, ProcessTask, Work, count_cores, run_task
from myxtts.errors import (
    ClipError,
    CorpusError,
    DropReason,
    MissingLanguageTagError,
    ReadingError,
    UnsupportedLanguageError,
)
from myxtts.files import read_bytes
from myxtts.hashing import digest64
from myxtts.text.normalise import CHARACTER_LIMITS
from myxtts.text.tokenizer import Tokenizer
from myxtts.units import SAMPLE_RATE_HZ

_log = logging.getLogger(__name__)

TextTaskMaker = Callable[[Corpus], ProcessTask]
"""Chooses how texts are measured, given the clips that can be used as far as their audio is concerned."""

CLIP_TASK = ProcessTask("myxtts.data.scan:make_clip_check")
"""Takes a path; gives frames, rate in Hz, and a `DropReason` or nothing."""

LONGEST_DECODED_SECONDS = 120.0
"""Longer than any model's limit: such a file is too long whatever is in it, and may not fit into memory."""

_NO_LANGUAGE = -1
"""Given as a text's length where the vocabulary has no tag for its language, or nobody can clean it."""

_REASONS = tuple(DropReason)
# Numbers in files on disk: never give one a new meaning. 0 is no problem.
_PROBLEMS = {
    1: DropReason.MISSING,
    2: DropReason.EMPTY,
    3: DropReason.UNSUPPORTED,
    4: DropReason.CORRUPT,
    5: DropReason.TRUNCATED,
    6: DropReason.NAN,
    7: DropReason.SILENT,
    8: DropReason.UNREADABLE,
}
_PROBLEM_CODES = {reason: code for code, reason in _PROBLEMS.items()}


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
    linked: int
    """Clips that are symbolic links, or lie behind one."""
    kept_in: Path | None
    """Where all this is remembered, for whoever looks at the corpus next."""


def scan_train_data(
    config: XTTSConfig, text_task: ProcessTask | TextTaskMaker, progress: Progress | None = None
) -> ScanResult:
    """The clips of `data.train_data`, or of the demo corpus where none is given."""
    path = Path(config.data.train_data) if config.data.train_data else demo_corpus_path()
    return _scan_as_asked(config, path, "train", text_task, progress)


def scan_val_data(config: XTTSConfig, text_task: ProcessTask, progress: Progress | None = None) -> ScanResult:
    """The clips of `data.val_data`, which must be given."""
    assert config.data.val_data
    return _scan_as_asked(config, Path(config.data.val_data), "eval", text_task, progress)


def _scan_as_asked(
    config: XTTSConfig, path: Path, split: Split, text_task: ProcessTask | TextTaskMaker, progress: Progress | None
) -> ScanResult:
    data = config.data
    return scan_corpus(
        path,
        split=split,
        language=data.language,
        limits=ClipLimits(
            min_seconds=data.min_clip_seconds,
            max_samples=int(data.max_clip_seconds * SAMPLE_RATE_HZ),
            max_tokens=data.max_text_length,
        ),
        text_task=text_task,
        follow_symlinks=data.follow_symlinks,
        strict=data.strict,
        workers=choose_scan_workers(config),
        progress=progress,
    )


def choose_scan_workers(config: XTTSConfig) -> int:
    """How many processes look at clips."""
    return count_cores() if config.data.num_workers == "auto" else config.data.num_workers


def scan_corpus(
    path: Path,
    *,
    split: Split = "train",
    language: str = "en",
    limits: ClipLimits | None = None,
    text_task: ProcessTask | TextTaskMaker | None = None,
    clip_task: ProcessTask = CLIP_TASK,
    follow_symlinks: bool = True,
    strict: bool = False,
    workers: int | None = None,
    index_folder: Path | None = None,
    progress: Progress | None = None,
) -> ScanResult:
    """Read a corpus's metadata and look at every clip that no earlier scan has seen.

    A killed scan goes on where it was. Logs the drop report.

    Args:
        path, split, language: as for `read_metadata`.
        text_task: how texts are measured: `make_vocabulary_task`, or what makes one from the clips, such as a new vocabulary.
            Without it every character is a token.
        strict: make it an error to set anything aside.
        workers: processes; None is one per core, 0 is this process.
        index_folder: where results are remembered; None is where `choose_index_folder` says.
    """
    metadata = read_metadata(path, split=split, language=language)
    clips = locate_clips(metadata)
    linked = int(clips.is_linked.sum())
    if linked:
        what = "they are followed" if follow_symlinks else "they are set aside, as --no-follow-symlinks asks"
        _log.info(
            "%d of %d clips lie behind symbolic links, such as %s: %s.", linked, len(metadata), clips.first_link, what
        )
    is_wanted = clips.is_found & ~clips.is_repeated & (follow_symlinks | ~clips.is_linked)
    folder = choose_index_folder(metadata.root, given=index_folder)
    ask = partial(_ask, folder=folder, workers=count_cores() if workers is None else workers, progress=progress)
    judge = partial(_judge_lines, metadata, clips, follow_symlinks)
    limits = limits or ClipLimits()
    audio, checked = ask(_ask_about_audio(metadata, clips, is_wanted, clip_task))
    if not isinstance(text_task, ProcessTask | None):
        usable, _ = judge(audio, _count_characters(metadata), replace(limits, max_tokens=sys.maxsize))
        text_task = text_task(usable) if len(usable) else None
    texts = ask(_ask_about_texts(metadata, text_task))[0] if text_task else _count_characters(metadata)
    corpus, drops = judge(audio, texts, limits)
    drops = [*metadata.malformed, *drops]
    report = DropReport(
        lines=len(metadata) + len(metadata.malformed), kept_seconds=corpus.total_seconds, drops=tuple(drops)
    )
    _judge_report(path, report, corpus, limits, strict)
    _log.info("What was found out is kept in %s.", folder or "memory only")
    return ScanResult(corpus, report, checked, linked, folder)


def _judge_report(path: Path, report: DropReport, corpus: Corpus, limits: ClipLimits, strict: bool) -> None:
    if strict:
        report.refuse_drops()
    if len(corpus) == 0:
        broken = limits.describe(report.group_by_reason())
        raise CorpusError(
            f"{path}: no clip can be used.\n{report.format_table()}" + (f"\nLimits: {broken}." if broken else "")
        )
    _log.log(logging.WARNING if report.drops else logging.INFO, "%s:\n%s", path, report.format_table())


# What workers are asked.


def make_vocabulary_task(vocabulary: Path) -> ProcessTask:
    """Measures texts in tokens of a vocabulary."""
    # A file that is no vocabulary is refused here, once, and not by every worker.
    Tokenizer(vocabulary)
    digest = hashlib.blake2b(read_bytes(vocabulary), digest_size=8).hexdigest()
    return ProcessTask("myxtts.data.scan:make_vocabulary_check", {"vocabulary": str(vocabulary)}, identity=digest)


def make_clip_check() -> Work:
    """The work of `CLIP_TASK`."""

    def check_audio(path: str) -> list[int | str]:
        try:
            info = inspect_clip(path)
            if info.seconds <= LONGEST_DECODED_SECONDS:
                check_clip(path)
        except ClipError as error:
            return [0, 0, error.reason.value]
        return [info.frames, info.rate_hz, ""]

    return check_audio


def make_vocabulary_check(vocabulary: str) -> Work:
    """The work of `make_vocabulary_task`: takes a text and its language; gives its length in tokens, and the first character that
    the vocabulary lacks or nothing."""
    tokenizer = Tokenizer(vocabulary)

    def check_text(item: list[str]) -> list[int | str]:
        text, language = item
        try:
            cleaned = tokenizer.clean(text, language)
            tokens = len(tokenizer.encode_cleaned(cleaned, language)) if cleaned else 0
        except (UnsupportedLanguageError, MissingLanguageTagError):
            return [_NO_LANGUAGE, ""]
        return [tokens, *(tokenizer.find_unknown_characters(cleaned)[:1] or ("",))]

    return check_text


@dataclass(frozen=True, eq=False)
class _Question:
    """What is to be known about every row."""

    kind: str
    task: ProcessTask
    keys: NDArray[np.int64]
    stamps: NDArray[np.int64]
    """A row of numbers for each key, with which what is remembered must agree."""
    wanted: NDArray[np.bool_]
    make_item: Callable[[int], Any]
    """What workers get, by row."""
    encode: Callable[[Any], tuple[list[int], bool]]
    """A worker's result as numbers, and whether it may be remembered."""
    bounds: tuple[tuple[int, int], ...]
    """Of each number."""
    worth_a_worker: int
    """So many items pay for starting a process; with fewer, this process does them."""


def _ask_about_audio(
    metadata: Metadata, clips: LocatedClips, is_wanted: NDArray[np.bool_], task: ProcessTask
) -> _Question:
    """Frames, rate in Hz and a key of `_PROBLEMS`. A file is read again only when its size or time of change is another one."""
    return _Question(
        kind="audio",
        task=task,
        keys=clips.key,
        stamps=np.stack([clips.size_bytes, clips.mtime_ns], axis=1),
        wanted=is_wanted,
        make_item=lambda row: f"{metadata.root}/{clips.path[row]}",
        encode=_encode_clip,
        bounds=((0, 1 << 40), (0, 1 << 40), (0, max(_PROBLEMS))),
        # Even one: a damaged file may crash the library that reads it.
        worth_a_worker=1,
    )


def _encode_clip(result: Any) -> tuple[list[int], bool]:
    if isinstance(result, Crashed):
        # It may have been the machine's fault: ask again next time.
        return [0, 0, _PROBLEM_CODES[DropReason.CORRUPT]], False
    frames, rate_hz, problem = result
    # Permission to read can be given, and a mount come back, without touching the file: neither is ever remembered.
    is_lasting = problem not in (DropReason.MISSING, DropReason.UNREADABLE)
    return [frames, rate_hz, _PROBLEM_CODES[problem] if problem else 0], is_lasting


def _ask_about_texts(metadata: Metadata, task: ProcessTask) -> _Question:
    """The length in tokens or `_NO_LANGUAGE`, and the code point of the first character the vocabulary lacks, or 0."""
    texts, languages = metadata.text, metadata.language
    prefixes = [f"{name}\0".encode() for name in languages.names]
    contents = (prefixes[code] + text for code, text in zip(languages.codes.data, texts.iter_bytes(), strict=True))
    return _Question(
        kind="text",
        task=task,
        keys=np.fromiter(map(digest64, contents), dtype=np.int64, count=len(texts)),
        stamps=np.zeros((len(texts), 0), dtype=np.int64),
        wanted=np.ones(len(texts), dtype=np.bool_),
        make_item=lambda row: [texts[row], languages[row]],
        encode=_encode_text,
        bounds=((_NO_LANGUAGE, 1 << 31), (0, sys.maxunicode)),
        worth_a_worker=2000,
    )


def _count_characters(metadata: Metadata) -> NDArray[np.int64]:
    """What `_ask_about_texts` asks for, where every character is a token."""
    is_known = np.array([name in CHARACTER_LIMITS for name in metadata.language.names], dtype=np.bool_)
    lengths = np.fromiter(map(len, metadata.text), dtype=np.int64, count=len(metadata))
    lengths[~is_known[metadata.language.codes]] = _NO_LANGUAGE
    return np.stack([lengths, np.zeros_like(lengths)], axis=1)


def _encode_text(result: Any) -> tuple[list[int], bool]:
    if isinstance(result, Crashed):
        raise ReadingError(f"A text killed its worker process with signal {result.signal}: a library is broken.")
    tokens, unknown = result
    return [tokens, ord(unknown) if unknown else 0], True


def _ask(
    question: _Question, *, folder: Path | None, workers: int, progress: Progress | None
) -> tuple[NDArray[np.int64], int]:
    """The numbers of every row, zero where they are not wanted, and how many rows were not known before.

    They come from the index in this folder as far as they are known, else from workers.
    """
    progress = progress or (lambda *_: None)
    with Index(folder / _name_index(question) if folder else None, question.stamps.shape[1], question.bounds) as index:
        values, known = index.find(question.keys, question.stamps)
        values[~(known & question.wanted)] = 0
        pending = np.flatnonzero(question.wanted & ~known)
        if not len(pending):
            return values, 0
        progress(question.kind, 0, len(pending))
        answers = _collect_answers(question, pending, min(workers, len(pending) // question.worth_a_worker))
        unsaved: list[NDArray[np.intp]] = []
        done = saved = 0
        for rows, numbers, is_lasting in answers:
            values[rows] = numbers
            unsaved.append(rows[is_lasting])
            done += len(rows)
            # Ever more at a time: a write costs as much as a hundred rows, and who is killed must not lose much of what was done.
            if done - saved >= min(done // 16, MOST_ROWS) or done == len(pending):
                fresh = np.concatenate(unsaved)
                index.append(np.column_stack([question.keys[fresh], question.stamps[fresh], values[fresh]]))
                unsaved, saved = [], done
            progress(question.kind, done, len(pending))
    return values, len(pending)


def _collect_answers(
    question: _Question, pending: NDArray[np.intp], workers: int
) -> Iterator[tuple[NDArray[np.intp], list[list[int]], list[bool]]]:
    """Chunks of rows, their numbers, and whether these may be remembered."""
    results = run_task(question.task, map(question.make_item, map(int, pending)), workers)
    for chunk in iter(lambda: list(islice(results, CHUNK_ITEMS)), []):
        numbers, is_lasting = zip(*(question.encode(result) for _, result in chunk), strict=True)
        yield pending[[position for position, _ in chunk]], list(numbers), list(is_lasting)


def _name_index(question: _Question) -> str:
    # The version, because a later one may clean texts or judge clips in another way.
    task = question.task
    identity = "\0".join([__version__, task.factory, task.identity or json.dumps(task.settings, sort_keys=True)])
    return f"{question.kind}-{digest64(identity.encode()) & (1 << 64) - 1:016x}.sqlite"


# From facts to a verdict on every line.


def _judge_lines(
    metadata: Metadata,
    clips: LocatedClips,
    follow_symlinks: bool,
    audio: NDArray[np.int64],
    texts: NDArray[np.int64],
    limits: ClipLimits,
) -> tuple[Corpus, list[Drop]]:
    """The clips that can be used, and every line that cannot, with the first reason found."""
    frames, rate_hz, problem = audio.T
    tokens, unknown = texts.T
    # Rounded up, as the resampler does.
    samples = -(-frames * SAMPLE_RATE_HZ // np.maximum(rate_hz, 1))
    verdict = np.full(len(metadata), -1, dtype=np.int8)
    tests: list[tuple[DropReason, NDArray[np.bool_]]] = [
        (DropReason.MISSING, ~clips.is_found),
        (DropReason.SYMLINK, clips.is_linked & (not follow_symlinks)),
        (DropReason.DUPLICATE, clips.is_repeated),
        *((reason, problem == code) for code, reason in _PROBLEMS.items()),
        (DropReason.TOO_SHORT, samples < limits.min_seconds * SAMPLE_RATE_HZ),
        (DropReason.TOO_LONG, samples > limits.max_samples),
        (DropReason.LANGUAGE, tokens == _NO_LANGUAGE),
        (DropReason.TEXT_EMPTY, tokens == 0),
        (DropReason.UNKNOWN_CHARACTERS, unknown != 0),
        (DropReason.TEXT_TOO_LONG, tokens > limits.max_tokens),
    ]
    for reason, applies in tests:
        verdict[applies & (verdict < 0)] = _REASONS.index(reason)
    kept = np.flatnonzero(verdict < 0)
    corpus = Corpus(
        root=metadata.root,
        audio=clips.path.take(kept),
        text=metadata.text.take(kept),
        speaker=metadata.speaker.take(kept),
        language=metadata.language.take(kept),
        samples=samples[kept],
        tokens=tokens[kept].astype(np.int32),
        size_bytes=clips.size_bytes[kept],
        mtime_ns=clips.mtime_ns[kept],
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
        Drop(reason, clips.path[row], metadata.describe_line(row), describe(reason, row))
        for row in np.flatnonzero(verdict >= 0).tolist()
        for reason in [_REASONS[verdict[row]]]
    ]
    return corpus, drops
