"""Arrays under Coqui's checkpoint names <-> variables of a built part. Files are somebody else's business.

Works on `GPT`, `DVAE`, `WaveformDecoder`, `SpeakerEncoder` and `XTTS` alike: each lists its own weights.
Round trips are exact to the bit: weight-normed kernels stay in their two pieces, and buffers nobody reads are carried.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np

from myxtts.config import ModelConfig
from myxtts.errors import UserError
from myxtts.models.sizes import read_sizes
from myxtts.models.weights import (
    DVAE_PREFIX,
    Weight,
    list_decoder_weights,
    list_dvae_weights,
    list_gpt_weights,
    list_speaker_weights,
)

IGNORED = re.compile(
    r"gpt\.gpt\.wte\.weight$"
    # Aliases of gpt.*, saved after inference was set up.
    r"|gpt\.gpt_inference\."
    # Causal masks of old transformers versions.
    r"|gpt\.gpt\.h\.\d+\.attn\.(masked_)?bias$"
    r"|torch_mel_spectrogram_"
)
"""Keys of `model.pth` that say nothing the model does not know."""

OPTIONAL = re.compile(r"(\.num_batches_tracked|(^|\.)torch_spec\.[^ ]+|(^|\.)discrete_loss\.[^ ]+)$")
"""Buffers a file may lack: they take no part in any computation."""

OLD_WEIGHT_NORM = {".weight_g": ".parametrizations.weight.original0", ".weight_v": ".parametrizations.weight.original1"}


class Named(Protocol):
    """A built part that can list its weights."""

    def list_weights(self) -> list[Weight]: ...


class CheckpointMismatchError(UserError):
    """The weights in a checkpoint are not those of the model."""


@dataclass(frozen=True)
class LoadReport:
    """What did not fit when arrays were loaded. Everything else was loaded."""

    missing: list[str] = field(default_factory=list)
    """Keys the model has and the arrays lack; their variables kept their values."""
    unexpected: list[str] = field(default_factory=list)
    """Keys of the arrays the model does not know."""
    mis_shaped: list[tuple[str, tuple[int, ...], tuple[int, ...]]] = field(default_factory=list)
    """(key, shape the model needs, shape found); their variables kept their values."""

    @property
    def is_complete(self) -> bool:
        return not (self.missing or self.unexpected or self.mis_shaped)

    def require_complete(self) -> None:
        """Raises `CheckpointMismatchError`, with the first few differences, unless everything fitted."""
        if self.is_complete:
            return
        lines = [f"{key} must have shape {need}, but has {found}" for key, need, found in self.mis_shaped]
        lines += [f"{key} is missing" for key in self.missing] + [f"{key} is unknown" for key in self.unexpected]
        shown = "; ".join(lines[:5]) + (f"; and {len(lines) - 5} more" if len(lines) > 5 else "")
        raise CheckpointMismatchError(
            f"The checkpoint must hold the weights of this model, but does not: {shown}. "
            "Give the model the checkpoint's own sizes (vocabulary, layers, widths), or another checkpoint."
        )


def load_checkpoint_arrays(model: Named, arrays: Mapping[str, Any], *, prefix: str = "") -> LoadReport:
    """Loads arrays by their checkpoint names and tells what did not fit.

    Args:
        model: a built part.
        arrays: checkpoint name -> array, or anything `np.asarray` takes. Each is read once, one at a time. Older
            spellings (`weight_g`, a leading `xtts.`) are understood.
        prefix: load the keys under this prefix only, such as `GPT_PREFIX` to take the GPT out of `model.pth`.
    """
    spelling = {_normalise_key(key): key for key in arrays}
    report = LoadReport()
    known = set()
    for weight in model.list_weights():
        key = prefix + weight.key
        known.add(key)
        if key not in spelling:
            if not OPTIONAL.search(key):
                report.missing.append(key)
            continue
        array = np.asarray(arrays[spelling[key]])
        if array.shape != weight.shape:
            report.mis_shaped.append((key, weight.shape, array.shape))
            continue
        find_variable(model, weight.variable).assign(to_variable_layout(weight, array))
    report.unexpected.extend(
        key for key in spelling if key.startswith(prefix) and key not in known and not _is_ignored(key, prefix)
    )
    return report


def to_checkpoint(model: Named, *, prefix: str = "") -> dict[str, np.ndarray]:
    """All weights of a built part under their checkpoint names, as copies."""
    return dict(iterate_checkpoint(model, prefix=prefix))


def iterate_checkpoint(model: Named, *, prefix: str = "") -> Iterator[tuple[str, np.ndarray]]:
    """Checkpoint names and arrays one by one, for a writer that must not hold the whole model twice."""
    for weight in model.list_weights():
        yield prefix + weight.key, to_checkpoint_layout(weight, find_variable(model, weight.variable).numpy())


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


def _is_ignored(key: str, prefix: str) -> bool:
    # A trainer's checkpoint also holds the DVAE, which only counts when it is asked for.
    return bool(IGNORED.match(key)) or (not prefix and key.startswith(DVAE_PREFIX))


def _normalise_key(key: str) -> str:
    key = key.removeprefix("xtts.")
    for old, new in OLD_WEIGHT_NORM.items():
        if key.endswith(old):
            return key.removesuffix(old) + new
    return key
