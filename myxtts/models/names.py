"""Arrays under Coqui's checkpoint names <-> variables of a built part. Files are somebody else's business.

Works on `GPT`, `DVAE`, `WaveformDecoder`, `SpeakerEncoder` and `XTTS` alike: each lists its own weights.
Round trips are exact to the bit: weight-normed kernels stay in their two pieces, and buffers nobody reads are carried.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

import ml_dtypes
import numpy as np

from myxtts.audio.filterbanks import PREEMPHASIS, SPEAKER_MEL, make_filterbank, make_window
from myxtts.config import ModelConfig
from myxtts.errors import UserError
from myxtts.models.sizes import read_sizes
from myxtts.models.weights import (
    Weight,
    list_decoder_weights,
    list_dvae_weights,
    list_gpt_weights,
    list_speaker_weights,
)

OPTIONAL = re.compile(r"(\.num_batches_tracked|(^|\.)torch_spec\.[^ ]+|(^|\.)discrete_loss\.[^ ]+)$")
"""Buffers a file may lack: they take no part in any computation."""

FLOAT_DTYPES = frozenset(map(np.dtype, (np.float64, np.float32, np.float16, ml_dtypes.bfloat16)))
LARGEST_WEIGHT = 1e9
"""Far beyond what training leaves anywhere: a network with a larger number in it computes nothing but infinities."""
_CHUNK_ELEMENTS = 1 << 16
"""Looked at together: what the processor's cache holds, so that a weight is fetched from memory once."""


class Named(Protocol):
    """A built part that can list its weights."""

    def list_weights(self) -> list[Weight]: ...


class CheckpointMismatchError(UserError):
    """The weights in a checkpoint are not those of the model."""


@dataclass(frozen=True)
class LoadReport:
    """What does not fit of arrays that were compared, or loaded. Everything else was loaded."""

    missing: list[str] = field(default_factory=list)
    """Keys the model has and the arrays lack; their variables kept their values."""
    unexpected: list[str] = field(default_factory=list)
    """Keys of the arrays the model does not know."""
    mis_shaped: list[tuple[str, tuple[int, ...], tuple[int, ...]]] = field(default_factory=list)
    """(key, shape the model needs, shape found); their variables kept their values."""
    unusable: list[str] = field(default_factory=list)
    """Sentences on arrays whose type or values no weight has; their variables kept their values."""

    @property
    def is_complete(self) -> bool:
        return not (self.missing or self.unexpected or self.mis_shaped or self.unusable)

    def require_complete(self, source: str = "The checkpoint") -> None:
        """Raises `CheckpointMismatchError`, with the first few differences, unless everything fitted.

        Args:
            source: what was loaded, to begin a sentence with.
        """
        if self.is_complete:
            return
        if self.unusable:
            raise CheckpointMismatchError(
                f"{source} is damaged, or its training failed: {shorten(self.unusable)}. Give another checkpoint."
            )
        raise CheckpointMismatchError(
            f"{source} must hold the weights of this model, but does not: {self.describe()}. "
            "Give the model the checkpoint's own sizes (vocabulary, layers, widths), or another checkpoint."
        )

    def describe(self) -> str:
        """The first few differences, and how many more there are."""
        lines = [f"{key} must have shape {need}, but has {found}" for key, need, found in self.mis_shaped]
        lines += [f"{key} is missing" for key in self.missing] + [f"{key} is unknown" for key in self.unexpected]
        return shorten(lines)


def shorten(lines: list[str], shown: int = 5) -> str:
    """The first few of several findings, and how many more there are."""
    return "; ".join(f"{line:.200}" for line in lines[:shown]) + (
        f"; and {len(lines) - shown} more" if len(lines) > shown else ""
    )


def compare_arrays(weights: Iterable[Weight], arrays: Mapping[str, Any], *, prefix: str = "") -> LoadReport:
    """What does not fit between the weights of a part and arrays, by names, shapes and types; no value is read.

    For files whose configuration may be wrong: a network is built only for weights that are there. Arguments as for
    `load_checkpoint_arrays`.
    """
    report = LoadReport()
    known = set()
    for weight in weights:
        key = prefix + weight.key
        known.add(key)
        if key not in arrays:
            if not OPTIONAL.search(key):
                report.missing.append(key)
            continue
        array = arrays[key]
        if tuple(array.shape) != weight.shape:
            report.mis_shaped.append((key, weight.shape, tuple(array.shape)))
        elif weight.dtype == "float32" and array.dtype not in FLOAT_DTYPES:
            report.unusable.append(f"{key} must be floating-point numbers, but is {array.dtype}")
    report.unexpected.extend(key for key in arrays if key.startswith(prefix) and key not in known)
    return report


