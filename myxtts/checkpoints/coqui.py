"""What is in a file of Coqui's XTTS: its tensors by canonical names, its configuration, its licence, and what was left out;
and a model directory made of such files.

Canonical names are those of the published `model.pth`: without the trainer's `xtts.` prefix, and with weight norm as
`parametrizations.weight.original0` and `original1`. The DVAE's are those of `dvae.pth`."""

from __future__ import annotations

import enum
import io
import json
import math
import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from numpy.typing import NDArray

from myxtts.checkpoints.model_directory import (
    has_part,
    list_present_weights,
    read_manifest,
    require_model_folder,
    write_model_directory,
)
from myxtts.checkpoints.tensors import LazyTensor, Tensor, open_safetensors
from myxtts.checkpoints.torch_files import read_torch_file
from myxtts.config import DataConfig, ModelConfig, XTTSConfig
from myxtts.config.presets import name_size
from myxtts.config.rules import CODE_SECONDS
from myxtts.errors import CheckpointError, ConfigError, ModelFileError
from myxtts.files import MissingFileError, parse_json, read_json, read_text
from myxtts.models.sizes import PROMPT_LATENTS, SpeakerSize, read_sizes
from myxtts.models.weights import (
    DECODER_PREFIX,
    DVAE_PREFIX,
    FLOAT_DTYPES,
    SPEAKER_PREFIX,
    LoadReport,
    compare_arrays,
    find_value_problem,
    list_dvae_weights,
)
from myxtts.text.tokenizer import Tokenizer


class CoquiKind(enum.Enum):
    """Which of Coqui's files it is."""

    MODEL = "model"  # model.pth: GPT, HiFi-GAN decoder, speaker encoder
    TRAINER_CHECKPOINT = "trainer checkpoint"  # best_model.pth: the model and the DVAE as the trainer sees them
    DVAE = "DVAE"
    MEL_STATISTICS = "mel statistics"
    SPEAKERS = "speakers"


_OTHER_FILES = {
    CoquiKind.DVAE: ("dvae.pth", "--dvae"),
    CoquiKind.MEL_STATISTICS: ("mel_stats.pth", "--mel-stats"),
    CoquiKind.SPEAKERS: ("speakers_xtts.pth", "--speakers"),
}


@dataclass(frozen=True)
class CoquiFile:
    """The content of one file. Which parts there are depends on its kind; the others are empty."""

    path: Path
    kind: CoquiKind
    arrays: Mapping[str, LazyTensor] = field(default_factory=dict)
    """Of the model: `gpt.*`, `hifigan_decoder.*`, `mel_stats`."""
    dvae_arrays: Mapping[str, LazyTensor] = field(default_factory=dict)
    speakers: Mapping[str, Mapping[str, LazyTensor]] = field(default_factory=dict)
    """Name -> `gpt_cond_latent` (1, 32, C) and `speaker_embedding` (1, 512, 1)."""
    config: Mapping[str, Any] = field(default_factory=dict)
    """Coqui's configuration, as the file has it."""
    ignored: Sequence[str] = ()
    """Names of the entries that are of no use here."""


_IGNORED_TENSORS = re.compile(
    # Aliases that inference adds.
    r"gpt\.gpt\.wte\.weight|gpt\.gpt_inference\..*"
    # Causal masks that old transformers saved.
    r"|gpt\.gpt\.h\.\d+\.attn\.(masked_)?bias"
    # Constants of mel front ends, counters of batch normalisation, statistics that the DVAE never uses.
    r"|torch_mel_spectrogram_\w+\..*|hifigan_decoder\.speaker_encoder\.torch_spec\..*"
    r"|.*\.num_batches_tracked|discrete_loss\..*"
)
_OLD_WEIGHT_NORM = {
    ".weight_g": ".parametrizations.weight.original0",
    ".weight_v": ".parametrizations.weight.original1",
}
_TRAINER_PREFIX = "xtts."
_DVAE_PREFIX = "dvae."
_DVAE_MARKS = ("codebook.embed", "encoder.0.0.weight")
_MODEL_PREFIXES = ("gpt.", "hifigan_decoder.")
_SPEAKER_PARTS = ("gpt_cond_latent", "speaker_embedding")

MOST_SHARING = 2
"""How many times the bytes of a file its tensors may take. Those that XTTS uses share none."""
_MOST_CONFIG_CHARACTERS = 2**20
"""The published configuration has 10,000."""


