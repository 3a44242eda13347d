"""Features that follow from the clip's number, so that every process knows what must come back."""

from __future__ import annotations

import logging
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np

from myxtts.data.cache import FeatureCache, GenerationKey, identify_files

MEBIBYTE = 2**20


def make_key(**changes: Any) -> GenerationKey:
    fields: dict[str, Any] = {
        "feature": "dvae_codes",
        "parameters": {"sample_rate_hz": 22050, "padding": "zeros"},
        "encoder_digest": "a" * 64,
        "precision": "float32",
        "device_kind": "cpu",
    }
    return GenerationKey(**(fields | changes))


def make_ids(clips: Iterable[int]) -> Any:
    numbers = np.fromiter(clips, np.int64)
    return identify_files((b"%d" % clip for clip in numbers.tolist()), numbers, numbers)


def make_codes(clip: int, salt: int = 0) -> Any:
    """Of a length and content of its own for every clip."""
    return ((np.arange(1 + clip % 97) * 31 + clip + salt) % 1024).astype(np.int16)


def open_cache(directory: Path, policy: Any = "disk", **arguments: Any) -> FeatureCache:
    return FeatureCache.open(policy, directory, make_key(), **({"memory_limit_bytes": MEBIBYTE} | arguments))


def put(cache: FeatureCache, clips: Iterable[int], salt: int = 0) -> None:
    clips = list(clips)
    cache.put_many(make_ids(clips), [make_codes(clip, salt) for clip in clips])


def find_clips(cache: FeatureCache, clips: Iterable[int], salt: int = 0) -> set[int]:
    """Clips that the cache has. Fails when one of them is not exactly what was put."""
    clips = list(clips)
    found = set()
    for clip, codes in zip(clips, cache.get_many(make_ids(clips)), strict=True):
        if codes is not None:
            np.testing.assert_array_equal(codes, make_codes(clip, salt), strict=True)
            found.add(clip)
    return found


def fill(directory: Path, clips: Iterable[int], salt: int = 0) -> Path:
    """A segment of these clips, by a writer that is gone. Gives the generation's folder."""
    with open_cache(directory) as cache:
        put(cache, clips, salt)
    return directory / make_key().folder_name


def list_names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def read_warnings(caplog: Any) -> list[str]:
    return [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING]