def find_value_problem(array: np.ndarray) -> str | None:
    """What an array holds that no weight is, such as "holds nan"; None where all is well."""
    if array.dtype not in FLOAT_DTYPES:
        return None
    flat = array.reshape(-1)
    for start in range(0, flat.size, _CHUNK_ELEMENTS):
        chunk = flat[start : start + _CHUNK_ELEMENTS]
        # NumPy has no fast way through numbers of two bytes.
        largest = np.abs(chunk.astype(np.float32) if chunk.itemsize < 4 else chunk).max()
        if not largest <= LARGEST_WEIGHT:
            return f"holds {largest:g}, which no weight is"
    return None


def load_checkpoint_arrays(model: Named, arrays: Mapping[str, Any], *, prefix: str = "") -> LoadReport:
    """Loads arrays by their checkpoint names and tells what did not fit.

    Args:
        arrays: checkpoint name -> array, or what has a shape and a dtype and becomes one by `np.asarray`. Each is read once, one
            at a time, and all its values are looked at.
        prefix: load the keys under this prefix only, such as `GPT_PREFIX` to take the GPT out of `model.pth`.
    """
    weights = model.list_weights()
    report = compare_arrays(weights, arrays, prefix=prefix)
    if report.unusable:
        return report
    refused = {key for key, _, _ in report.mis_shaped}
    for weight in weights:
        key = prefix + weight.key
        if key not in arrays or key in refused:
            continue
        array = np.asarray(arrays[key])
        problem = find_value_problem(array)
        if problem is not None:
            report.unusable.append(f"{key} {problem}")
            continue
        find_variable(model, weight.variable).assign(to_variable_layout(weight, array))
    return report


def to_checkpoint(model: Named, *, prefix: str = "") -> dict[str, np.ndarray]:
    """All weights of a built part under their checkpoint names, as copies."""
    return {
        prefix + weight.key: to_checkpoint_layout(weight, find_variable(model, weight.variable).numpy())
        for weight in model.list_weights()
    }


def count_parameters(config: ModelConfig) -> dict[str, int]:
    """Elements of each part's weights and buffers, without building anything."""
    sizes = read_sizes(config)
    tables = {
        "gpt": list_gpt_weights(sizes.gpt),
        "dvae": list_dvae_weights(sizes.dvae),
        "decoder": list_decoder_weights(sizes.decoder),
        "speaker_encoder": list_speaker_weights(sizes.speaker),
    }
    return {part: sum(weight.elements for weight in weights) for part, weights in tables.items()}


def to_variable_layout(weight: Weight, array: np.ndarray) -> np.ndarray:
    """A checkpoint's array as its variable stores it."""
    kept = weight.shape[: len(weight.axes)]
    return np.array(array.reshape(kept).transpose(weight.axes), order="C")


def to_checkpoint_layout(weight: Weight, array: np.ndarray) -> np.ndarray:
    """A variable's array as the checkpoint stores it."""
    return np.array(array.transpose(np.argsort(weight.axes)).reshape(weight.shape), order="C")


def find_variable(model: Named, path: str) -> Any:
    """The variable at a path of attribute names and list positions, such as `blocks.0.qkv.kernel`."""
    found: Any = model
    for step in path.split("."):
        found = found[int(step)] if step.isdecimal() else getattr(found, step)
    return found


def make_front_end_constant(weight: Weight) -> np.ndarray:
    """A buffer of the reference's speaker mel, which our networks do not read and an exported file must have."""
    constants = {
        "emphasis": np.array([-PREEMPHASIS, 1.0], np.float32),
        "window": make_window(SPEAKER_MEL),
        "filterbank": make_filterbank(SPEAKER_MEL),
    }
    return constants[weight.variable.rpartition(".")[2]].astype(np.float32).reshape(weight.shape)
