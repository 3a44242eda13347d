"""A model in MyXTTS' own form: a directory that is written whole or not at all, and says what it is.

What was trained by LoRA holds its pairs alone and names its base: reading it merges them (`merge_adapter`).

model.safetensors   the weights, by Coqui's names
dvae.safetensors    the DVAE's, where there is one
config.yaml         the configuration, as `--config` takes it
vocab.json          the tokenizer's vocabulary, where there is one
speakers.safetensors  named voices, where there are any
config.json         what the imported file said about itself, where it was imported
manifest.json       format, sizes, checksums
int8.safetensors    kernels of 8 bits, kept by who spoke with them
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any, Required, TypedDict, Unpack

import numpy as np
from numpy.typing import NDArray

from myxtts import __version__
from myxtts.checkpoints.tensors import LazyTensor, Tensor, encode_safetensors, open_safetensors
from myxtts.config.config import ModelConfig, XTTSConfig
from myxtts.config.sources import RETIRED, dump_sections, dump_yaml, resolve_config
from myxtts.errors import DamagedFileError, ModelFileError
from myxtts.files import (
    FileError,
    MissingFileError,
    PathLike,
    explain_os_error,
    open_file,
    open_folder_atomically,
    read_json,
    read_text,
    recover_folder,
    require_free_folder,
)
from myxtts.models.sizes import read_sizes
from myxtts.models.weights import (
    DECODER_PREFIX,
    GPT_PREFIX,
    PAIR_DOWN,
    PAIR_UP,
    SPEAKER_PREFIX,
    CheckpointMismatchError,
    Weight,
    compare_arrays,
    list_dvae_weights,
    list_xtts_weights,
)

KIND = "myxtts model"
FORMAT_VERSION = 1

MANIFEST_NAME = "manifest.json"
MODEL_NAME = "model.safetensors"
DVAE_NAME = "dvae.safetensors"
CONFIG_NAME = "config.yaml"
SOURCE_CONFIG_NAME = "config.json"
VOCABULARY_NAME = "vocab.json"
SPEAKERS_NAME = "speakers.safetensors"
INT8_NAME = "int8.safetensors"
FILE_NAMES = (
    MODEL_NAME, DVAE_NAME, CONFIG_NAME, SOURCE_CONFIG_NAME, VOCABULARY_NAME, SPEAKERS_NAME, INT8_NAME, MANIFEST_NAME,
)  # fmt: skip
"""All that a model consists of. A training checkpoint has more."""
_MAX_MANIFEST_BYTES = 2**20
_COPY_AGAIN = "Copy the directory again."

Voices = Mapping[str, Mapping[str, Tensor]]
"""Name of a voice -> its tensors, `gpt_cond_latent` and `speaker_embedding`."""
Part = str | Mapping[str, Tensor]
"""What is written into a file: a text, or tensors by name."""


@dataclass(frozen=True)
class FileFacts:
    """What a file must be."""

    bytes: int
    sha256: str


@dataclass(frozen=True)
class AdapterBase:
    """The model that an adapter belongs to. Its weights and the adapter's make the model."""

    path: str
    """Of its directory, from the adapter's on."""
    sha256: str
    """Of the file of its weights."""
    factor: float
    """What the product of a pair is multiplied by before it is added to a matrix."""


@dataclass(frozen=True)
class Facts:
    """What is said of a model beyond its files."""

    notice: str | None = None
    """A sentence that must travel with the weights, such as their licence."""
    step: int | None = None
    """Of a training checkpoint: updates that are done."""
    metrics: Mapping[str, float] = field(default_factory=dict)
    """Of a training checkpoint, by name."""
    base: AdapterBase | None = None
    """Of an adapter."""
    merged_from: str | None = None
    """Of a copy of an adapter and its base as one model: the checksum of the adapter's file."""


@dataclass(frozen=True)
class Manifest:
    """What a directory holds."""

    format: str
    format_version: int
    files: Mapping[str, FileFacts]
    facts: Facts = field(default_factory=Facts)
    written_by: str = f"myxtts {__version__}"


