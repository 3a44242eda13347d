"""The frozen DVAE's codes of clips: made on the device of the caller's scope, or found in a cache; in a run, or ahead of it.

Those that are made ahead of a run are those that it would make: of the same clips, by the same `CodeMaker`, under the same ids.

Shapes: B rows, S samples, F mel frames, M mel bands."""

from __future__ import annotations

import logging
import os
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np
import tensorflow as tf
from numpy.typing import NDArray

from myxtts import __version__
from myxtts.audio.mels import TAIL_CODES, compute_dvae_mel
from myxtts.checkpoints import ModelFileError, read_array, read_model_directory
from myxtts.checkpoints.model_directory import require_weights
from myxtts.config import DataConfig
from myxtts.config.data import CachePolicy
from myxtts.data.code_cache import (
    DTYPE,
    MEMORY_SHARE,
    ClipIds,
    CodeCache,
    CodeKey,
    digest_arrays,
    find_key_folder,
    identify_files,
    list_kept_codes,
    read_free_disk_bytes,
)
from myxtts.data.corpus import Corpus, Progress
from myxtts.data.drops import Drop
from myxtts.data.host_batches import MOST_FAILED_SHARE, RECENT_CLIPS
from myxtts.data.index import choose_index_folder
from myxtts.data.loaders import Load, LoadingEngine, ReadAhead, find_clip_file, open_engine
from myxtts.data.run_data import RunData
from myxtts.data.sampler import IndexSampler, Kind
from myxtts.devices.machine import ONEDNN, read_free_memory_bytes
from myxtts.devices.runtime import Execution, is_on_cpu
from myxtts.errors import MachineError, ReadingError
from myxtts.models.dvae import DVAE
from myxtts.models.weights import load_checkpoint_arrays
from myxtts.models.xtts import build_dvae
from myxtts.pipeline.recipe import BatchRecipe, ClipPart, PreparationSettings
from myxtts.units import FRAMES_PER_CODE, SAMPLE_RATE_HZ, SAMPLES_PER_CODE

_log = logging.getLogger(__name__)


FOLDER_NAME = "codes"
WIDTH_STEP_CODES = 16
"""A clip's mel is as wide as its codes and the silence behind them, rounded up to this, whatever its bucket. In another
width the last bits of a convolution change, and between two codes almost equally near a last bit decides."""

_XLA = "TF_XLA_FLAGS"


class Decision(NamedTuple):
    """Where codes are kept, and why, as a sentence for the log."""

    policy: Literal["off", "memory", "disk"]
    reason: str


