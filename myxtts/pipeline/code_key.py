"""The key under which codes are kept: what it is made of, in words, and why codes that are there do not fit."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from myxtts import __version__
from myxtts.audio.mels import TAIL_CODES
from myxtts.audio.units import SAMPLE_RATE_HZ
from myxtts.data.cache import GenerationKey, digest_arrays, list_generations
from myxtts.devices.environment import ONEDNN
from myxtts.devices.runtime import Execution
from myxtts.pipeline.code_maker import WIDTH_STEP_CODES

_XLA = "TF_XLA_FLAGS"
_CHOICES = {
    "encoder_digest": "codec",
    "mel_norms": "mel statistics",
    "device_kind": "preparing device",
    "is_deterministic": "--deterministic",
    "intra_op_threads": "threads of an operation",
    "onednn": ONEDNN,
    "xla": _XLA,
    "version": "MyXTTS",
}
"""What of a key a user decides about, by the name it has in the key."""
_DIGESTS = ("encoder_digest", "mel_norms")
_SHOWN_DIGITS = 12


def make_code_key(
    weights: Mapping[str, NDArray[Any]], mel_norms: NDArray[np.float32], device: str, execution: Execution
) -> GenerationKey:
    """All that makes two runs get the same codes from the same recording, to the last bit.

    Args:
        weights: the DVAE's.
        device: logical name of the device that prepares.
        execution: how its process runs operations.
    """
    parameters = {
        "version": __version__,
        "sample_rate_hz": SAMPLE_RATE_HZ,
        "tail_codes": TAIL_CODES,
        "width_step_codes": WIDTH_STEP_CODES,
        "mel_norms": digest_arrays({"mel_norms": mel_norms}),
        "intra_op_threads": execution.intra_op,
        "is_deterministic": execution.is_deterministic,
        "onednn": os.environ.get(ONEDNN, ""),
        "xla": os.environ.get(_XLA, ""),
    }
    return GenerationKey(
        feature="dvae_codes",
        parameters=parameters,
        encoder_digest=digest_arrays(weights),
        precision="float32",
        device_kind="gpu" if device.startswith("/GPU") else "cpu",
    )


def describe_key(key: GenerationKey) -> dict[str, str]:
    """What a user decides about of a key, by name."""
    fields = _flatten(key.to_dict())
    return {name: _describe(field, fields[field]) for field, name in _CHOICES.items()}


def explain_unused_codes(folder: Path, key: GenerationKey) -> str | None:
    """What keeps codes in a folder from being used, where there are some, but none of this key; else None."""
    kept = [each for each in list_generations(folder) if each.records and each.key.get("feature") == key.feature]
    if not kept or key.folder_name in [each.folder.name for each in kept]:
        return None
    own = key.to_dict()
    differences = {each.folder: _list_differences(each.key, own) for each in kept}
    nearest = min(kept, key=lambda each: len(differences[each.folder]))
    return f"The {nearest.records} codes in {nearest.folder} cannot be used: {', '.join(differences[nearest.folder])}."


def _list_differences(kept: Mapping[str, Any], own: Mapping[str, Any]) -> list[str]:
    before, now = _flatten(kept), _flatten(own)
    return [
        f"{_CHOICES.get(field, field)} was {_describe(field, before.get(field))}, now {_describe(field, now.get(field))}"
        for field in (*_CHOICES, *sorted((before.keys() | now.keys()) - _CHOICES.keys()))
        if before.get(field) != now.get(field)
    ]


def _flatten(fields: Mapping[str, Any]) -> dict[str, Any]:
    own = dict(fields)
    return {**own.pop("parameters", {}), **own}


def _describe(field: str, value: Any) -> str:
    if field in _DIGESTS:
        return str(value)[:_SHOWN_DIGITS]
    if isinstance(value, bool):
        return "on" if value else "off"
    if field == "intra_op_threads" and value == 0:
        return "TensorFlow's choice"
    return str(value) if value not in ("", None) else "not set"