class ModelContent(TypedDict, total=False):
    """What a model directory is made of."""

    config: Required[XTTSConfig]
    """The configuration the model was made with."""
    model: Required[Mapping[str, Tensor]]
    dvae: Mapping[str, Tensor] | None
    vocabulary: str | None
    """The text of vocab.json."""
    speakers: Voices | None
    source_config: Mapping[str, Any] | None
    """What the file the model was imported from said about itself; what JSON does not know becomes text."""
    notice: str | None
    """A sentence that must travel with the weights, such as their licence."""
    base: AdapterBase | None
    """Where `model` is an adapter: to what. Its voices, and whatever else is left out, are the base's."""


@dataclass(frozen=True)
class ModelDirectory:
    """A model as it lies on the disk; its tensors are read when they are asked for. Those of an adapter are merged into its base's."""

    path: Path
    manifest: Manifest
    config: XTTSConfig
    model: Mapping[str, LazyTensor]
    dvae: Mapping[str, LazyTensor] | None
    vocabulary: str | None
    speakers: Mapping[str, Mapping[str, LazyTensor]]
    source_config: Mapping[str, Any] | None
    adapter: Mapping[str, LazyTensor] | None = None
    """Where the directory holds one: its own tensors, as they are trained."""


def write_model_directory(
    target: PathLike,
    *,
    more: Mapping[str, Part] | None = None,
    step: int | None = None,
    metrics: Mapping[str, float] | None = None,
    merged_from: str | None = None,
    **content: Unpack[ModelContent],
) -> None:
    """Puts a model at `target`, in place of what is there; `more` are further files by name, and with the rest of `Facts`."""
    source_config = content.get("source_config")
    parts: dict[str, Part | None] = {
        MODEL_NAME: content["model"],
        DVAE_NAME: content.get("dvae"),
        CONFIG_NAME: dump_yaml(dump_sections(content["config"])),
        VOCABULARY_NAME: content.get("vocabulary"),
        # The part first: a name may hold any character, a part's name holds no slash.
        SPEAKERS_NAME: {
            f"{part}/{name}": tensor
            for name, voice in (content.get("speakers") or {}).items()
            for part, tensor in voice.items()
        }
        or None,
        SOURCE_CONFIG_NAME: None if source_config is None else _dump_json(source_config),
        **(more or {}),
    }
    with open_folder_atomically(target) as folder:
        files = {name: _write_part(folder / name, part) for name, part in parts.items() if part is not None}
        facts = Facts(content.get("notice"), step, metrics or {}, content.get("base"), merged_from)
        manifest = Manifest(KIND, FORMAT_VERSION, files, facts)
        _write_part(folder / MANIFEST_NAME, _dump_json(asdict(manifest)))


def _write_part(path: Path, part: Part) -> FileFacts:
    checksum = hashlib.sha256()
    with open(path, "xb") as file:
        for piece in [part.encode("utf-8")] if isinstance(part, str) else encode_safetensors(part):
            file.write(piece)
            checksum.update(piece)
        return FileFacts(file.tell(), checksum.hexdigest())


def _dump_json(value: Any) -> str:
    return json.dumps(value, indent=2, ensure_ascii=False, default=str) + "\n"


def list_content(model: ModelDirectory) -> ModelContent:
    """Everything in a model directory, to write it once more."""
    return {
        "config": model.config,
        "model": model.model,
        "dvae": model.dvae,
        "vocabulary": model.vocabulary,
        "speakers": model.speakers,
        "source_config": model.source_config,
        "notice": model.manifest.facts.notice,
    }


def copy_model_directory(model: ModelDirectory, target: PathLike) -> None:
    """Writes a model once more; an adapter and its base become one."""
    facts, own = model.manifest.facts, model.manifest.files[MODEL_NAME].sha256
    write_model_directory(target, **list_content(model), merged_from=facts.merged_from if facts.base is None else own)


def require_model_folder(target: Path) -> None:
    """Raises `OutputFolderError` unless a model can be written at `target`: it must be new, empty, or hold a model and nothing else.

    That is replaced when the new one is whole, so that files of it may be read until then.
    """
    # Before it is looked at: one whose replacement was interrupted comes back.
    recover_folder(Path(os.path.realpath(target)).parent)
    replaced: tuple[str, ...] = ()
    with contextlib.suppress(ModelFileError):
        read_manifest(target)
        replaced = FILE_NAMES
    require_free_folder(target, replaced)