def read_coqui_file(path: str | os.PathLike[str]) -> CoquiFile:
    """The content of a `.pth` file, or of a safetensors file with the same names. Executes nothing from it."""
    path = Path(path)
    content = open_safetensors(path) if path.suffix == ".safetensors" else read_torch_file(path)
    file = sort_content(content, path)
    groups = (file.arrays, file.dvae_arrays, *file.speakers.values())
    total, size = sum(tensor.nbytes for group in groups for tensor in group.values()), path.stat().st_size
    if total > MOST_SHARING * size:
        raise ModelFileError(
            path,
            f"has {size} bytes, but its tensors show them so often that they would take {total}. It is damaged, or made to "
            "exhaust the disk.",
        )
    return file


def sort_content(content: Any, path: Path) -> CoquiFile:
    """What a file's content is, as `read_torch_file` gives it, and its parts. Reads no tensor."""
    if isinstance(content, LazyTensor):
        if len(content.shape) != 1:
            raise ModelFileError(path, f"is a single tensor of shape {content.shape}; mel_stats.pth has one dimension.")
        return CoquiFile(path, CoquiKind.MEL_STATISTICS, arrays={"mel_stats": content})
    if not isinstance(content, Mapping) or not content:
        raise ModelFileError(path, f"holds a {type(content).__name__} where named tensors should be. {_EXPECTED}")
    if all(isinstance(voice, Mapping) and voice.keys() >= {*_SPEAKER_PARTS} for voice in content.values()):
        voices = {name: {part: voice[part] for part in _SPEAKER_PARTS} for name, voice in content.items()}
        for name, voice in voices.items():
            if not isinstance(name, str) or not all(isinstance(tensor, LazyTensor) for tensor in voice.values()):
                raise ModelFileError(
                    path, f"its voice {name!r:.80} must have a name, and be made of tensors. Get the file again."
                )
        return CoquiFile(path, CoquiKind.SPEAKERS, speakers=voices)
    state = content.get("model", content)
    if not isinstance(state, Mapping):
        raise ModelFileError(path, f"its entry `model` is a {type(state).__name__}, not named tensors. {_EXPECTED}")
    if state is content:
        return _sort_state(state, path, {}, [])
    leftovers = [str(name) for name in content if name not in ("model", "config")]
    return _sort_state(state, path, _read_config(content.get("config"), path), leftovers)


_EXPECTED = "Give model.pth, a trainer checkpoint, dvae.pth, mel_stats.pth or speakers_xtts.pth."


def _sort_state(state: Mapping[Any, Any], path: Path, config: Mapping[str, Any], ignored: list[str]) -> CoquiFile:
    names = [name for name in state if isinstance(name, str)]
    if any(name.startswith(_TRAINER_PREFIX) for name in names):
        kind = CoquiKind.TRAINER_CHECKPOINT
    elif any(name.startswith(_MODEL_PREFIXES) for name in names):
        kind = CoquiKind.MODEL
    elif any(mark in names for mark in _DVAE_MARKS):
        kind = CoquiKind.DVAE
    else:
        raise ModelFileError(
            path, f"is not of XTTS: its first entries are {[name[:80] for name in names[:3]]}. {_EXPECTED}"
        )
    arrays: dict[str, LazyTensor] = {}
    dvae_arrays: dict[str, LazyTensor] = {}
    for name, tensor in state.items():
        if not isinstance(name, str) or not isinstance(tensor, LazyTensor):
            ignored.append(str(name))
            continue
        belongs_to_dvae = kind is CoquiKind.DVAE or name.startswith(_DVAE_PREFIX)
        short = name.removeprefix(_DVAE_PREFIX) if belongs_to_dvae else name.removeprefix(_TRAINER_PREFIX)
        for old, new in _OLD_WEIGHT_NORM.items():
            if short.endswith(old):
                short = short.removesuffix(old) + new
        if _IGNORED_TENSORS.fullmatch(short):
            ignored.append(name)
            continue
        target = dvae_arrays if belongs_to_dvae else arrays
        if short in target:
            raise ModelFileError(path, f"holds the tensor {short:.200} twice, under two names. Get the file again.")
        target[short] = tensor
    return CoquiFile(path, kind, arrays=arrays, dvae_arrays=dvae_arrays, config=config, ignored=ignored)


