"""What the batches of a run are made of: one record for the trainer and for the process that prepares for it, and its JSON."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from pydantic import TypeAdapter

from myxtts.audio.augment import AugmentSettings
from myxtts.checkpoints import read_array, read_model_directory, write_model_directory
from myxtts.config import DataConfig, XTTSConfig
from myxtts.data.buckets import Bucket
from myxtts.data.code_cache import ClipIds
from myxtts.data.run_data import RunData, save_run_data
from myxtts.data.sampler import WHOLE, Failure, Kind, PromptSharing, RowShare, RunOrder
from myxtts.devices.plan import DevicePlan
from myxtts.files import open_scratch_folder, read_bytes, read_json
from myxtts.units import SAMPLE_RATE_HZ, SAMPLES_PER_CODE

MOST_PARTS = 9999
RECIPE_NAME = "recipe.json"
"""Beside the run's data, for who prepares elsewhere."""
_CODEC_FOLDER, _MEL_STATISTICS = "codec", "mel_stats"
_MOST_KIT_BYTES = 1 << 40
_MOST_BYTES = 1 << 30
"""It names every clip that failed so far."""


class Target(StrEnum):
    """What is being trained; it decides what is prepared."""

    CODEC = "codec"
    GPT = "gpt"
    DECODER = "decoder"