@contextlib.contextmanager
def finds_damage() -> Iterator[None]:
    """Raises `DamagedFileError` within the block for files that the disk does not give back as they were written."""
    try:
        yield
    except ModelFileError:
        raise
    except FileError as error:
        # What this user may not read is no damage.
        kind = ModelFileError if isinstance(error.__cause__, PermissionError) else DamagedFileError
        raise kind(error.path, f"{error.problem} {_COPY_AGAIN}") from error


def read_model_directory(path: PathLike, *, verify_checksums: bool = True) -> ModelDirectory:
    """The model in a directory. Raises `ModelFileError` for one that is damaged, incomplete or too new.

    To verify checksums reads every byte once, which takes seconds for a full-size model.
    """
    directory = Path(path)
    if not directory.is_dir():
        raise ModelFileError(directory, "is not a directory." if directory.exists() else "there is no such directory.")
    manifest = read_manifest(directory)
    with finds_damage():
        for name, expected in manifest.files.items():
            _check_file(directory / name, expected, verify_checksums)
        there = {name: directory / name for name in manifest.files}
        for name in (MODEL_NAME, CONFIG_NAME):
            if name not in there:
                raise ModelFileError(directory, f"lacks {name}. {_COPY_AGAIN}")
        source, vocabulary = there.get(SOURCE_CONFIG_NAME), there.get(VOCABULARY_NAME)
        found = ModelDirectory(
            path=directory,
            manifest=manifest,
            # Without the process's environment: a saved model means the same everywhere.
            config=resolve_config(yaml_path=there[CONFIG_NAME], environ={}, ignored=RETIRED),
            model=open_safetensors(there[MODEL_NAME]),
            dvae=open_safetensors(there[DVAE_NAME]) if DVAE_NAME in there else None,
            vocabulary=None if vocabulary is None else read_text(vocabulary),
            speakers=_read_voices(there.get(SPEAKERS_NAME)),
            # Old trainers saved numbers that JSON does not know.
            source_config=None if source is None else read_json(source, dict, allow_infinite=True),
        )
    base = manifest.facts.base
    return found if base is None else _join_base(found, base, verify_checksums)


def _join_base(own: ModelDirectory, base: AdapterBase, verify_checksums: bool) -> ModelDirectory:
    path = Path(os.path.normpath(own.path / base.path))
    advice = (
        "An adapter is no model without it: copy the folder of the run as a whole, or what `myxtts export` makes of it."
    )
    try:
        manifest = read_manifest(path)
        found = manifest.files[MODEL_NAME].sha256 if MODEL_NAME in manifest.files else "none"
        # One that has a base itself might lead in a circle; a run starts from whole models.
        if manifest.facts.base is not None or found != base.sha256:
            raise ModelFileError(
                own.path,
                f"holds an adapter to the model whose weights have the checksum {base.sha256}, but in {path} is another one: {found}. "
                f"{advice}",
            )
        whole = read_model_directory(path, verify_checksums=verify_checksums)
    except DamagedFileError as error:
        # Of another kind: the checkpoint itself is whole, and not to be set aside.
        raise ModelFileError(
            own.path, f"holds an adapter to the model in {path}, which cannot be read ({error}). {advice}"
        ) from error
    return replace(
        own,
        model=merge_adapter(whole.model, own.model, base.factor),
        dvae=own.dvae or whole.dvae,
        speakers=whole.speakers,
        source_config=whole.source_config,
        adapter=own.model,
    )


def merge_adapter(
    base: Mapping[str, LazyTensor], adapter: Mapping[str, LazyTensor], factor: float
) -> dict[str, LazyTensor]:
    """A base's tensors, to which the products of an adapter's pairs are added, and what else the adapter has in their place."""
    others = {name: tensor for name, tensor in adapter.items() if not name.endswith((PAIR_DOWN, PAIR_UP))}
    merged = {**base, **others}
    for name, down in adapter.items():
        if name.endswith(PAIR_DOWN):
            key = name.removesuffix(PAIR_DOWN)
            matrix, up = base.get(f"{key}.weight"), adapter.get(key + PAIR_UP)
            if matrix is None or up is None or (*down.shape, *matrix.shape) != (
                matrix.shape[0], up.shape[0], down.shape[0], up.shape[-1],
            ):  # fmt: skip
                raise CheckpointMismatchError(f"The adapter's {key:.200} does not fit its base. Get both again.")
            fetch = partial(_add_product, matrix, down, up, factor)
            merged[f"{key}.weight"] = LazyTensor(matrix.shape, np.dtype(np.float32), fetch)
    return merged


