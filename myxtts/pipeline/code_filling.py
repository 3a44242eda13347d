"""Codes made ahead of a run, on the device of the caller's scope, into the cache that the run will read.

They are those that the run would make: of the same clips, by the same `CodeMaker`, under the same ids.

Shapes: B rows, S samples.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
import tensorflow as tf
from numpy.typing import NDArray

from myxtts.audio.units import SAMPLES_PER_CODE
from myxtts.config import DataConfig
from myxtts.data.buckets import Bucket
from myxtts.data.clip_loading import LoadFailure, find_clip_file
from myxtts.data.code_cache import CacheFolderError, ClipIds, CodeCache
from myxtts.data.corpus import Corpus, Progress
from myxtts.data.drops import Drop
from myxtts.data.errors import TooManyFailuresError
from myxtts.data.loading import Load, LoadingEngine
from myxtts.data.open_engine import ReadAhead, open_engine
from myxtts.data.reader import MOST_FAILED_SHARE, RECENT_CLIPS
from myxtts.data.run_data import RunData
from myxtts.data.sampler import IndexSampler
from myxtts.pipeline.clip_part import ClipPart
from myxtts.pipeline.code_cache import identify_clips
from myxtts.pipeline.code_maker import CodeMaker
from myxtts.pipeline.order import Kind
from myxtts.pipeline.preparation import CACHED_ROWS

LOADS_AHEAD = 16

Clips = NDArray[np.intp]


@dataclass
class FilledCodes:
    """What became of the clips of a part."""

    known: int = 0
    """Their codes were there already."""
    made: int = 0
    failed: list[Drop] = field(default_factory=list)
    """Clips that could not be read, though their scan found nothing wrong with them."""

    @property
    def clips(self) -> int:
        """All that were tried or known."""
        return self.known + self.made + len(self.failed)


class _Group(NamedTuple):
    """Clips that are loaded and encoded together."""

    corpus: Corpus
    ids: ClipIds
    clips: Clips
    bucket: Bucket


def fill_codes(
    data: RunData, config: DataConfig, maker: CodeMaker, part: ClipPart, progress: Progress = lambda *_: None
) -> FilledCodes:
    """Makes the codes of a part's clips that the maker's cache does not have yet, and keeps them there.

    What is kept stays, however this ends: called again, it goes on where it was.

    Args:
        data: the clips of the run, training and validation.
        config: how clips are read.
        maker: with its cache, on disk.
        progress: called with "codes", how many clips are done, and how many there are.

    Raises:
        CacheFolderError: codes cannot be written any more.
        TooManyFailuresError: so many clips cannot be read that the disk may be gone.
    """
    assert maker.cache is not None
    filled = FilledCodes()
    groups: list[_Group] = []
    ids = identify_clips(data)
    for kind, corpus, sampler in (
        (Kind.TRAIN, data.train, data.sampler),
        (Kind.VALIDATION, data.validation, data.validation_sampler),
    ):
        own = part.choose(ids[kind])
        missing = _find_missing(maker.cache, ids[kind], own)
        filled.known += len(own) - len(missing)
        if sampler is not None:
            groups += _group_clips(corpus, ids[kind], sampler, missing)
    total = filled.known + sum(len(group.clips) for group in groups)
    if groups:
        with _open_engine(data, config, groups) as engine:
            for group, load in _load_ahead(engine, groups):
                _note_failures(filled, group, _clear_failures(engine, load))
                filled.made += _encode(maker, group, engine, load)
                _require_kept(maker.cache)
                progress("codes", filled.clips, total)
        maker.cache.save()
        _require_kept(maker.cache)
    return filled


def _find_missing(cache: CodeCache, ids: ClipIds, clips: Clips) -> Clips:
    """Those of some clips whose codes the cache does not have."""
    return clips[[codes is None for codes in cache.get_many(ids[clips])]] if len(clips) else clips


def _group_clips(corpus: Corpus, ids: ClipIds, sampler: IndexSampler, clips: Clips) -> list[_Group]:
    """Clips by bucket, so many as a run with a cache encodes together."""
    numbers = sampler.plan.bucket_of_clip[clips]
    groups = []
    for number in np.unique(numbers).tolist():
        bucket, own = sampler.plan.buckets[number], clips[numbers == number]
        rows = _count_rows(bucket)
        groups += [_Group(corpus, ids, own[first : first + rows], bucket) for first in range(0, len(own), rows)]
    return groups


def _count_rows(bucket: Bucket) -> int:
    return min(bucket.rows, CACHED_ROWS)


def _open_engine(data: RunData, config: DataConfig, groups: Sequence[_Group]) -> LoadingEngine:
    slot_samples = max(_count_rows(group.bucket) * group.bucket.samples for group in groups)
    corpora = [corpus for corpus in (data.train, data.validation) if len(corpus)]
    return open_engine(config, corpora, ReadAhead(LOADS_AHEAD, slot_samples))


def _load_ahead(engine: LoadingEngine, groups: Sequence[_Group]) -> Iterator[tuple[_Group, Load]]:
    """Each group with its finished load, while those behind it are being read."""
    loads: deque[Load] = deque()
    for number, group in enumerate(groups):
        for next_group in groups[number + len(loads) : number + LOADS_AHEAD]:
            loads.append(_start_load(engine, next_group))
        load = loads.popleft()
        engine.finish(load)
        yield group, load


def _start_load(engine: LoadingEngine, group: _Group) -> Load:
    files = [find_clip_file(group.corpus, clip) for clip in group.clips.tolist()]
    # Always as many rows, so that a bucket is one shape.
    empty = [None] * (_count_rows(group.bucket) - len(files))
    return engine.start([*files, *empty], group.bucket.samples)


def _clear_failures(engine: LoadingEngine, load: Load) -> dict[int, LoadFailure]:
    """What failed, by row; those rows are now empty."""
    failures = dict(load.failures)
    for row in failures:
        engine.retry(load, row, None)
    engine.finish(load)
    return failures


def _encode(maker: CodeMaker, group: _Group, engine: LoadingEngine, load: Load) -> int:
    """Makes and keeps the codes of a load's clips, and returns how many there were."""
    lengths_B = np.array([0 if file is None else file.samples for file in load.files], np.int32)
    samples = {row: (row, length) for row, length in enumerate(lengths_B.tolist()) if length}
    # `tf.constant` copies. The engine uses the memory of a load again.
    started = maker.start(tf.constant(engine.take(load)), tf.constant(lengths_B), samples)
    maker.keep(group.ids[group.clips], maker.finish(started, -(-lengths_B // SAMPLES_PER_CODE)))
    return len(samples)


def _note_failures(filled: FilledCodes, group: _Group, failures: dict[int, LoadFailure]) -> None:
    for row, failure in failures.items():
        name = group.corpus.audio[int(group.clips[row])]
        filled.failed.append(Drop(failure.reason, name, "making codes", failure.detail))
    tried, failed = filled.made + len(filled.failed), len(filled.failed)
    if failures and failed > MOST_FAILED_SHARE * max(RECENT_CLIPS, tried):
        raise TooManyFailuresError(
            f"Of {tried} clips {failed} could not be read, though the scan found nothing wrong with them, the last of them "
            f"{filled.failed[-1].file} ({filled.failed[-1].detail}). Is the disk still there? If the corpus was changed, start "
            "again: the codes that were made are kept."
        )


def _require_kept(cache: CodeCache) -> None:
    if cache.write_problem is not None:
        raise CacheFolderError(
            "Codes can no longer be written; the warning above says where and why. Make room there and start again: those that "
            "were written are not made again."
        )