@dataclass(frozen=True)
class PreparationSettings:
    """What batches are to hold."""

    target: Target
    mel_norms: tuple[float, ...]
    """The codec's, one for each band."""
    prompt_samples: int
    """Length of the buffer that a voice prompt stands in; longer prompts are cut."""
    blank_prompt: bool = False
    """What a prompt was cut from does not count in the loss."""
    augment: AugmentSettings | None = None
    """Of training batches; None changes nothing."""
    rows_at_a_time: int | None = None
    """Clips prepared together; None for all of a batch. Fewer need less memory."""
    voices: int = 0
    """The most voice prompts of a training batch, whose rows share them; 0: each row has its own."""

    @property
    def sharing(self) -> PromptSharing | None:
        """How rows share prompts, if they do."""
        return PromptSharing(self.voices, self.prompt_samples) if self.voices else None

    @property
    def changes_waves(self) -> bool:
        """Whether clips sound different every time, so that nothing made from them can be kept."""
        augment = self.augment
        return augment is not None and bool(augment.gain_db or augment.speed_change or augment.noise_db is not None)

    def measure_samples(self, samples: int, kind: Kind) -> int:
        """Samples of a batch after augmentation: room for its slowest clip."""
        if self.augment is None or not self.augment.speed_change or kind is Kind.VALIDATION:
            return samples
        stretched = math.ceil(samples * self.augment.longest_stretch)
        return -(-stretched // SAMPLES_PER_CODE) * SAMPLES_PER_CODE


def choose_preparation(
    config: XTTSConfig, target: Target, mel_norms: Sequence[float], *, speakers: int = 1
) -> PreparationSettings:
    """The settings that a configuration stands for; `speakers` are those of the clips that are trained on."""
    return PreparationSettings(
        target=target,
        mel_norms=tuple(map(float, mel_norms)),
        prompt_samples=round(config.data.prompt_seconds * SAMPLE_RATE_HZ),
        blank_prompt=config.training.blank_prompt,
        # A decoder must sound like the recording, not like what was done to it.
        augment=None if target is Target.DECODER else choose_augmentation(config.data),
        voices=speakers if target is not Target.CODEC and config.data.prompt_from == "shared" else 0,
    )


def reads_prompts(data: DataConfig, target: Target) -> bool:
    """Whether clips hear a part of other ones, which are read too, as their voice prompts. A codec hears no prompts."""
    return target is not Target.CODEC and data.prompt_from != "clip"


def choose_augmentation(data: DataConfig) -> AugmentSettings | None:
    augment = AugmentSettings(
        gain_db=data.augment_gain_db,
        noise_db=data.augment_noise_db,
        speed_change=data.augment_speed,
        frame_masks=data.augment_frame_masks,
        band_masks=data.augment_band_masks,
    )
    return None if augment == AugmentSettings() else augment


@dataclass(frozen=True)
class BatchRecipe:
    """Everything that decides about the batches of a run besides its clips."""

    config: XTTSConfig
    plan: DevicePlan
    """Of all who take part; applied already in the process that takes the batches."""
    preparation: PreparationSettings
    validation_interval: int
    first_step: int
    end_step: int
    codec_folder: Path | None
    """A model directory with the DVAE; None to train it."""
    cache_folder: Path
    """Where codes are kept with `--cache disk`."""
    is_validated: bool = True
    """Whether the round due after `first_step` updates, if one is, was finished before."""
    failures: tuple[Failure, ...] = ()
    share: RowShare = WHOLE
    """The rows of every batch that are made."""

    @property
    def reads_prompts(self) -> bool:
        return reads_prompts(self.config.data, self.preparation.target)

    def list_buckets(self, data: RunData) -> tuple[Bucket, ...]:
        return self.share.shrink_all(data.sampler.plan.buckets)

    def make_order(self, data: RunData) -> RunOrder:
        return RunOrder(
            data.sampler,
            data.validation_batches,
            validation_interval=self.validation_interval,
            end_step=self.end_step,
            first_step=self.first_step,
            is_validated=self.is_validated,
        )

    def write(self, path: Path) -> None:
        # Not pydantic's own JSON: the name of a folder may hold half characters, which that refuses.
        path.write_text(json.dumps(TypeAdapter(BatchRecipe).dump_python(self, mode="json")), encoding="utf-8")


def read_recipe(path: Path) -> BatchRecipe:
    return TypeAdapter(BatchRecipe).validate_python(read_json(path, dict, most_bytes=_MOST_BYTES))


@dataclass(frozen=True, eq=False)
class Kit:
    """What a process on another machine needs to prepare, besides the clips, which it must find where the trainer does."""

    files: dict[str, NDArray[np.uint8]]
    """By path, as they lie in a folder."""
    execution: Any
    """How operations are run: a `devices.runtime.Execution`."""
    task: str
    """What it does: `package.module:function`, called there as `function(folder, recipe, execution)`."""

    def unpack(self, folder: Path) -> BatchRecipe:
        """Puts everything into a folder; the recipe's codec is the one there."""
        for name, content in self.files.items():
            (folder / name).parent.mkdir(exist_ok=True)
            content.tofile(folder / name)
        recipe = read_recipe(folder / RECIPE_NAME)
        return recipe if recipe.codec_folder is None else replace(recipe, codec_folder=folder / _CODEC_FOLDER)


def pack_kit(recipe: BatchRecipe, data: RunData, execution: Any, task: str) -> Kit:
    """The kit of a run. Its codec goes with it: one that the run has trained itself lies on the trainer's disk."""
    with open_scratch_folder("kit") as folder:
        save_run_data(data, folder)
        recipe.write(folder / RECIPE_NAME)
        if recipe.codec_folder is not None:
            whole = read_model_directory(recipe.codec_folder, verify_checksums=False)
            assert whole.dvae is not None, "it was found to be a codec"
            norms = {_MEL_STATISTICS: read_array(whole.model[_MEL_STATISTICS])}
            dvae = {name: read_array(tensor) for name, tensor in whole.dvae.items()}
            write_model_directory(folder / _CODEC_FOLDER, config=whole.config, model=norms, dvae=dvae)
        paths = [path for path in sorted(folder.rglob("*")) if path.is_file()]
        contents = (np.frombuffer(read_bytes(path, _MOST_KIT_BYTES), np.uint8) for path in paths)
        names = (str(path.relative_to(folder)) for path in paths)
        return Kit(dict(zip(names, contents, strict=True)), execution, task)


@dataclass(frozen=True)
class ClipPart:
    """One of several parts of a run's clips, for machines that each prepare one; the whole unless told otherwise."""

    number: int = 1
    """From 1 on."""
    parts: int = 1

    def __post_init__(self) -> None:
        assert 1 <= self.number <= self.parts <= MOST_PARTS, self

    def choose(self, ids: ClipIds) -> NDArray[np.intp]:
        """Which of some clips are of this part, by their places among `ids`."""
        # By each clip's own id and not by counting: machines whose scans found different clips still leave none out.
        return np.flatnonzero(ids[:, 0] % np.uint64(self.parts) == self.number - 1)