def _add_product(matrix: LazyTensor, down: LazyTensor, up: LazyTensor, factor: float) -> NDArray[np.float32]:
    product = down.read().astype(np.float32) @ up.read().astype(np.float32)
    return matrix.read().astype(np.float32) + np.float32(factor) * product


def read_manifest(directory: Path) -> Manifest:
    """What a directory says it holds; the files themselves are not looked at."""
    path = directory / MANIFEST_NAME
    try:
        with finds_damage():
            # Losses among the facts may be infinite.
            manifest = read_json(path, Manifest, most_bytes=_MAX_MANIFEST_BYTES, allow_infinite=True)
    except DamagedFileError as error:
        if not isinstance(error.__cause__, MissingFileError):
            raise
        raise DamagedFileError(
            directory,
            f"has no {MANIFEST_NAME}, so MyXTTS did not write it. A Coqui model is imported from its .pth file.",
        ) from None
    if manifest.format != KIND:
        raise ModelFileError(directory, f"must be a {KIND}, but is a {manifest.format}.")
    if manifest.format_version > FORMAT_VERSION:
        raise ModelFileError(
            directory,
            f"was written by a newer MyXTTS (format {manifest.format_version}; this one reads up to {FORMAT_VERSION}). "
            "Update MyXTTS.",
        )
    if not all(
        name == os.path.basename(name) and name not in ("", ".", "..") and name.isprintable() for name in manifest.files
    ):
        raise ModelFileError(path, f"names a file that cannot be in the directory. {_COPY_AGAIN}")
    return manifest


def _check_file(path: Path, expected: FileFacts, verify_checksum: bool) -> None:
    with open_file(path) as handle:
        size_bytes = os.fstat(handle.fileno()).st_size
        if size_bytes != expected.bytes:
            problem = f"must have {expected.bytes} bytes, but has {size_bytes}: it is cut short, or was changed."
            raise DamagedFileError(path, f"{problem} {_COPY_AGAIN}")
        try:
            is_same = not verify_checksum or hashlib.file_digest(handle, "sha256").hexdigest() == expected.sha256
        except OSError as error:
            raise explain_os_error(path, error) from error
    if not is_same:
        raise DamagedFileError(path, f"is damaged: its checksum is not the one recorded. {_COPY_AGAIN}")


def has_part(tensors: Mapping[str, Tensor], prefix: str) -> bool:
    """Whether a part of the network is among some tensors."""
    return any(name.startswith(prefix) for name in tensors)


def list_present_weights(config: ModelConfig, tensors: Mapping[str, Tensor]) -> list[Weight]:
    """The weights that a model's configuration says: the GPT's, and those of the decoder and the speaker encoder that are there."""
    sizes = read_sizes(config)
    return list_xtts_weights(
        sizes.gpt,
        sizes.decoder if has_part(tensors, DECODER_PREFIX) else None,
        sizes.speaker if has_part(tensors, SPEAKER_PREFIX) else None,
    )


def require_weights(directory: ModelDirectory) -> None:
    """Raises `CheckpointMismatchError` unless every part that is there has the weights that the configuration says, in its shapes.

    For whoever builds a network: seen from the files' headers, so that a configuration that is wrong takes no memory.
    """
    model = directory.config.model
    there = tuple(part for part in (GPT_PREFIX, "hifigan_decoder.", "mel_stats") if has_part(directory.model, part))
    weights = [weight for weight in list_present_weights(model, directory.model) if weight.key.startswith(there)]
    reports = [compare_arrays(weights, directory.model)]
    if directory.dvae is not None:
        reports.append(compare_arrays(list_dvae_weights(read_sizes(model).dvae), directory.dvae))
    for report in reports:
        # What nobody knows was let in by an import that was told so; it sizes nothing.
        report.unexpected.clear()
        report.require_complete(str(directory.path))


def _read_voices(path: Path | None) -> dict[str, dict[str, LazyTensor]]:
    voices: dict[str, dict[str, LazyTensor]] = {}
    for key, tensor in open_safetensors(path).items() if path else ():
        part, _, name = key.partition("/")
        voices.setdefault(name, {})[part] = tensor
    return voices
