"""Batches for measuring: a stream without validation and without an end."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from myxtts.config import XTTSConfig
from myxtts.pipeline.preparation_settings import Target, choose_preparation
from myxtts.pipeline.production import Production

NEVER = 10**6
"""Steps; no measurement comes so far."""


def describe_endless_production(
    config: XTTSConfig, target: Target, mel_norms: Any, *, codec_folder: Path | None, cache_folder: Path
) -> Production:
    """What the batches of a measured run are made of. Arguments as the fields of `Production`."""
    return Production(
        config=config,
        preparation=choose_preparation(config, target, mel_norms),
        validation_interval=NEVER,
        first_step=0,
        end_step=NEVER,
        codec_folder=codec_folder,
        cache_folder=cache_folder,
    )