def _read_config(config: Any, path: Path) -> Mapping[str, Any]:
    if isinstance(config, str):
        # Old trainers saved it as JSON.
        try:
            config = parse_json(config, allow_infinite=True)
        except ValueError as error:
            raise ModelFileError(path, f"its configuration must be JSON, but {error}. Get the file again.") from None
    return config if isinstance(config, Mapping) else {}


XTTS_WEIGHTS_NOTICE = (
    "The XTTS v2 weights that Coqui published are under the Coqui Public Model License (CPML): they, models fine-tuned "
    "from them, and the speech made with either may be used for non-commercial purposes only. The licence is in the "
    "file LICENSE.txt beside the published weights. MyXTTS' own licence covers its code, not these weights."
)


def find_notice(model: Path) -> str | None:
    """The notice that a model file must keep: what we wrote beside it, else Coqui's, since it may well be theirs."""
    try:
        manifest = read_manifest(model.parent)
    except ModelFileError:
        # None there, or somebody else's.
        return XTTS_WEIGHTS_NOTICE
    return manifest.facts.notice if model.name in manifest.files else XTTS_WEIGHTS_NOTICE


HEAD_CHANNELS = 64
"""Channels of an attention head in every published XTTS. No shape shows how the channels are split into heads."""

_AXES: Mapping[str, tuple[int, *tuple[str, ...]]] = {
    # tensor: (what its first axis has besides, the number that each axis shows). All that are there must agree.
    "gpt.text_embedding.weight": (0, "text_tokens", "gpt_width"),
    "gpt.text_head.weight": (0, "text_tokens"),
    "gpt.mel_embedding.weight": (2, "audio_codes", "gpt_width"),  # start and stop
    "gpt.mel_head.weight": (2, "audio_codes"),
    "gpt.gpt.ln_f.weight": (0, "gpt_width"),
    "gpt.text_pos_embedding.emb.weight": (2, "max_text_tokens"),
    "gpt.mel_pos_embedding.emb.weight": (3, "max_audio_tokens"),
    "dvae.codebook.embed": (0, "dvae_width", "audio_codes"),
    "dvae.encoder.0.0.weight": (0, "dvae_width"),
    "hifigan_decoder.waveform_decoder.conv_pre.weight": (0, "decoder_width", "gpt_width"),
}

_ARGUMENTS: Mapping[str, str] = {"gpt_heads": "gpt_n_heads", "max_prompt_tokens": "gpt_max_prompt_tokens"}
"""Numbers that no shape shows -> their names in Coqui's configuration."""

# A number of more digits is no block's: its tensor is then one that nobody knows.
_LAYER_NAME = re.compile(r"gpt\.gpt\.h\.(0|[1-9][0-9]{0,5})\.ln_1\.weight")


def infer_model_numbers(arrays: Mapping[str, Tensor], model_args: Mapping[str, Any]) -> dict[str, int]:
    """The settings of `ModelConfig` that a file's tensors determine (a DVAE's behind `dvae.`); those of absent parts are left out.

    Coqui's `XttsArgs` tell what no shape shows: heads and the longest prompt. They are not looked at any closer.
    """
    found: dict[str, dict[str, int]] = {}
    for name, (besides, *numbers) in _AXES.items():
        if name in arrays:
            shape = tuple(arrays[name].shape)
            extents = [extent - besides * (axis == 0) for axis, extent in enumerate(shape[: len(numbers)])]
            if len(extents) < len(numbers) or min(extents) < 1:
                raise CheckpointError(f"{name} has the shape {shape}, which no XTTS has. Check the file.")
            for number, extent in zip(numbers, extents, strict=True):
                found.setdefault(number, {})[name] = extent
    for number, said in found.items():
        if len(set(said.values())) > 1:
            listing = ", ".join(f"{name} says {value}" for name, value in said.items())
            raise CheckpointError(
                f"The tensors contradict each other about {number}: {listing}. Do they belong together?"
            )
    inferred = {number: next(iter(said.values())) for number, said in found.items()}
    if blocks := {int(match[1]) for name in arrays if (match := _LAYER_NAME.fullmatch(name))}:
        if absent := [index for index in range(len(blocks)) if index not in blocks]:
            raise CheckpointError(
                f"The GPT's {len(blocks)} blocks go up to {max(blocks)}, but block {absent[0]} is missing. Get the file again."
            )
        inferred["gpt_layers"] = len(blocks)
    inferred |= {number: model_args[name] for number, name in _ARGUMENTS.items() if model_args.get(name) is not None}
    if "gpt_width" in inferred and "gpt_heads" not in inferred:
        inferred["gpt_heads"], rest = divmod(inferred["gpt_width"], HEAD_CHANNELS)
        if rest:
            raise CheckpointError(
                f"The GPT is {inferred['gpt_width']} channels wide, which heads of {HEAD_CHANNELS} channels do not divide, and the "
                "file does not say how many heads there are. Give the model's own config.json beside it."
            )
    return inferred


