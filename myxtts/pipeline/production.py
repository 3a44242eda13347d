"""What batches are made of, in words that another process understands."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, astuple, dataclass
from pathlib import Path
from typing import Any

from myxtts.audio.augment import AugmentSettings
from myxtts.config import XTTSConfig
from myxtts.config.resolve import dump_sections
from myxtts.data.replacements import Failure
from myxtts.data.run_data import RunData
from myxtts.data.sampler import WHOLE, RowShare
from myxtts.files import read_json
from myxtts.pipeline.order import RunOrder
from myxtts.pipeline.preparation_settings import PreparationSettings, Target

_MOST_BYTES = 1 << 30
"""It names every clip that failed so far."""


@dataclass(frozen=True)
class Production:
    """Everything that decides about the batches of a run besides its clips."""

    config: XTTSConfig
    preparation: PreparationSettings
    validation_interval: int
    first_step: int
    end_step: int
    codec_folder: Path | None
    """A model directory with the DVAE; None to train it."""
    cache_folder: Path
    """Where codes are kept with `--cache disk`."""
    failures: tuple[Failure, ...] = ()
    """Of training clips in the run so far."""
    share: RowShare = WHOLE
    """The rows of every batch that are made."""

    def make_order(self, data: RunData) -> RunOrder:
        """The order of the stream. Numbers do not depend on where it begins."""
        return RunOrder(
            data.sampler,
            data.validation_batches,
            validation_interval=self.validation_interval,
            end_step=self.end_step,
        )


def write_production(production: Production, path: Path) -> None:
    """Writes a production to a file that `read_production` reads."""
    values = {
        "config": dump_sections(production.config),
        "preparation": asdict(production.preparation),
        "validation_interval": production.validation_interval,
        "first_step": production.first_step,
        "end_step": production.end_step,
        "codec_folder": None if production.codec_folder is None else str(production.codec_folder),
        "cache_folder": str(production.cache_folder),
        "failures": [astuple(failure) for failure in production.failures],
        "share": astuple(production.share),
    }
    path.write_text(json.dumps(values), encoding="utf-8")


def read_production(path: Path) -> Production:
    """The production that was written to a file."""
    values = read_json(path, dict, most_bytes=_MOST_BYTES)
    return Production(
        config=XTTSConfig(**values["config"]),
        preparation=_parse_preparation(values["preparation"]),
        validation_interval=values["validation_interval"],
        first_step=values["first_step"],
        end_step=values["end_step"],
        codec_folder=None if values["codec_folder"] is None else Path(values["codec_folder"]),
        cache_folder=Path(values["cache_folder"]),
        failures=tuple(Failure(*failure) for failure in values["failures"]),
        share=RowShare(*values["share"]),
    )


def _parse_preparation(values: Mapping[str, Any]) -> PreparationSettings:
    augment = values["augment"]
    return PreparationSettings(
        **{
            **values,
            "target": Target(values["target"]),
            "mel_norms": tuple(values["mel_norms"]),
            "augment": None if augment is None else AugmentSettings(**augment),
        }
    )
