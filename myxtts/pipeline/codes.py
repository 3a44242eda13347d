"""The frozen DVAE's codes of clips: made on the device of the caller's scope, or found in a cache; in a run, or ahead of it.

Those that are made ahead of a run are those that it would make: of the same clips, by the same `CodeMaker`, under the same ids.

Shapes: B rows, S samples, F mel frames, M mel bands.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf
from numpy.typing import NDArray

from myxtts.audio.mels import compute_dvae_mel
from myxtts.audio.units import FRAMES_PER_CODE, SAMPLES_PER_CODE
from myxtts.checkpoints import ModelFileError, read_array, read_model_directory
from myxtts.checkpoints.model_directory import require_weights
from myxtts.config import DataConfig
from myxtts.data.buckets import Bucket
from myxtts.data.clip_loading import find_clip_file
from myxtts.data.code_cache import DTYPE, CacheFolderError, ClipIds, CodeCache
from myxtts.data.corpus import Corpus, Progress
from myxtts.data.drops import Drop
from myxtts.data.errors import TooManyFailuresError
from myxtts.data.loading import Load, LoadingEngine
from myxtts.data.open_engine import ReadAhead, open_engine
from myxtts.data.reader import MOST_FAILED_SHARE, RECENT_CLIPS
from myxtts.data.run_data import RunData
from myxtts.data.sampler import IndexSampler
from myxtts.models.build import build_dvae
from myxtts.models.dvae import DVAE
from myxtts.models.names import load_checkpoint_arrays
from myxtts.pipeline.code_choice import WIDTH_STEP_CODES, choose_code_width, identify_clips
from myxtts.pipeline.order import Kind
from myxtts.pipeline.recipe import ClipPart

Codes = NDArray[np.integer[Any]]
"""Of one clip, as many as it has."""
Clips = NDArray[np.intp]

CACHED_ROWS = 4
"""Rows encoded together where most codes come from a cache: few go to waste."""
LOADS_AHEAD = 16


class Codec(NamedTuple):
    """A frozen DVAE."""

    dvae: DVAE
    weights: dict[str, NDArray[Any]]
    """By their names in a checkpoint."""


def load_codec(folder: Path) -> Codec:
    """The codec of a model directory, built on the device of the caller's scope."""
    directory = read_model_directory(folder, verify_checksums=False)
    if directory.dvae is None:
        raise ModelFileError(folder, "holds no codec (dvae.safetensors). Give a folder that has one by --codec.")
    require_weights(directory)
    arrays = {name: read_array(tensor) for name, tensor in directory.dvae.items()}
    dvae = build_dvae(directory.config.model, seed=None)
    load_checkpoint_arrays(dvae, arrays).require_complete()
    return Codec(dvae, arrays)


class ShapedFunction:
    """Calls a function of tensors as a graph, traced once for every combination of their shapes.

    Unlike a bare `tf.function` it does not warn of many traces: every shape there is, is traced on purpose.
    """

    def __init__(self, function: Callable[..., Any]):
        self._function = tf.function(function, autograph=False)
        self._traces: dict[tuple[Any, ...], Any] = {}

    @property
    def traces(self) -> int:
        return len(self._traces)

    def __call__(self, *tensors: Any) -> Any:
        key = tuple(tuple(tensor.shape) for tensor in tensors)
        trace = self._traces.get(key)
        if trace is None:
            trace = self._traces[key] = self._function.get_concrete_function(*tensors)
        return trace(*tensors)


