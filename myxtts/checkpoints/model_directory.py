"""A model in MyXTTS' own form: a directory that is written whole or not at all, and says what it is.

model.safetensors   the weights, by Coqui's names
dvae.safetensors    the DVAE's, where there is one
config.yaml         the configuration, as `--config` takes it
vocab.json          the tokenizer's vocabulary, where there is one
speakers.safetensors  named voices, where there are any
config.json         what the imported file said about itself, where it was imported
manifest.json       format, sizes, checksums
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Required, TypedDict, TypeVar

from myxtts.checkpoints.errors import DamagedFileError, ModelFileError
from myxtts.checkpoints.safetensors_file import open_safetensors, write_safetensors
from myxtts.checkpoints.sealed_directory import DirectoryWriter, Manifest, open_sealed_directory, write_sealed_directory
from myxtts.checkpoints.tensor import LazyTensor, Tensor
from myxtts.config.config import XTTSConfig
from myxtts.config.resolve import dump_sections, resolve_config
from myxtts.config.yaml_file import dump_yaml
from myxtts.files import FileError, read_json, read_text
from myxtts.models.names import compare_arrays
from myxtts.models.sizes import read_sizes
from myxtts.models.weights import DECODER_PREFIX, GPT_PREFIX, SPEAKER_PREFIX, list_dvae_weights, list_xtts_weights

Content = TypeVar("Content")

KIND = "myxtts model"
FORMAT_VERSION = 1

MODEL_NAME = "model.safetensors"
DVAE_NAME = "dvae.safetensors"
CONFIG_NAME = "config.yaml"
SOURCE_CONFIG_NAME = "config.json"
VOCABULARY_NAME = "vocab.json"
SPEAKERS_NAME = "speakers.safetensors"
FILE_NAMES = (MODEL_NAME, DVAE_NAME, CONFIG_NAME, SOURCE_CONFIG_NAME, VOCABULARY_NAME, SPEAKERS_NAME)
"""All that a model consists of, beside the manifest. A training checkpoint has more."""

Voices = Mapping[str, Mapping[str, Tensor]]
"""Name of a voice -> its tensors, `gpt_cond_latent` and `speaker_embedding`."""


class ModelContent(TypedDict, total=False):
    """What a model directory is made of: the keyword arguments of `write_model_directory`."""

    config: Required[XTTSConfig]
    model: Required[Mapping[str, Tensor]]
    dvae: Mapping[str, Tensor] | None
    vocabulary: str | None
    speakers: Voices | None
    source_config: Mapping[str, Any] | None
    notice: str | None


@dataclass(frozen=True)
class ModelDirectory:
    """A model as it lies on the disk; its tensors are read when they are asked for."""

    path: Path
    manifest: Manifest
    config: XTTSConfig
    model: Mapping[str, LazyTensor]
    dvae: Mapping[str, LazyTensor] | None
    vocabulary: str | None
    """The text of vocab.json."""
    speakers: Mapping[str, Mapping[str, LazyTensor]]
    """Named voices; empty where there are none."""
    source_config: Mapping[str, Any] | None


def write_model_directory(
    target: str | os.PathLike[str],
    *,
    config: XTTSConfig,
    model: Mapping[str, Tensor],
    dvae: Mapping[str, Tensor] | None = None,
    vocabulary: str | None = None,
    speakers: Voices | None = None,
    source_config: Mapping[str, Any] | None = None,
    notice: str | None = None,
    write_more: Callable[[DirectoryWriter], None] | None = None,
    facts: Mapping[str, Any] | None = None,
) -> None:
    """Puts a model at `target`, in place of what is there, verified by reading it back.

    Args:
        target: the directory.
        config: the configuration the model was made with.
        model: tensors by name.
        dvae: tensors of the DVAE by name.
        vocabulary: the text of vocab.json.
        speakers: named voices.
        source_config: what the file the model was imported from said about itself.
        notice: a sentence that must travel with the weights, such as their licence.
        write_more: creates further files, sealed together with the model's.
        facts: further entries for the manifest.
    """

    def write(files: DirectoryWriter) -> None:
        with files.create(MODEL_NAME) as file:
            write_safetensors(file, model)
        if dvae is not None:
            with files.create(DVAE_NAME) as file:
                write_safetensors(file, dvae)
        files.write_text(CONFIG_NAME, dump_yaml(dump_sections(config)))
        if vocabulary is not None:
            files.write_text(VOCABULARY_NAME, vocabulary)
        if speakers:
            with files.create(SPEAKERS_NAME) as file:
                write_safetensors(file, _flatten_voices(speakers))
        if source_config is not None:
            files.write_json(SOURCE_CONFIG_NAME, source_config)
        if write_more is not None:
            write_more(files)

    write_sealed_directory(
        target, KIND, FORMAT_VERSION, write, {**({"notice": notice} if notice else {}), **(facts or {})}
    )


def read_model_directory(path: str | os.PathLike[str], *, verify_checksums: bool = True) -> ModelDirectory:
    """The model in a directory. Raises `ModelFileError` for one that is damaged, incomplete or too new.

    Args:
        path: the directory.
        verify_checksums: reads every byte once, which takes seconds for a full-size model.
    """
    directory = Path(path)
    manifest = open_sealed_directory(directory, KIND, FORMAT_VERSION, verify_checksums=verify_checksums)
    for name in (MODEL_NAME, CONFIG_NAME):
        if name not in manifest.files:
            raise ModelFileError(directory, f"lacks {name}. Copy the directory again.")

    def read_part(name: str, read: Callable[[Path], Content]) -> Content | None:
        try:
            return read(directory / name) if name in manifest.files else None
        except FileError as error:
            raise DamagedFileError(error.path, f"{error.problem} Copy the directory again.") from error

    return ModelDirectory(
        path=directory,
        manifest=manifest,
        # Without the process's environment: a saved model means the same everywhere.
        config=resolve_config(yaml_path=directory / CONFIG_NAME, environ={}),
        model=open_safetensors(directory / MODEL_NAME),
        dvae=open_safetensors(directory / DVAE_NAME) if DVAE_NAME in manifest.files else None,
        vocabulary=read_part(VOCABULARY_NAME, read_text),
        speakers=_group_voices(open_safetensors(directory / SPEAKERS_NAME)) if SPEAKERS_NAME in manifest.files else {},
        source_config=read_part(SOURCE_CONFIG_NAME, _read_source_config),
    )


def require_weights(directory: ModelDirectory) -> None:
    """Raises `CheckpointMismatchError` unless every part that is there has the weights that the configuration says, in its shapes.

    For whoever builds a network: seen from the files' headers, so that a configuration that is wrong takes no memory.
    """
    sizes = read_sizes(directory.config.model)
    there = tuple(
        part
        for part in (GPT_PREFIX, DECODER_PREFIX, SPEAKER_PREFIX, "mel_stats")
        if any(name.startswith(part) for name in directory.model)
    )
    weights = list_xtts_weights(sizes.gpt, sizes.decoder, sizes.speaker)
    parts = [(directory.model, [weight for weight in weights if weight.key.startswith(there)])]
    if directory.dvae is not None:
        parts.append((directory.dvae, list_dvae_weights(sizes.dvae)))
    for tensors, needed in parts:
        report = compare_arrays(needed, tensors)
        # What nobody knows was let in by an import that was told so; it sizes nothing.
        report.unexpected.clear()
        report.require_complete(str(directory.path))


def _read_source_config(path: Path) -> dict[str, Any]:
    # Old trainers saved numbers that JSON does not know.
    return read_json(path, dict, allow_infinite=True)


def _flatten_voices(speakers: Voices) -> dict[str, Tensor]:
    # The part first: a name may hold any character, a part's name holds no slash.
    return {f"{part}/{name}": tensor for name, voice in speakers.items() for part, tensor in voice.items()}


def _group_voices(tensors: Mapping[str, LazyTensor]) -> dict[str, dict[str, LazyTensor]]:
    voices: dict[str, dict[str, LazyTensor]] = {}
    for key, tensor in tensors.items():
        part, _, name = key.partition("/")
        voices.setdefault(name, {})[part] = tensor
    return voices
