"""Which engine loads the clips of a run, how many at a time and how far ahead: decided here, and said."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import NamedTuple

import numpy as np

from myxtts.audio.clip_errors import ClipError
from myxtts.audio.reading import inspect_clip
from myxtts.audio.units import SAMPLE_RATE_HZ
from myxtts.config import DataConfig
from myxtts.data.buckets import BucketPlan
from myxtts.data.corpus import Corpus
from myxtts.data.loading import InProcessEngine, LoadingEngine
from myxtts.data.loading_workers import WorkerEngine
from myxtts.data.pcm_wav import BYTES_PER_SAMPLE
from myxtts.data.workers import count_workers
from myxtts.devices.host_memory import read_free_memory_bytes

_log = logging.getLogger(__name__)

MOST_AUTO_WORKERS = 8
"""More cores are left to the rest of the run unless asked for: eight read some thousand clips a second."""

MEMORY_SHARE = 0.25
"""Of the free memory, for batches that are read ahead."""

NATIVE_IN_FORCE = "TF-native loading is in force"
"""In the log."""

_HEADER_SLACK_BYTES = 1024
_HEADERS_LOOKED_AT = 32


@dataclass(frozen=True)
class ReadAhead:
    """How far ahead is read."""

    depth: int
    """Micro-batches."""
    slot_samples: int
    """The most samples one of them has."""

    @property
    def size_bytes(self) -> int:
        """Memory it takes when it is full."""
        return self.depth * self.slot_samples * 4


def choose_workers(data: DataConfig) -> int:
    """How many clips are read at a time; 0 is one, in this process."""
    return min(count_workers(), MOST_AUTO_WORKERS) if data.num_workers == "auto" else data.num_workers


def choose_read_ahead(
    data: DataConfig,
    plans: Sequence[BucketPlan],
    *,
    accumulation: int,
    clips_per_row: int = 1,
    free_bytes: int | None = None,
) -> ReadAhead:
    """How many micro-batches are read ahead: `--buffer-size`, less where memory is short, never less than one update's.

    Args:
        plans: of all corpora the engine will serve.
        clips_per_row: 2 where another clip is read for each prompt.
        free_bytes: memory that can be had; asked of the machine unless given.
    """
    slot_samples = clips_per_row * max(bucket.rows * bucket.samples for plan in plans for bucket in plan.buckets)
    free_bytes = read_free_memory_bytes() if free_bytes is None else free_bytes
    fitting = int(free_bytes * MEMORY_SHARE) // (slot_samples * 4)
    # One more than an update's, so that its successor is begun while it is taken.
    least = accumulation + 1
    return ReadAhead(max(least, min(data.pipeline_buffer_size, fitting)), slot_samples)


class Engine(StrEnum):
    """Who loads the clips of a run."""

    NATIVE = "TensorFlow's input pipeline"
    PROCESSES = "reader processes"
    HERE = "this process"


class EngineChoice(NamedTuple):
    """Who loads the clips of a run, and why it is not TensorFlow's input pipeline if it is not."""

    engine: Engine
    why_not_native: str | None


def choose_engine(data: DataConfig, corpora: Sequence[Corpus]) -> EngineChoice:
    """Who loads these corpora."""
    others = Engine.PROCESSES if choose_workers(data) else Engine.HERE
    if not data.use_tf_native_loading:
        return EngineChoice(others, "use_tf_native_loading is off")
    if data.use_tf_native_loading == "auto" and others is Engine.PROCESSES:
        # Measured by the bench `data`: three times as fast on plain wav, where TensorFlow spends its time on page faults.
        return EngineChoice(others, "reader processes are faster")
    objection = explain_no_native_loading(corpora)
    return EngineChoice(others if objection else Engine.NATIVE, objection)


def open_engine(
    data: DataConfig, corpora: Sequence[Corpus], ahead: ReadAhead, *, batches: ReadAhead | None = None
) -> LoadingEngine:
    """The engine for these corpora, started. The log says which one it is and why.

    Args:
        ahead: all that is loaded ahead.
        batches: of that, the batches of the training; the log says how many, where anything is loaded ahead at all.
    """
    engine, why_not = choose_engine(data, corpora)
    workers = choose_workers(data)
    if engine is Engine.NATIVE:
        _log.info("%s: tf.data reads %d batches at a time.", NATIVE_IN_FORCE, max(1, workers))
    else:
        others = f"{workers} reader processes." if workers else "clips are read in this process. Nothing is read ahead."
        _log.info("TF-native loading is not in force (%s): %s", why_not, others)
    if batches is not None and engine is not Engine.HERE:
        _announce_read_ahead(data, batches)
    return start_engine(engine, data, ahead)


def _announce_read_ahead(data: DataConfig, ahead: ReadAhead) -> None:
    if ahead.depth < data.pipeline_buffer_size:
        _log.warning(
            "Reading ahead %d batches instead of %d: one takes up to %.0f MB, and they get a quarter of the free memory.",
            ahead.depth,
            data.pipeline_buffer_size,
            ahead.size_bytes / ahead.depth / 1e6,
        )
    _log.info("Reading ahead up to %d batches (%.0f MB of host memory).", ahead.depth, ahead.size_bytes / 1e6)
    _log.info("Buffer Size: %d", ahead.depth)


def start_engine(engine: Engine, data: DataConfig, ahead: ReadAhead) -> LoadingEngine:
    """An engine of this kind."""
    workers = max(1, choose_workers(data))
    if engine is Engine.HERE:
        return InProcessEngine()
    if engine is Engine.PROCESSES:
        return WorkerEngine(workers, ahead.depth, ahead.slot_samples)
    # Not imported above: the other engines do without TensorFlow.
    from myxtts.data.loading_tf import NativeEngine

    return NativeEngine(
        workers, ahead.depth, parallel_batch=data.enable_parallel_batch, map_fusion=data.enable_map_fusion
    )


def explain_no_native_loading(corpora: Sequence[Corpus]) -> str | None:
    """Why TensorFlow's own operations cannot read these corpora, or None when they can.

    A file's size must fit plain wav, and some headers are looked at. A file that is another one nevertheless is read all
    the same, only not by TensorFlow.
    """
    wanted = f"16-bit PCM mono wav at {SAMPLE_RATE_HZ} Hz"
    for corpus in corpora:
        extra = corpus.size_bytes - corpus.samples * BYTES_PER_SAMPLE
        others = np.flatnonzero((extra < 0) | (extra > _HEADER_SLACK_BYTES))
        if len(others):
            return f"{len(others)} of {len(corpus)} clips are not {wanted}, such as {corpus.audio[int(others[0])]}"
        for clip in np.linspace(0, len(corpus) - 1, min(len(corpus), _HEADERS_LOOKED_AT)).astype(int).tolist():
            try:
                info = inspect_clip(corpus.find_file(clip))
                other = f"{info.container} {info.encoding}, {info.channels} channels, {info.rate_hz} Hz"
            except ClipError as error:
                other = f"unreadable ({error.problem})"
            if other != f"WAV PCM_16, 1 channels, {SAMPLE_RATE_HZ} Hz":
                return f"clips must be {wanted}, but {corpus.audio[clip]} is {other}"
    return None
