"""Where codes are kept: under which key, for which clips, and with `--cache auto` whether at all."""

from __future__ import annotations

import logging
import secrets
import shutil
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np

from myxtts.audio.units import SAMPLES_PER_CODE
from myxtts.config.data import CachePolicy
from myxtts.data.cache import (
    CacheFolderError,
    ClipIds,
    Decision,
    FeatureCache,
    GenerationKey,
    Measured,
    Policy,
    decide_policy,
    identify_files,
    list_generations,
    read_free_disk_bytes,
)
from myxtts.data.corpus import Corpus
from myxtts.data.index import choose_index_folder
from myxtts.data.run_data import RunData
from myxtts.devices.host_memory import read_free_memory_bytes
from myxtts.devices.runtime import read_execution
from myxtts.pipeline.code_key import explain_unused_codes, make_code_key
from myxtts.pipeline.code_maker import CACHED_DTYPE
from myxtts.pipeline.codec_loading import Codec
from myxtts.pipeline.order import Kind
from myxtts.pipeline.preparation_settings import PreparationSettings
from myxtts.pipeline.production import Production

_log = logging.getLogger(__name__)

FOLDER_NAME = "features"
_TRIED_CLIPS = 64


class CacheChoice:
    """What `--cache` means for a run.

    Args:
        device: logical name of the device that prepares.
    """

    def __init__(self, data: RunData, production: Production, codec: Codec, device: str):
        self._data = data
        self._production = production
        mel_norms = np.array(production.preparation.mel_norms, np.float32)
        self._key = make_code_key(codec.weights, mel_norms, device, read_execution())

    def open(self, measure: Callable[[], float]) -> FeatureCache | None:
        """The cache, or None where nothing is kept. The log says which and why.

        Args:
            measure: seconds that the codes of a clip take to make.
        """
        folder = self._production.cache_folder
        decision = self._decide(folder, measure)
        place = {"off": "not kept", "memory": "kept in memory", "disk": f"kept in {folder}"}[decision.policy]
        _log.info("Codes are %s. %s", place, decision.reason)
        unused = explain_unused_codes(folder, self._key) if self._may_read_disk else None
        if unused is not None:
            _log.info("%s", unused)
        return None if decision.policy == "off" else self._open(decision.policy, folder)

    def identify_clips(self) -> dict[Kind, ClipIds]:
        """The ids of all clips, under which their codes are kept."""
        return identify_clips(self._data)

    def _open(self, policy: Policy, folder: Path) -> FeatureCache:
        cache = FeatureCache.open(policy, folder, self._key)
        known = cache.stats().records
        if known:
            _log.info("The codes of %d clips are there already.", known)
        return cache

    @property
    def _may_read_disk(self) -> bool:
        production = self._production
        return production.config.data.cache in ("disk", "auto") and not production.preparation.changes_waves

    def _decide(self, folder: Path, measure: Callable[[], float]) -> Decision:
        fixed = decide_fixed(self._production.config.data.cache, self._production.preparation)
        return fixed or decide_cache(
            self._data,
            folder,
            self._key,
            epochs=-(-(self._production.end_step - self._production.first_step) // self._data.sampler.steps_per_epoch),
            prepare_seconds_per_clip=measure(),
        )


def decide_fixed(asked: CachePolicy, preparation: PreparationSettings) -> Decision | None:
    """What is clear without measuring anything; None where `decide_cache` has to be asked.

    Args:
        asked: with `--cache`.
    """
    if preparation.changes_waves:
        return Decision("off", "Augmentation changes the clips every time.")
    return None if asked == "auto" else Decision(asked, f"--cache is {asked}.")


def choose_cache_folder(data: RunData, run_folder: Path) -> Path:
    """Where codes of a corpus are kept on disk: beside what its scan found out, so that every run finds them."""
    folder = (choose_index_folder(data.train.root) or run_folder) / FOLDER_NAME
    if not folder.is_symlink():
        return folder
    _log.warning("%s is a symbolic link, which is not followed: codes go to the folder of the run.", folder)
    return run_folder / FOLDER_NAME


def identify_clips(data: RunData) -> dict[Kind, ClipIds]:
    """The ids of all clips, under which their codes are kept."""
    is_one = data.train.root == data.validation.root
    return {
        Kind.TRAIN: _identify(data.train, b""),
        # Two corpora may have files of equal name, size and time.
        Kind.VALIDATION: _identify(data.validation, b"" if is_one else b"validation/"),
    }


def decide_cache(
    data: RunData, folder: Path, key: GenerationKey, *, epochs: int, prepare_seconds_per_clip: float
) -> Decision:
    """What `--cache auto` means on this machine, for this corpus and codec.

    Args:
        epochs: still to come.
        prepare_seconds_per_clip: as measured.
    """
    clips = len(data.train) + len(data.validation)
    bytes_per_clip = count_code_bytes(data) / clips if clips else 0.0
    known = [each.records for each in list_generations(folder) if each.folder.name == key.folder_name]
    read_s = _measure_reading(folder, key, int(bytes_per_clip))
    return decide_policy(
        Measured(
            prepare_seconds_per_clip=prepare_seconds_per_clip,
            read_seconds_per_clip=read_s or 0.0,
            bytes_per_clip=bytes_per_clip,
            clip_count=clips,
            epochs=epochs,
            free_memory_bytes=read_free_memory_bytes(),
            free_disk_bytes=0 if read_s is None else read_free_disk_bytes(folder),
            clips_on_disk=sum(known),
        )
    )


def count_code_bytes(data: RunData) -> int:
    """The room that the codes of all clips take."""
    samples = int(data.train.samples.sum()) + int(data.validation.samples.sum())
    return samples * CACHED_DTYPE.itemsize // SAMPLES_PER_CODE


def _identify(corpus: Corpus, prefix: bytes) -> ClipIds:
    paths = (prefix + path for path in corpus.audio.iter_bytes())
    return identify_files(paths, corpus.size_bytes, corpus.mtime_ns)


def _measure_reading(folder: Path, key: GenerationKey, size_bytes: int) -> float | None:
    """Seconds to read the codes of one clip back from where they would be kept; None where nothing can be kept."""
    trial = folder / f"trial-{secrets.token_hex(8)}"
    ids = np.arange(2 * _TRIED_CLIPS, dtype=np.uint64).reshape(-1, 2)
    codes = [np.zeros(max(1, size_bytes // CACHED_DTYPE.itemsize), CACHED_DTYPE)] * _TRIED_CLIPS
    try:
        with FeatureCache.open("disk", trial, key) as cache:
            cache.put_many(ids, codes)
            started = time.perf_counter()
            cache.get_many(ids)
            return (time.perf_counter() - started) / _TRIED_CLIPS
    except CacheFolderError:
        return None
    finally:
        shutil.rmtree(trial, ignore_errors=True)
