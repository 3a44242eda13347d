"""The model that a run trains, on its device, and what of it goes into a checkpoint."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from myxtts.checkpoints.errors import DamagedFileError
from myxtts.checkpoints.model_directory import ModelContent
from myxtts.checkpoints.store import TENSORS_NAME, TrainingCheckpoint
from myxtts.checkpoints.tensor import LazyTensor, Tensor, read_array
from myxtts.config import XTTSConfig
from myxtts.data.run_data import RunData
from myxtts.files import read_text
from myxtts.inference.generation import choose_penalty
from myxtts.models.build import build_dvae, build_gpt
from myxtts.models.dvae import DVAE
from myxtts.models.gpt import GPT
from myxtts.models.names import LoadReport, find_variable, load_checkpoint_arrays, to_checkpoint_layout
from myxtts.models.vocabulary import grow_text_vocabulary
from myxtts.models.weights import GPT_PREFIX, SPEAKER_PREFIX, Weight
from myxtts.pipeline.codes import load_codec
from myxtts.training.codec_objective import CodecObjective
from myxtts.training.listening import (
    CodeSounds,
    Listener,
    encode_row,
    predict_codes,
    render_codes,
    speak_codes,
)
from myxtts.training.objectives import GPTObjective, Objective
from myxtts.training.optimizer import BETAS
from myxtts.training.starting_point import MEL_STATISTICS, Codec, StartingPoint
from myxtts.training.step import StepSettings, TrainStep
from myxtts.utils.commons import get_device_context

OWN_WEIGHTS = "own"
"""Where the weights themselves are kept when the model's file holds their average."""


@dataclass(frozen=True, eq=False)
class TrainedModel:
    """A step, and the frame of the checkpoints it is saved in."""

    step: TrainStep
    prefix: str
    """Before the names of the trained weights."""
    frame: ModelContent
    """Everything of a model directory but the trained weights."""
    make_listener: Callable[[Path], Listener]
    """Makes what is listened to, in a run's folder."""
    frozen: tuple[Any, ...] = ()
    """Models that the step asks and does not change."""

    def list_variables(self) -> Iterator[tuple[str, Any]]:
        """Every variable that must be on the model device, by name."""
        for model in (self.step.objective.model, *self.frozen):
            for variable in model.variables:
                yield variable.path, variable.value
        yield from self.step.list_state()

    def collect_content(self) -> ModelContent:
        """The model, its average where one is kept. Each weight is fetched when it is read."""
        average = self.step.average
        trained = self._list_weights({} if average is None else dict(average.list_state()))
        if self.prefix:
            return {**self.frame, "model": {**self.frame["model"], **trained}}
        return {**self.frame, "dvae": trained}

    def collect_tensors(self) -> dict[str, Tensor]:
        """What a checkpoint needs beside the model."""
        tensors: dict[str, Tensor] = {
            # Fetched one by one when they are written: a large model's state is not held on the host a second time.
            name: LazyTensor(tuple(variable.shape), np.dtype(variable.dtype.as_numpy_dtype), variable.numpy)
            for name, variable in self.step.list_state()
        }
        if self.step.average is not None:
            tensors |= {f"{OWN_WEIGHTS}/{name}": tensor for name, tensor in self._list_weights({}).items()}
        return tensors

    def restore(self, saved: TrainingCheckpoint) -> None:
        """Takes model and state from a checkpoint."""
        model = self.step.objective.model
        mark = f"{OWN_WEIGHTS}/"
        own = {name.removeprefix(mark): tensor for name, tensor in saved.tensors.items() if name.startswith(mark)}
        weights = own or (saved.model.model if self.prefix else saved.model.dvae)
        load_checkpoint_arrays(model, weights or {}, prefix=self.prefix).require_complete()
        state = dict(self.step.list_state())
        source = saved.model.path / TENSORS_NAME
        shapes = {
            name: (tuple(variable.shape), saved.tensors[name].shape)
            for name, variable in state.items()
            if name in saved.tensors
        }
        LoadReport(
            missing=[name for name in state if name not in shapes],
            mis_shaped=[(name, need, found) for name, (need, found) in shapes.items() if need != found],
        ).require_complete(str(source))
        for name, variable in state.items():
            values = read_array(saved.tensors[name])
            if values.dtype != variable.dtype.as_numpy_dtype or not np.isfinite(values).all():
                raise DamagedFileError(
                    source,
                    f"holds {name} as {values.dtype}, or with numbers that are not finite; it must be {variable.dtype.name}. Go on "
                    "from an older checkpoint.",
                )
            variable.assign(values)

    def _list_weights(self, instead: Mapping[str, Any]) -> dict[str, LazyTensor]:
        """The model's weights under their names in a checkpoint, each as it is when it is read.

        Args:
            instead: variables that stand for the model's own, by their path in it.
        """
        model = self.step.objective.model
        tensors = {}
        for weight in model.list_weights():
            variable = instead.get(weight.variable)
            variable = find_variable(model, weight.variable) if variable is None else variable
            fetch = partial(_fetch, weight, variable)
            tensors[self.prefix + weight.key] = LazyTensor(weight.shape, np.dtype(weight.dtype), fetch)
        return tensors