class CodeMaker:
    """Makes codes, and keeps those of clips that stay as they are.

    Args:
        dvae: built and loaded on the device of the scope in which this is used.
        mel_norms: the codec's.
    """

    def __init__(self, dvae: DVAE, mel_norms: NDArray[np.float32]):
        assert dvae.size.codes <= np.iinfo(DTYPE).max, dvae.size.codes
        self.cache: CodeCache | None = None
        """Of codes; None makes them every time."""
        self._dvae = dvae
        self._mel_norms = mel_norms
        self._compute_mel = ShapedFunction(self._trace_mel)
        self._encode = ShapedFunction(self._trace_encode)

    def find_known(self, clip_ids: ClipIds, rows: Sequence[int]) -> dict[int, Codes]:
        """The codes that the cache has of some rows, by row."""
        assert self.cache is not None
        found = zip(rows, self.cache.get_many(clip_ids[list(rows)]), strict=True)
        return {row: codes for row, codes in found if codes is not None}

    def start(self, wav_BS: Any, lengths_B: Any, samples: Mapping[int, tuple[int, int]]) -> dict[int, Any]:
        """Starts to make the codes of some rows; `finish` waits for them.

        Args:
            samples: of each row to be made, by its number: its place in `wav_BS`, and its length.
        """
        mel_BFM = self._compute_mel(wav_BS, lengths_B)
        return {
            row: self._encode(mel_BFM[place, : choose_code_width(length) * FRAMES_PER_CODE])
            for row, (place, length) in samples.items()
        }

    def finish(self, started: Mapping[int, Any], counts_B: NDArray[np.int32]) -> dict[int, Codes]:
        """The codes of rows that were started, cut to their clips' own."""
        return {row: codes.numpy()[: counts_B[row]] for row, codes in started.items()}

    def keep(self, clip_ids: ClipIds, codes: Mapping[int, Codes]) -> None:
        """Puts codes by row into the cache."""
        assert self.cache is not None
        if codes:
            self.cache.put_many(clip_ids[list(codes)], list(codes.values()))

    def warm_up(self, shapes: Iterable[tuple[int, int]], widths: Iterable[int]) -> None:
        """Traces everything for groups of these rows and samples, and clips of these widths."""
        for shape in shapes:
            self._compute_mel(tf.zeros(shape), tf.zeros(shape[:1], tf.int32))
        for width in widths:
            self._encode(tf.zeros((width * FRAMES_PER_CODE, len(self._mel_norms))))

    def count_traces(self) -> int:
        """How often something was traced."""
        return self._compute_mel.traces + self._encode.traces

    def _trace_mel(self, wav_BS: Any, lengths_B: Any) -> Any:
        mel_BFM, _ = compute_dvae_mel(wav_BS, lengths_B, self._mel_norms)
        # The last frame is one of silence, and a clip's width may reach that much beyond its bucket's.
        more = (WIDTH_STEP_CODES - 1) * FRAMES_PER_CODE
        return tf.concat([mel_BFM, tf.repeat(mel_BFM[:, -1:], more, axis=1)], axis=1)

    def _trace_encode(self, mel_FM: Any) -> Any:
        return tf.cast(self._dvae.encode(mel_FM[None])[0], tf.int32)


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
        missing = own[[codes is None for codes in maker.cache.get_many(ids[kind][own])]] if len(own) else own
        filled.known += len(own) - len(missing)
        if sampler is not None:
            groups += _group_clips(corpus, ids[kind], sampler, missing)
    total = filled.known + sum(len(group.clips) for group in groups)
    if groups:
        slot_samples = max(_count_rows(group.bucket) * group.bucket.samples for group in groups)
        corpora = [corpus for corpus in (data.train, data.validation) if len(corpus)]
        with open_engine(config, corpora, ReadAhead(LOADS_AHEAD, slot_samples)) as engine:
            for group, load in _load_ahead(engine, groups):
                _note_failures(filled, group, engine, load)
                filled.made += _encode(maker, group, engine, load)
                _require_kept(maker.cache)
                progress("codes", filled.clips, total)
        maker.cache.save()
        _require_kept(maker.cache)
    return filled


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


def _encode(maker: CodeMaker, group: _Group, engine: LoadingEngine, load: Load) -> int:
    """Makes and keeps the codes of a load's clips, and returns how many there were."""
    lengths_B = np.array([0 if file is None else file.samples for file in load.files], np.int32)
    samples = {row: (row, length) for row, length in enumerate(lengths_B.tolist()) if length}
    # `tf.constant` copies. The engine uses the memory of a load again.
    started = maker.start(tf.constant(engine.take(load)), tf.constant(lengths_B), samples)
    maker.keep(group.ids[group.clips], maker.finish(started, -(-lengths_B // SAMPLES_PER_CODE)))
    return len(samples)


def _note_failures(filled: FilledCodes, group: _Group, engine: LoadingEngine, load: Load) -> None:
    """Notes what could not be read; those rows of the load are empty then."""
    failures = dict(load.failures)
    for row, failure in failures.items():
        engine.retry(load, row, None)
        name = group.corpus.audio[int(group.clips[row])]
        filled.failed.append(Drop(failure.reason, name, "making codes", failure.detail))
    engine.finish(load)
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
