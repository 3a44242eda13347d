"""The run that is profiled: the user's configuration, data and model, in a folder that is thrown away afterwards."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from myxtts.checkpoints import write_model_directory
from myxtts.config import XTTSConfig
from myxtts.data.run_data import RunData, collect_run_data
from myxtts.devices.plan import DevicePlan
from myxtts.models.build import build_dvae
from myxtts.models.names import to_checkpoint
from myxtts.models.sizes import MEL_CHANNELS
from myxtts.pipeline.batches import PRODUCER_FOLDER, Batches, open_batches
from myxtts.pipeline.code_choice import FOLDER_NAME, choose_cache_folder
from myxtts.pipeline.recipe import BatchRecipe, Target, choose_preparation
from myxtts.training.model import TrainedModel, build_codec_step, build_gpt_step
from myxtts.training.profiling.plan import refuse_decoder
from myxtts.training.starting_point import (
    MEL_STATISTICS,
    Codec,
    StartingPoint,
    find_codec,
    fit_model_config,
    read_codec,
    read_starting_point,
)
from myxtts.utils.commons import get_device_context

NEVER = 10**6
"""Steps; no measurement comes so far."""


@dataclass(frozen=True, eq=False)
class ProfileSetup:
    """Everything a profile needs, before the model is built."""

    config: XTTSConfig
    plan: DevicePlan
    data: RunData
    codec: Codec | None
    """None when the codec itself is trained."""
    start: StartingPoint | None
    folder: Path
    notes: tuple[str, ...] = ()
    """What differs from the run that was asked for."""

    def build_model(self) -> TrainedModel:
        """The model as a run would build it. Call it under the model device's scope."""
        if self.codec is None:
            # From the first step with codes, as in most of a run.
            return build_codec_step(self.config, make_even_norms(), steps=NEVER, free_steps=0)
        return build_gpt_step(self.config, self.data, self.codec, self.start)

    def open_batches(self, recipe: BatchRecipe | None = None) -> Batches:
        """The batches of the run, or of another recipe for it."""
        return open_batches(recipe or self.make_recipe(), self.data, folder=self.folder / PRODUCER_FOLDER)

    def make_recipe(self, *, keeps_codes_aside: bool = False) -> BatchRecipe:
        """What batches are made of: no validation, and no end.

        Args:
            keeps_codes_aside: codes are kept in the profile's own folder, where none are at first.
        """
        codec = self.codec
        target, norms = (Target.CODEC, make_even_norms()) if codec is None else (Target.GPT, codec.mel_norms)
        # Codes of weights that nobody keeps are not kept beside the corpus.
        is_aside = keeps_codes_aside or codec is None or codec.folder.is_relative_to(self.folder)
        return BatchRecipe(
            config=self.config,
            plan=self.plan,
            preparation=choose_preparation(self.config, target, norms.tolist()),
            validation_interval=NEVER,
            first_step=0,
            end_step=NEVER,
            codec_folder=None if codec is None else codec.folder,
            cache_folder=self.folder / FOLDER_NAME if is_aside else choose_cache_folder(self.data, self.folder),
        )


def set_up_profile(config: XTTSConfig, plan: DevicePlan, folder: Path) -> ProfileSetup:
    """The run of a configuration, its data read and its codec found, in a folder. The plan must be in force already."""
    refuse_decoder(config)
    start = codec = None
    notes: tuple[str, ...] = ()
    if config.training.stage != "codec" and config.training.init_from:
        start = read_starting_point(Path(config.training.init_from), folder, is_resumed=False)
    data = collect_run_data(config, folder=folder, vocabulary=None if start is None else start.vocabulary)
    if config.training.stage != "codec":
        codec = find_codec(config, start)
        if codec is None:
            codec = _write_random_codec(config, folder / "codec")
            notes = ("No codec was given: one of random weights prepares here. It costs the same.",)
    fitted = fit_model_config(config, start, None if codec is None else codec.config, data.text_tokens)
    return ProfileSetup(fitted, plan, data, codec, start, folder, notes)


def _write_random_codec(config: XTTSConfig, folder: Path) -> Codec:
    """A codec of a configuration's size and random weights: it costs what a trained one does."""
    # On the host: the device that prepares loads it from the folder, as it does in a run.
    with get_device_context("/CPU:0"):
        weights = to_checkpoint(build_dvae(config.model, seed=0))
    write_model_directory(folder, config=config, model={MEL_STATISTICS: make_even_norms()}, dvae=weights)
    return read_codec(folder)


def make_even_norms() -> NDArray[np.float32]:
    """Mel statistics that change nothing."""
    return np.ones(MEL_CHANNELS, np.float32)
