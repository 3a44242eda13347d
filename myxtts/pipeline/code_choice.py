"""Where codes are kept: under which key, in words too, for which clips, and with `--cache auto` whether at all."""

from __future__ import annotations

import logging
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from myxtts import __version__
from myxtts.audio.mels import TAIL_CODES
from myxtts.audio.units import SAMPLE_RATE_HZ, SAMPLES_PER_CODE
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
from myxtts.data.corpus import Corpus
from myxtts.data.index import choose_index_folder
from myxtts.data.run_data import RunData
from myxtts.devices.environment import ONEDNN
from myxtts.devices.host_memory import read_free_memory_bytes
from myxtts.devices.runtime import Execution
from myxtts.pipeline.order import Kind
from myxtts.pipeline.recipe import BatchRecipe, PreparationSettings

_log = logging.getLogger(__name__)

FOLDER_NAME = "codes"
WIDTH_STEP_CODES = 16
"""A clip's mel is as wide as its codes and the silence behind them, rounded up to this, whatever its bucket. In another
width the last bits of a convolution change, and between two codes almost equally near a last bit decides."""

_XLA = "TF_XLA_FLAGS"
_CHOICES = {
    "codec": "codec",
    "mel_norms": "mel statistics",
    "device_kind": "preparing device",
    "is_deterministic": "--deterministic",
    "intra_op_threads": "threads of an operation",
    "onednn": ONEDNN,
    "xla": _XLA,
    "version": "MyXTTS",
}
"""What of a key a user decides about, by the name it has in the key."""
_DIGESTS = ("codec", "mel_norms")
_SHOWN_DIGITS = 12


@dataclass(frozen=True)
class Decision:
    """Where codes are kept, and why, as a sentence for the log."""

    policy: Literal["off", "memory", "disk"]
    reason: str


def open_cache(data: RunData, recipe: BatchRecipe, key: CodeKey) -> CodeCache | None:
    """The cache that `--cache` means for a run, or None where nothing is kept. The log says which and why."""
    asked, folder = recipe.config.data.cache, recipe.cache_folder
    epochs = -(-(recipe.end_step - recipe.first_step) // data.sampler.steps_per_epoch)
    decision = decide_cache(asked, recipe.preparation, data, folder, key, epochs=epochs)
    place = {"off": "not kept", "memory": "kept in memory", "disk": f"kept in {folder}"}[decision.policy]
    _log.info("Codes are %s. %s", place, decision.reason)
    if asked in ("disk", "auto") and not recipe.preparation.changes_waves:
        unused = explain_unused_codes(folder, key)
        if unused is not None:
            _log.info("%s", unused)
    if decision.policy == "off":
        return None
    cache = CodeCache(folder if decision.policy == "disk" else None, key)
    if len(cache):
        _log.info("The codes of %d clips are there already.", len(cache))
    return cache


def decide_cache(
    asked: CachePolicy, preparation: PreparationSettings, data: RunData, folder: Path, key: CodeKey, *, epochs: int
) -> Decision:
    """What `--cache` means on this machine, for this corpus and codec.

    Args:
        asked: with `--cache`.
        epochs: still to come.
    """
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
    if _can_write(folder) and size_bytes <= read_free_disk_bytes(folder):
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
    is_one = data.train.root == data.validation.root
    return {
        Kind.TRAIN: _identify(data.train, b""),
        # Two corpora may have files of equal name, size and time.
        Kind.VALIDATION: _identify(data.validation, b"" if is_one else b"validation/"),
    }


def choose_code_width(samples: int) -> int:
    """Codes that a clip of so many samples is encoded with: its own and silence."""
    codes = -(-samples // SAMPLES_PER_CODE) + TAIL_CODES
    return -(-codes // WIDTH_STEP_CODES) * WIDTH_STEP_CODES


def count_code_bytes(data: RunData) -> int:
    """The room that the codes of all clips take."""
    samples = int(data.train.samples.sum()) + int(data.validation.samples.sum())
    return samples * DTYPE.itemsize // SAMPLES_PER_CODE


def make_code_key(
    weights: Mapping[str, NDArray[Any]], mel_norms: NDArray[np.float32], device: str, execution: Execution
) -> CodeKey:
    """All that makes two runs get the same codes from the same recording, to the last bit.

    Args:
        weights: the DVAE's.
        device: logical name of the device that prepares.
        execution: how its process runs operations.
    """
    return {
        "version": __version__,
        "sample_rate_hz": SAMPLE_RATE_HZ,
        "tail_codes": TAIL_CODES,
        "width_step_codes": WIDTH_STEP_CODES,
        "codec": digest_arrays(weights),
        "mel_norms": digest_arrays({"mel_norms": mel_norms}),
        "device_kind": "gpu" if device.startswith("/GPU") else "cpu",
        "intra_op_threads": execution.intra_op,
        "is_deterministic": execution.is_deterministic,
        "onednn": os.environ.get(ONEDNN, ""),
        "xla": os.environ.get(_XLA, ""),
    }


def describe_key(key: CodeKey) -> dict[str, str]:
    """What a user decides about of a key, by name."""
    return {name: _describe(field, key[field]) for field, name in _CHOICES.items()}


def explain_unused_codes(folder: Path, key: CodeKey) -> str | None:
    """What keeps codes in a folder from being used, where there are some, but none of this key; else None."""
    kept = [each for each in list_kept_codes(folder) if each.clips]
    if not kept or find_key_folder(folder, key) in [each.folder for each in kept]:
        return None
    differences = {each.folder: _list_differences(each.key, key) for each in kept}
    nearest = min(kept, key=lambda each: len(differences[each.folder]))
    return f"The {nearest.clips} codes in {nearest.folder} cannot be used: {', '.join(differences[nearest.folder])}."


def _list_differences(before: CodeKey, now: CodeKey) -> list[str]:
    return [
        f"{_CHOICES.get(field, field)} was {_describe(field, before.get(field))}, now {_describe(field, now.get(field))}"
        for field in (*_CHOICES, *sorted((before.keys() | now.keys()) - _CHOICES.keys()))
        if before.get(field) != now.get(field)
    ]


def _describe(field: str, value: Any) -> str:
    if field in _DIGESTS:
        return str(value)[:_SHOWN_DIGITS]
    if isinstance(value, bool):
        return "on" if value else "off"
    if field == "intra_op_threads" and value == 0:
        return "TensorFlow's choice"
    return str(value) if value not in ("", None) else "not set"


def _identify(corpus: Corpus, prefix: bytes) -> ClipIds:
    paths = (prefix + path for path in corpus.audio.iter_bytes())
    return identify_files(paths, corpus.size_bytes, corpus.mtime_ns)


def _can_write(folder: Path) -> bool:
    existing = next(path for path in (folder, *folder.absolute().parents) if path.exists())
    return os.access(existing, os.W_OK | os.X_OK)
