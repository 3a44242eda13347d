"""What a cached feature depends on besides the recording."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

FORMAT_VERSION = 1
"""Of the files. Another one is another generation: old files are never read by code that does not know them."""


@dataclass(frozen=True, kw_only=True)
class GenerationKey:
    """All that makes two runs get the same feature from the same recording.

    Features of equal key are one generation, in a folder of its own; any difference is another generation.

    Example:
        key = GenerationKey(
            feature="dvae_codes",
            parameters={"sample_rate_hz": 22050, "padding_samples": 8192, "mel_stats": digest_arrays({"mean": mean})},
            encoder_digest=digest_arrays(weights),
            precision="float32",
            device_kind="cpu",
        )
    """

    feature: str
    """Small letters, digits and underscores."""
    parameters: Mapping[str, Any]
    """How the audio is prepared: rates, padding rule, mel parameters, normaliser. Values that JSON knows."""
    encoder_digest: str
    precision: str
    device_kind: str

    def __post_init__(self) -> None:
        assert re.fullmatch("[a-z0-9_]+", self.feature), self.feature

    def to_dict(self) -> dict[str, Any]:
        """The key as it stands in `key.json`."""
        return {
            "format_version": FORMAT_VERSION,
            "feature": self.feature,
            "parameters": dict(self.parameters),
            "encoder_digest": self.encoder_digest,
            "precision": self.precision,
            "device_kind": self.device_kind,
        }

    @property
    def folder_name(self) -> str:
        """The generation's folder: the feature and a digest of the whole key."""
        return f"{self.feature}-{hashlib.sha256(encode_key(self.to_dict())).hexdigest()[:16]}"


def encode_key(fields: Mapping[str, Any]) -> bytes:
    """One spelling for equal keys."""
    return json.dumps(fields, sort_keys=True, separators=(",", ":"), allow_nan=False).encode()


def digest_arrays(arrays: Mapping[str, NDArray[Any]]) -> str:
    """A digest of named arrays, whatever their order: an encoder's weights, a normaliser's statistics."""
    total = hashlib.sha256()
    for name in sorted(arrays):
        array = np.asarray(arrays[name])
        # With their lengths in front, so that no two different sets are the same bytes.
        for part in (name.encode(), f"{array.dtype.str}{array.shape}".encode(), array.tobytes()):
            total.update(len(part).to_bytes(8, "little") + part)
    return total.hexdigest()