@dataclass(frozen=True)
class ImportReport:
    """What was imported."""

    kind: CoquiKind
    config: ModelConfig
    tensors: int
    dvae_tensors: int
    voices: tuple[str, ...]
    ignored: Sequence[str]
    """Entries of the files that are of no use here."""
    differences: LoadReport
    """What was missing or unexpected, and allowed."""
    notice: str | None
    """What must be said of the weights; None for a model that was trained from scratch."""
    parts: tuple[str, ...]
    """What the files hold: those of `count_parameters`, and the vocabulary."""
    missing_parts: tuple[str, ...]
    """Parts the files do not hold, each with what cannot be done without it."""


def import_coqui_files(
    model: Path,
    target: str | os.PathLike[str],
    *,
    dvae: Path | None = None,
    vocabulary: Path | None = None,
    mel_statistics: Path | None = None,
    speakers: Path | None = None,
    allow_missing: bool = False,
    allow_unexpected: bool = False,
) -> ImportReport:
    """Puts the model of Coqui's files (`model.pth` or a trainer's checkpoint, and what else is given) at `target`, verified.

    Executes nothing from the files. Raises `OutputFolderError` where the target holds anything but a model.
    """
    require_model_folder(Path(target))
    main = read_coqui_file(model)
    if main.kind in _OTHER_FILES:
        flag = _OTHER_FILES[main.kind][1]
        raise ModelFileError(model, f"is a {main.kind.value} file. Give the model first, and this one by {flag}.")
    codec = _look_at_values((_read_other(dvae, CoquiKind.DVAE) if dvae else main).dvae_arrays, dvae or model)
    arrays = _look_at_values(main.arrays, model)
    if mel_statistics is not None:
        arrays |= _look_at_values(_read_other(mel_statistics, CoquiKind.MEL_STATISTICS).arrays, mel_statistics)
    found_config = main.config or _read_config_beside(model)
    source_config = _keep_plain(found_config, model)
    model_args = found_config.get("model_args", {})
    if not isinstance(model_args, Mapping):
        raise ModelFileError(
            model, f"has a configuration whose model_args are a {type(model_args).__name__}, not a table."
        )
    everything = {**arrays, **{DVAE_PREFIX + name: tensor for name, tensor in codec.items()}}
    numbers = infer_model_numbers(everything, model_args)
    words = _read_vocabulary(vocabulary, numbers.get("text_tokens")) if vocabulary else None
    try:
        # The numbers themselves are given besides, so the size is a label.
        config = ModelConfig(size=name_size(numbers) or "base", **numbers)
    except ConfigError as error:
        raise ModelFileError(model, f"describes no network: {error} Get the model's own config.json.") from None
    weights = list_present_weights(config, arrays)
    if codec:
        own = list_dvae_weights(read_sizes(config).dvae)
        weights += [replace(weight, key=DVAE_PREFIX + weight.key) for weight in own]
    differences = compare_arrays(weights, everything)
    replace(
        differences,
        missing=[] if allow_missing else differences.missing,
        unexpected=[] if allow_unexpected else differences.unexpected,
    ).require_complete(str(model))
    voices = _read_speakers(speakers, config) if speakers else {}
    notice = find_notice(model)
    write_model_directory(
        target,
        config=XTTSConfig(model=config, data=_fit_limits(config)),
        model=arrays,
        dvae=codec or None,
        vocabulary=words,
        speakers=voices,
        source_config=source_config or None,
        notice=notice,
    )
    parts = {
        "gpt": (True, ""),
        "dvae": (bool(codec), "DVAE: needed to fine-tune"),
        "vocabulary": (words is not None, "vocabulary: needed to fine-tune and to speak"),
        "decoder": (has_part(arrays, DECODER_PREFIX), "HiFi-GAN decoder: needed for its voice"),
        "speaker_encoder": (has_part(arrays, SPEAKER_PREFIX), "speaker encoder: needed to clone a voice"),
    }
    return ImportReport(
        kind=main.kind,
        config=config,
        tensors=len(arrays),
        dvae_tensors=len(codec),
        voices=tuple(voices),
        ignored=main.ignored,
        differences=differences,
        notice=notice,
        parts=tuple(part for part, (is_there, _) in parts.items() if is_there),
        missing_parts=tuple(lack for is_there, lack in parts.values() if not is_there),
    )