def _fetch(weight: Weight, variable: Any) -> NDArray[Any]:
    return to_checkpoint_layout(weight, variable.numpy())


def build_gpt_step(
    config: XTTSConfig, data: RunData, codec: Codec, start: StartingPoint | None, gpt: GPT | None = None
) -> TrainedModel:
    """The GPT of a configuration, fresh, given, or from a starting point. Call it under the model device's scope."""
    gpt = gpt or build_gpt(
        config.model,
        seed=config.training.seed if start is None else None,
        dtype=config.data.mixed_precision,
        start_text_token=data.start_text_token,
        stop_text_token=data.stop_text_token,
    )
    if start is not None:
        _load_start(gpt, start, config)
    objective = GPTObjective(gpt, loss_mean=config.training.loss_mean, blank_prompt=config.training.blank_prompt)
    kept: Mapping[str, Tensor] = {} if start is None else start.kept
    frame: ModelContent = {
        "config": config,
        "model": {**kept, MEL_STATISTICS: codec.mel_norms},
        "dvae": codec.weights,
        "vocabulary": read_text(data.tokenizer_path),
    }
    if start is not None:
        frame |= {"speakers": start.speakers, "source_config": start.source_config, "notice": start.notice}

    def make_listener(folder: Path) -> Listener:
        with get_device_context("/CPU:0"):
            dvae, _ = load_codec(codec.folder)
            sounds = CodeSounds(dvae, codec.mel_norms)
        speak = None
        if config.training.speak:
            penalty = choose_penalty(is_published=any(name.startswith(SPEAKER_PREFIX) for name in kept))
            speak = render_codes(speak_codes(objective.model, penalty), sounds)
        return Listener(render_codes(predict_codes(objective), sounds), folder, speak=speak)

    return TrainedModel(build_step(objective, config, dropout=config.model.dropout), GPT_PREFIX, frame, make_listener)


def build_codec_step(
    config: XTTSConfig, mel_norms: NDArray[np.float32], *, steps: int, free_steps: int
) -> TrainedModel:
    """A fresh DVAE. Call it under the model device's scope.

    Args:
        steps: updates of the whole training.
        free_steps: those without codes, at its beginning.
    """
    dvae: DVAE = build_dvae(config.model, seed=config.training.seed, dtype=config.data.mixed_precision)
    objective = CodecObjective(dvae, seed=config.training.seed, free_steps=free_steps, total_steps=steps)
    frame: ModelContent = {"config": config, "model": {MEL_STATISTICS: mel_norms}}

    def make_listener(folder: Path) -> Listener:
        return Listener(render_codes(encode_row(dvae), CodeSounds(dvae, mel_norms)), folder)

    return TrainedModel(build_step(objective, config, dropout=0.0), "", frame, make_listener)


def build_step(
    objective: Objective, config: XTTSConfig, *, dropout: float, betas: tuple[float, float] = BETAS
) -> TrainStep:
    """The step that makes updates as a configuration says."""
    training = config.training
    return TrainStep(
        objective,
        StepSettings(
            seed=training.seed,
            weight_decay=training.weight_decay,
            betas=betas,
            clip_norm=training.clip_norm,
            ema_decay=training.ema_decay,
            uses_dropout=dropout > 0,
            uses_loss_scale=config.data.mixed_precision == "mixed_float16",
            uses_xla=config.data.enable_xla,
        ),
    )


def _load_start(gpt: GPT, start: StartingPoint, config: XTTSConfig) -> None:
    own = {name: tensor for name, tensor in start.weights.items() if name.startswith(GPT_PREFIX)}
    if start.config.text_tokens != config.model.text_tokens:
        arrays = {name: read_array(tensor) for name, tensor in own.items()}
        own = dict(grow_text_vocabulary(arrays, config.model.text_tokens, seed=config.training.seed, prefix=GPT_PREFIX))
    load_checkpoint_arrays(gpt, own, prefix=GPT_PREFIX).require_complete()