def open_cache(data: RunData, recipe: BatchRecipe, key: CodeKey) -> CodeCache | None:
    """The cache that `--cache` means for a run, or None where nothing is kept. The log says which and why."""
    asked, folder = recipe.config.data.cache, recipe.cache_folder
    epochs = -(-(recipe.end_step - recipe.first_step) // data.sampler.steps_per_epoch)
    policy, reason = decide_cache(asked, recipe.preparation, data, folder, key, epochs=epochs)
    place = {"off": "not kept", "memory": "kept in memory", "disk": f"kept in {folder}"}[policy]
    _log.info("Codes are %s. %s", place, reason)
    unused = explain_unused_codes(folder, key) if asked in ("disk", "auto") else None
    if unused is not None and not recipe.preparation.changes_waves:
        _log.info("%s", unused)
    if policy == "off":
        return None
    cache = CodeCache(folder if policy == "disk" else None, key)
    if len(cache):
        _log.info("The codes of %d clips are there already.", len(cache))
    return cache


def decide_cache(
    asked: CachePolicy, preparation: PreparationSettings, data: RunData, folder: Path, key: CodeKey, *, epochs: int
) -> Decision:
    """What `--cache` means on this machine, for this corpus and codec, with so many epochs still to come."""
    if preparation.changes_waves:
        return Decision("off", "Augmentation changes the clips every time.")
    if asked != "auto":
        return Decision(asked, f"--cache is {asked}.")
    clips, size_bytes = len(data.train) + len(data.validation), count_code_bytes(data)
    known = sum(each.clips for each in list_kept_codes(folder) if each.folder == find_key_folder(folder, key))
    if epochs < 2 and not known:
        return Decision("off", "Every clip is prepared only once in one epoch, so nothing would be read back.")
    what = f"The codes of {clips} clips take {size_bytes / 1e6:.3g} MB"
    if size_bytes > read_free_memory_bytes() * MEMORY_SHARE:
        return Decision("off", f"{what}, for which there is no memory.")
    if size_bytes <= read_free_disk_bytes(folder):
        return Decision("disk", f"{what}, and are made once for this run and later ones.")
    return Decision("memory", f"{what}, and are made once for this run: there is no room for them on the disk.")


def choose_cache_folder(data: RunData, run_folder: Path) -> Path:
    """Where codes of a corpus are kept on disk: beside what its scan found out, so that every run finds them."""
    folder = (choose_index_folder(data.train.root) or run_folder) / FOLDER_NAME
    if not folder.is_symlink():
        return folder
    _log.warning("%s is a symbolic link, which is not followed: codes go to the folder of the run.", folder)
    return run_folder / FOLDER_NAME


def identify_clips(data: RunData) -> dict[Kind, ClipIds]:
    """The ids of all clips, under which their codes are kept."""
    # Two corpora may have files of equal name, size and time.
    prefix = b"" if data.train.root == data.validation.root else b"validation/"
    return {
        kind: identify_files((prefix + path for path in corpus.audio.iter_bytes()), corpus.size_bytes, corpus.mtime_ns)
        for kind, corpus, prefix in ((Kind.TRAIN, data.train, b""), (Kind.VALIDATION, data.validation, prefix))
    }


def choose_code_width(samples: int) -> int:
    """Codes that a clip of so many samples is encoded with: its own and silence."""
    codes = -(-samples // SAMPLES_PER_CODE) + TAIL_CODES
    return -(-codes // WIDTH_STEP_CODES) * WIDTH_STEP_CODES


def count_code_bytes(data: RunData) -> int:
    samples = int(data.train.samples.sum()) + int(data.validation.samples.sum())
    return samples * DTYPE.itemsize // SAMPLES_PER_CODE


def make_code_key(
    weights: Mapping[str, NDArray[Any]], mel_norms: NDArray[np.float32], device: str, execution: Execution
) -> CodeKey:
    """All that makes two runs get the same codes from the same recording, to the last bit, in words."""
    return {
        "codec": digest_arrays(weights)[:16],
        "mel statistics": digest_arrays({"mel_norms": mel_norms})[:16],
        "preparing device": "gpu" if device.startswith("/GPU") else "cpu",
        "--deterministic": "on" if execution.is_deterministic else "off",
        "threads of an operation": str(execution.intra_op or "TensorFlow's choice"),
        ONEDNN: os.environ.get(ONEDNN) or "not set",
        _XLA: os.environ.get(_XLA) or "not set",
        "MyXTTS": __version__,
        "encoding": f"{SAMPLE_RATE_HZ} Hz, {TAIL_CODES} codes of silence, widths in steps of {WIDTH_STEP_CODES}",
    }


def explain_unused_codes(folder: Path, key: CodeKey) -> str | None:
    """What keeps codes in a folder from being used, where there are some, but none of this key; else None."""
    kept = [each for each in list_kept_codes(folder) if each.clips]
    if not kept or find_key_folder(folder, key) in [each.folder for each in kept]:
        return None
    nearest = min(kept, key=lambda each: len(list_differences(each.key, key)))
    return f"The {nearest.clips} codes in {nearest.folder} cannot be used: {', '.join(list_differences(nearest.key, key))}."


def list_differences(before: CodeKey, now: CodeKey) -> list[str]:
    """What two keys have not alike, in words."""
    names = dict.fromkeys([*now, *before])
    pairs = {name: (before.get(name, "not set"), now.get(name, "not set")) for name in names}
    return [f"{name} was {old}, now {new}" for name, (old, new) in pairs.items() if old != new]


Codes = NDArray[np.integer[Any]]
"""Of one clip, as many as it has."""
CACHED_ROWS = 4
"""Rows encoded together where most codes come from a cache: few go to waste."""
LOADS_AHEAD = 16


class LoadedCodec(NamedTuple):
    dvae: DVAE
    weights: dict[str, NDArray[Any]]
    """By their names in a checkpoint."""


def load_codec(folder: Path) -> LoadedCodec:
    """The codec of a model directory, built on the device of the caller's scope."""
    directory = read_model_directory(folder, verify_checksums=False)
    if directory.dvae is None:
        raise ModelFileError(folder, "holds no codec (dvae.safetensors). Give a folder that has one by --codec.")
    require_weights(directory)
    arrays = {name: read_array(tensor) for name, tensor in directory.dvae.items()}
    dvae = build_dvae(directory.config.model, seed=None)
    load_checkpoint_arrays(dvae, arrays).require_complete()
    return LoadedCodec(dvae, arrays)


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
    """Makes codes on the device of the scope that it is built under, and keeps those of clips that stay as they are."""

    def __init__(self, dvae: DVAE, mel_norms: NDArray[np.float32]):
        assert dvae.size.codes <= np.iinfo(DTYPE).max, dvae.size.codes
        self.cache: CodeCache | None = None
        """Of codes; None makes them every time."""
        self._dvae = dvae
        self._mel_norms = mel_norms
        self._at_once = not is_on_cpu()
        self._compute_mel = ShapedFunction(self._trace_mel)
        self._encode = ShapedFunction(self._trace_encode)

    def find_known(self, clip_ids: ClipIds | None, rows: Sequence[int]) -> dict[int, Codes]:
        """The codes that the cache, if there is one, has of some rows, by row."""
        if self.cache is None or clip_ids is None:
            return {}
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

    def keep(self, clip_ids: ClipIds | None, codes: Mapping[int, Codes]) -> None:
        """Puts codes by row into the cache, if there is one."""
        if self.cache is not None and clip_ids is not None and codes:
            self.cache.put_many(clip_ids[list(codes)], list(codes.values()))

    def warm_up(self, shapes: Iterable[tuple[int, int]], widths: Iterable[int]) -> None:
        """Traces everything for groups of these rows and samples, and clips of these widths."""
        for shape in shapes:
            self._compute_mel(tf.zeros(shape), tf.zeros(shape[:1], tf.int32))
        for width in widths:
            self._encode(tf.zeros((width * FRAMES_PER_CODE, len(self._mel_norms))))

    def count_traces(self) -> int:
        return self._compute_mel.traces + self._encode.traces

    def _trace_mel(self, wav_BS: Any, lengths_B: Any) -> Any:
        mel_BFM, _ = compute_dvae_mel(wav_BS, lengths_B, self._mel_norms, at_once=self._at_once)
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
        return self.known + self.made + len(self.failed)


class _Group(NamedTuple):
    """Clips that are loaded and encoded together."""

    corpus: Corpus
    ids: ClipIds
    clips: NDArray[np.intp]
    rows: int
    """Always as many in a bucket, so that it is one shape."""
    samples: int


def fill_codes(
    data: RunData, config: DataConfig, maker: CodeMaker, part: ClipPart, progress: Progress = lambda *_: None
) -> FilledCodes:
    """Makes the codes of a part's clips that the maker's cache does not have yet, and keeps them there.

    What is kept stays, however this ends: called again, it goes on where it was.

    Raises `MachineError` where codes cannot be written any more, and `ReadingError` where so many clips cannot be read that
    the disk may be gone.
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
        slot_samples = max(group.rows * group.samples for group in groups)
        corpora = [corpus for corpus in (data.train, data.validation) if len(corpus)]
        with open_engine(config, corpora, ReadAhead(LOADS_AHEAD, slot_samples)) as engine:
            for group, load in _load_ahead(engine, groups):
                filled.made += _encode(maker, group, engine, load, filled.failed)
                require_readable(filled)
                require_kept(maker.cache)
                progress("codes", filled.clips, total)
        maker.cache.save()
        require_kept(maker.cache)
    return filled


def _group_clips(corpus: Corpus, ids: ClipIds, sampler: IndexSampler, clips: NDArray[np.intp]) -> Iterator[_Group]:
    """Clips by bucket, so many as a run with a cache encodes together."""
    numbers = sampler.plan.bucket_of_clip[clips]
    for number in np.unique(numbers).tolist():
        bucket, own = sampler.plan.buckets[number], clips[numbers == number]
        rows = min(bucket.rows, CACHED_ROWS)
        for first in range(0, len(own), rows):
            yield _Group(corpus, ids, own[first : first + rows], rows, bucket.samples)


def _load_ahead(engine: LoadingEngine, groups: Sequence[_Group]) -> Iterator[tuple[_Group, Load]]:
    """Each group with its finished load, while those behind it are being read."""
    loads: deque[Load] = deque()
    for number, group in enumerate(groups):
        for each in groups[number + len(loads) : number + LOADS_AHEAD]:
            files = [find_clip_file(each.corpus, clip) for clip in each.clips.tolist()]
            loads.append(engine.start([*files, *[None] * (each.rows - len(files))], each.samples))
        load = loads.popleft()
        engine.finish(load)
        yield group, load


def _encode(maker: CodeMaker, group: _Group, engine: LoadingEngine, load: Load, failed: list[Drop]) -> int:
    """Makes and keeps the codes of a load's clips, and returns how many there were; those that could not be read are noted."""
    for row, failure in dict(load.failures).items():
        engine.retry(load, row, None)
        name = group.corpus.audio[int(group.clips[row])]
        failed.append(Drop(failure.reason, name, "making codes", failure.detail))
    engine.finish(load)
    lengths_B = np.array([0 if file is None else file.samples for file in load.files], np.int32)
    samples = {row: (row, length) for row, length in enumerate(lengths_B.tolist()) if length}
    # `tf.constant` copies. The engine uses the memory of a load again.
    started = maker.start(tf.constant(engine.take(load)), tf.constant(lengths_B), samples)
    maker.keep(group.ids[group.clips], maker.finish(started, -(-lengths_B // SAMPLES_PER_CODE)))
    return len(samples)


def require_readable(filled: FilledCodes) -> None:
    """Raises `ReadingError` where so many clips failed that the disk may be gone."""
    failed, tried = len(filled.failed), filled.made + len(filled.failed)
    if failed > MOST_FAILED_SHARE * max(RECENT_CLIPS, tried):
        raise ReadingError(
            f"Of {tried} clips {failed} could not be read, though the scan found nothing wrong with them, the last of them "
            f"{filled.failed[-1].file} ({filled.failed[-1].detail}). Is the disk still there? If the corpus was changed, start "
            "again: the codes that were made are kept."
        )


def require_kept(cache: CodeCache) -> None:
    """Raises `MachineError` where codes are no longer written."""
    if cache.write_problem is not None:
        raise MachineError(
            "Codes can no longer be written; the warning above says where and why. Make room there and start again: those that "
            "were written are not made again."
        )