def _read_config_beside(model: Path) -> Mapping[str, Any]:
    """What a config.json in the model's folder says: no tensor shows how many heads there are."""
    try:
        # Coqui writes lengths without a limit as Infinity.
        content = read_json(model.parent / "config.json", dict, allow_infinite=True)
    except MissingFileError:
        return {}
    return content if isinstance(content.get("model_args", {}), dict) else {}


def _keep_plain(config: Mapping[str, Any], path: Path) -> dict[str, Any]:
    """A configuration as JSON holds it, in which no value that a pickle shares grows to many."""
    text = io.StringIO()
    for piece in json.JSONEncoder(skipkeys=True, default=str).iterencode(config):
        text.write(piece)
        if text.tell() > _MOST_CONFIG_CHARACTERS:
            raise ModelFileError(
                path,
                f"has a configuration of more than {_MOST_CONFIG_CHARACTERS} characters. It may be made to exhaust memory.",
            )

    def keep_finite(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        # Coqui's infinite lengths stand for no limit, as does leaving them out; JSON has no word for them.
        return {name: value for name, value in pairs if not isinstance(value, float) or math.isfinite(value)}

    plain: dict[str, Any] = json.loads(text.getvalue(), object_pairs_hook=keep_finite)
    return plain


def _look_at_values(arrays: Mapping[str, LazyTensor], path: Path) -> dict[str, LazyTensor]:
    """The same tensors; reading one raises where it holds what no weight is."""

    def wrap(name: str, tensor: LazyTensor) -> LazyTensor:
        def fetch() -> NDArray[Any]:
            values = tensor.read()
            if problem := find_value_problem(values):
                raise ModelFileError(
                    path,
                    f"its tensor {name:.200} {problem}. The file is damaged, or its training failed: give another one.",
                )
            return values

        return LazyTensor(tensor.shape, tensor.dtype, fetch)

    return {name: wrap(name, tensor) for name, tensor in arrays.items()}


def _read_other(path: Path, kind: CoquiKind) -> CoquiFile:
    file = read_coqui_file(path)
    # A trainer's checkpoint has a DVAE too.
    if file.kind is not kind and not (kind is CoquiKind.DVAE and file.dvae_arrays):
        name, flag = _OTHER_FILES[kind]
        raise ModelFileError(path, f"is a {file.kind.value} file. Give {name} by {flag}.")
    return file


def _read_speakers(path: Path, config: ModelConfig) -> Mapping[str, Mapping[str, LazyTensor]]:
    file = _read_other(path, CoquiKind.SPEAKERS)
    must_be = {
        "gpt_cond_latent": (1, PROMPT_LATENTS, config.gpt_width),
        "speaker_embedding": (1, SpeakerSize().width, 1),
    }
    for name, voice in file.speakers.items():
        for part, shape in must_be.items():
            if tuple(voice[part].shape) != shape or voice[part].dtype not in FLOAT_DTYPES:
                raise ModelFileError(
                    path,
                    f"its voice {name!r:.80} is not one of this model: {part} must be floating-point numbers of shape {shape}, but is "
                    f"{voice[part].dtype} of shape {tuple(voice[part].shape)}. Give the model's own.",
                )
    return {name: _look_at_values(voice, path) for name, voice in file.speakers.items()}


def _read_vocabulary(path: Path, text_tokens: int | None) -> str:
    found = Tokenizer(path).text_tokens
    if text_tokens is not None and found != text_tokens:
        raise ModelFileError(
            path, f"has {found} text tokens, but the model was made for {text_tokens}. Give the model's own vocab.json."
        )
    return read_text(path)


def _fit_limits(config: ModelConfig) -> dict[str, float]:
    """Limits of clips, where a small model takes less than the usual ones."""
    usual = DataConfig()
    longest_s = int(config.max_audio_tokens * CODE_SECONDS * 10) / 10
    limits: dict[str, float] = {"max_text_length": config.max_text_tokens, "max_clip_seconds": longest_s}
    return {name: limit for name, limit in limits.items() if limit < getattr(usual, name)}
