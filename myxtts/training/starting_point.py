"""What a run starts with: nothing, a codec, or a whole model to fine-tune."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from myxtts.checkpoints.coqui import import_coqui_files
from myxtts.checkpoints.model_directory import (
    VOCABULARY_NAME,
    ModelDirectory,
    copy_model_directory,
    read_model_directory,
    require_weights,
)
from myxtts.checkpoints.store import START_FOLDER, find_model_directory, find_own_model, have_same_weights
from myxtts.checkpoints.tensors import Tensor, read_array
from myxtts.config import ModelConfig, XTTSConfig
from myxtts.config.model import SHAPE_NAMES
from myxtts.config.presets import MODEL_SIZES
from myxtts.data.code_cache import digest_arrays
from myxtts.errors import StartingPointError
from myxtts.models.weights import DECODER_PREFIX, GPT_PREFIX, find_value_problem
from myxtts.text.tokenizer import read_vocabulary

_log = logging.getLogger(__name__)

MEL_STATISTICS = "mel_stats"
_BESIDE = {
    "dvae": "dvae.pth",
    "vocabulary": "vocab.json",
    "mel_statistics": "mel_stats.pth",
    "speakers": "speakers_xtts.pth",
}


@dataclass(frozen=True, eq=False)
class Codec:
    """A trained DVAE as it lies on the disk."""

    folder: Path
    config: ModelConfig
    weights: Mapping[str, Tensor]
    mel_norms: NDArray[np.float32]

    @property
    def digest(self) -> str:
        """What two codecs have alike only if their codes mean the same."""
        weights = {name: read_array(tensor) for name, tensor in self.weights.items()}
        return digest_arrays({**weights, MEL_STATISTICS: self.mel_norms})


@dataclass(frozen=True, eq=False)
class StartingPoint:
    """A model to fine-tune. Everything in it but what is trained stays as it is."""

    directory: ModelDirectory

    @property
    def folder(self) -> Path:
        return self.directory.path

    @property
    def config(self) -> ModelConfig:
        return self.directory.config.model

    @property
    def weights(self) -> Mapping[str, Tensor]:
        """Of the whole model, by their names in it."""
        return self.directory.model

    @property
    def vocabulary(self) -> Path | None:
        """The file of its vocabulary, if it has one."""
        path = self.folder / VOCABULARY_NAME
        return path if path.exists() else None

    @property
    def has_decoder(self) -> bool:
        """Whether it has a waveform decoder."""
        return any(name.startswith(DECODER_PREFIX) for name in self.weights)


def read_codec(path: Path) -> Codec:
    """The codec in a folder: a model directory, or a run folder, whose best checkpoint is taken."""
    return take_codec(read_model_directory(find_model_directory(path)))


def take_codec(model: ModelDirectory) -> Codec:
    """The codec in a model directory that is open."""
    folder = model.path
    if not model.dvae:
        raise StartingPointError(
            f"{folder} has no codec (dvae.safetensors). Train one with --stage codec, or import one with "
            "`myxtts import MODEL.pth --dvae dvae.pth --mel-stats mel_stats.pth`."
        )
    if MEL_STATISTICS not in model.model:
        raise StartingPointError(
            f"{folder} has a codec but no mel statistics, without which its codes mean nothing. Import it again with "
            "--mel-stats mel_stats.pth."
        )
    require_weights(model)
    norms = np.asarray(read_array(model.model[MEL_STATISTICS]), np.float32)
    problem = find_value_problem(norms)
    if problem is None and not (norms > 0).all():
        problem = "holds a number that is not above 0"
    if problem is not None:
        raise StartingPointError(
            f"{folder}: {MEL_STATISTICS}, the scale of each mel channel, {problem}. Give another codec."
        )
    return Codec(folder, model.config.model, model.dvae, norms)


def find_codec(config: XTTSConfig, start: StartingPoint | None) -> Codec | None:
    """The codec a GPT is trained with: the one given, else that of the model to fine-tune; None where there is neither."""
    given = config.training.codec
    if given is not None:
        return read_codec(Path(given))
    if start is None:
        return None
    try:
        return take_codec(start.directory)
    except StartingPointError as error:
        raise StartingPointError(
            f"{error} A model is fine-tuned on the codes of its own codec; give that one with --codec."
        ) from None


def open_start(
    config: XTTSConfig, folder: Path, *, is_resumed: bool = False, keeps: bool = False
) -> tuple[XTTSConfig, StartingPoint | None]:
    """The model that a run starts from, None for none; and the configuration, for a decoder with the lengths of prompts and clips
    that its model was trained on, where no others were given.

    Args:
        folder: keeps what is imported.
        is_resumed: whether the run goes on from a checkpoint, with what was imported when it was started.
        keeps: whether the model is copied to the folder too: what it came from may be trained on, or go away.
    """
    training = config.training
    # A decoder is trained for a model, by default that of the run's own folder.
    origin = training.init_from or (training.checkpoint_dir if training.stage == "decoder" else None)
    if origin is None:
        return config, None
    start = read_starting_point(Path(origin), folder, is_resumed=is_resumed, keeps=keeps)
    if training.stage == "decoder":
        given, trained_on = config.given_values().get("data", {}), start.directory.config.data
        lengths = {"prompt_seconds": trained_on.prompt_seconds, "max_clip_seconds": trained_on.max_clip_seconds}
        config = config.replace(data={name: value for name, value in lengths.items() if name not in given})
    return config, start


def read_starting_point(path: Path, run_folder: Path, *, is_resumed: bool, keeps: bool = False) -> StartingPoint:
    """The model a run fine-tunes or builds upon: a model directory, a run folder, or a Coqui `model.pth`, which is imported first.
    Arguments as for `open_start`."""
    target = run_folder / START_FOLDER
    if path.is_file():
        # Of a run that goes on the settings were compared: it is of the same file. Before, another one may be given.
        if not (is_resumed and target.is_dir()):
            _import_coqui(path, target)
    elif keeps:
        _keep_model(path, target, is_resumed=is_resumed)
    else:
        target = find_model_directory(path)
    model = read_model_directory(target)
    if not any(name.startswith(GPT_PREFIX) for name in model.model):
        raise StartingPointError(
            f"{target} has no GPT to fine-tune: it holds a codec. Give it with --codec instead of --init-from."
        )
    require_weights(model)
    return StartingPoint(model)


def _import_coqui(path: Path, target: Path) -> None:
    beside = {name: path.with_name(file) for name, file in _BESIDE.items()}
    found: dict[str, Any] = {name: file for name, file in beside.items() if file.exists()}
    report, names = import_coqui_files(path, target, **found), ", ".join(found) or "nothing beside it"
    _log.info("Imported %s (%d tensors) with %s to %s.", path, report.tensors, names, target)


def _keep_model(path: Path, target: Path, *, is_resumed: bool) -> None:
    # Inside the folder of a GPT's run that GPT is meant, whatever decoder it has by now.
    find = find_own_model if target.parent.parent == path else find_model_directory
    if not (is_resumed and target.is_dir()):
        copy_model_directory(read_model_directory(find(path)), target)
    elif path.is_dir() and not have_same_weights(find(path), target):
        _log.warning(
            "The model in %s is no longer the one this run was started with, and the run goes on with that one, kept in %s. To "
            "take the new one, start anew with --reset-training.",
            path,
            target,
        )


def require_vocabulary(start: StartingPoint, vocabulary: Path, tokens: int, *, is_trained: bool) -> None:
    """Raises `StartingPointError` when a vocabulary gives tokens that a model knows other ids: their rows would be read as
    those of other tokens. Another number of them needs a model that is trained."""
    own = start.vocabulary or vocabulary
    known, given = (read_vocabulary(path)["model"]["vocab"] for path in (own, vocabulary))
    moved = sorted(token for token, row in known.items() if given.get(token) != row)
    if moved:
        raise StartingPointError(
            f"{vocabulary} must have all tokens of {own} under the same ids, but {len(moved)} of {len(known)} are "
            f"missing or have others, such as {moved[0]!r}. Leave out --vocabulary to take the model's own, or make a larger one "
            "from it with `myxtts vocabulary`."
        )
    if not is_trained and tokens != start.config.text_tokens:
        raise StartingPointError(
            f"The vocabulary has {tokens} tokens, but the GPT in {start.folder} knows {start.config.text_tokens}, and is not "
            "trained here. Leave out --vocabulary to take its own."
        )


def fit_model_config(
    config: XTTSConfig, start: StartingPoint | None, codec: ModelConfig | None, tokens: int
) -> XTTSConfig:
    """The configuration with the numbers that the starting point, the codec and the vocabulary fix.

    Raises `StartingPointError` where other ones were given.
    """
    given = config.given_values().get("model", {})
    fixed: dict[str, Any] = {"text_tokens": tokens}
    if start is not None:
        numbers = start.config.model_dump()
        fixed = {**{name: numbers[name] for name in SHAPE_NAMES}, "text_tokens": tokens}
        if not start.has_decoder:
            # Of a decoder that is not there, the width is still to be chosen.
            fixed["decoder_width"] = given.get("decoder_width", numbers["decoder_width"])
        if codec is not None and codec.audio_codes != start.config.audio_codes:
            raise StartingPointError(
                f"--codec has {codec.audio_codes} codes, but {start.folder} speaks {start.config.audio_codes}. Give the codec it was "
                "trained on, or leave out --codec to take its own."
            )
    if codec is not None:
        fixed |= {name: getattr(codec, name) for name in ("dvae_width", "audio_codes")}
    for name, value in fixed.items():
        if name in given and given[name] != value:
            raise StartingPointError(
                f"model.{name} was given as {given[name]}, but {'the vocabulary' if name == 'text_tokens' else 'the model that is started from'} "
                f"has {value}. Leave it out."
            )
    if start is not None and "size" in given and MODEL_SIZES[config.model.size]["gpt_width"] != fixed["gpt_width"]:
        raise StartingPointError(
            f"--model-size {config.model.size} was given, but {start.folder} is another size (width {fixed['gpt_width']}). "
            "Leave --model-size out: a fine-tuned model keeps its size."
        )
    return config.replace(model=fixed)
