"""From Coqui's files to a model directory of ours, tensor by tensor, without building a network."""

from __future__ import annotations

import math
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

from numpy.typing import NDArray

from myxtts.checkpoints.coqui import (
    NOTICE_KEY,
    CoquiFile,
    CoquiKind,
    find_notice,
    infer_model_numbers,
    read_coqui_file,
)
from myxtts.checkpoints.errors import ModelFileError
from myxtts.checkpoints.model_directory import require_model_folder, write_model_directory
from myxtts.checkpoints.tensor import LazyTensor
from myxtts.config import DataConfig, ModelConfig, XTTSConfig
from myxtts.config.presets import MODEL_SIZES
from myxtts.config.rules import CODE_SECONDS
from myxtts.files import FileError, MissingFileError, read_json, read_text
from myxtts.models.names import LoadReport, compare_arrays, find_value_problem
from myxtts.models.sizes import PROMPT_LATENTS, SpeakerSize, read_sizes
from myxtts.models.weights import DECODER_PREFIX, DVAE_PREFIX, SPEAKER_PREFIX, list_dvae_weights, list_xtts_weights
from myxtts.text.tokenizer import Tokenizer

_OTHER_FILES = {
    CoquiKind.DVAE: ("dvae.pth", "--dvae"),
    CoquiKind.MEL_STATISTICS: ("mel_stats.pth", "--mel-stats"),
    CoquiKind.SPEAKERS: ("speakers_xtts.pth", "--speakers"),
}
_MOST_CONFIG_CHARACTERS = 2**20
"""Of texts and keys. The published configuration has 10,000."""
_DEEPEST_CONFIG = 32


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
    """Those of `count_parameters` that the files hold."""
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
    given = (model, dvae, vocabulary, mel_statistics, speakers)
    require_model_folder(Path(target), [path for path in given if path is not None])
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
    numbers = infer_model_numbers(arrays, dvae_arrays=codec, model_args=model_args)
    words = _read_vocabulary(vocabulary, numbers.get("text_tokens")) if vocabulary else None
    config = ModelConfig(size=_name_size(numbers), **numbers)
    parts = _list_parts(arrays, codec)
    differences = _compare(config, arrays, codec, parts)
    replace(
        differences,
        missing=[] if allow_missing else differences.missing,
        unexpected=[] if allow_unexpected else differences.unexpected,
    ).require_complete(str(model))
    voices = _read_speakers(speakers, config) if speakers else {}
    notice = find_notice(model, source_config)
    write_model_directory(
        target,
        config=XTTSConfig(model=config, data=_fit_limits(config)),
        model=arrays,
        dvae=codec or None,
        vocabulary=words,
        speakers=voices,
        source_config={key: value for key, value in source_config.items() if key != NOTICE_KEY} or None,
        notice=notice,
    )
    needed = {
        "DVAE: needed to fine-tune": "dvae" in parts,
        "vocabulary: needed to fine-tune and to speak": words is not None,
        "HiFi-GAN decoder: needed for its voice": "decoder" in parts,
        "speaker encoder: needed to clone a voice": "speaker_encoder" in parts,
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
        parts=parts,
        missing_parts=tuple(part for part, is_there in needed.items() if not is_there),
    )


def _read_config_beside(model: Path) -> Mapping[str, Any]:
    """What a config.json in the model's folder says: no tensor shows how many heads there are."""
    path = model.parent / "config.json"
    try:
        # Coqui writes lengths without a limit as Infinity.
        content = read_json(path, dict, allow_infinite=True)
    except MissingFileError:
        return {}
    except FileError as error:
        raise ModelFileError(path, f"{error.problem} Mend it, or move it away.") from error
    return content if isinstance(content.get("model_args", {}), dict) else {}


def _keep_plain(config: Mapping[str, Any], path: Path) -> dict[str, Any]:
    """A configuration as JSON holds it, in which no value that a pickle shares grows to many."""
    room = _MOST_CONFIG_CHARACTERS

    def pay(cost: int, depth: int) -> None:
        nonlocal room
        room -= cost
        if room < 0 or depth > _DEEPEST_CONFIG:
            raise ModelFileError(
                path,
                f"has a configuration of more than {_MOST_CONFIG_CHARACTERS} characters, or nested more than {_DEEPEST_CONFIG} "
                "deep. It may be made to exhaust memory.",
            )

    def keep(value: Any, depth: int) -> Any:
        if isinstance(value, Mapping):
            # Coqui's infinite lengths stand for no limit, as does leaving them out; JSON has no word for them.
            stated = {str(key): each for key, each in value.items() if not _is_endless(each)}
            pay(1 + sum(map(len, stated)), depth)
            return {key: keep(each, depth + 1) for key, each in stated.items()}
        if isinstance(value, list | tuple):
            pay(1 + len(value), depth)
            return [keep(each, depth + 1) for each in value if not _is_endless(each)]
        kept = value if isinstance(value, int | float | None) else str(value)
        pay(len(kept) if isinstance(kept, str) else 1, depth)
        return kept

    plain: dict[str, Any] = keep(config, 0)
    return plain


def _is_endless(value: Any) -> bool:
    return isinstance(value, float) and not math.isfinite(value)


def _look_at_values(arrays: Mapping[str, LazyTensor], path: Path) -> dict[str, LazyTensor]:
    """The same tensors; reading one raises where it holds what no weight is."""

    def wrap(name: str, tensor: LazyTensor) -> LazyTensor:
        def fetch() -> NDArray[Any]:
            values = tensor.read()
            problem = find_value_problem(values)
            if problem is not None:
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
            if tuple(voice[part].shape) != shape:
                raise ModelFileError(
                    path,
                    f"its voice {name!r:.80} is not one of this model: {part} must have shape {shape}, but has "
                    f"{tuple(voice[part].shape)}. Give the model's own.",
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


def _name_size(numbers: Mapping[str, int]) -> str:
    """The size whose table the numbers fill; the numbers themselves are given besides, so it is a label."""
    for size, table in MODEL_SIZES.items():
        if all(numbers.get(name, value) == value for name, value in table.items()):
            return size
    return "base"


def _list_parts(arrays: Mapping[str, LazyTensor], dvae: Mapping[str, LazyTensor]) -> tuple[str, ...]:
    marks = {"decoder": DECODER_PREFIX, "speaker_encoder": SPEAKER_PREFIX}
    found = [part for part, mark in marks.items() if any(name.startswith(mark) for name in arrays)]
    return ("gpt", *(["dvae"] if dvae else []), *found)


def _compare(
    config: ModelConfig, arrays: Mapping[str, LazyTensor], dvae: Mapping[str, LazyTensor], parts: tuple[str, ...]
) -> LoadReport:
    sizes = read_sizes(config)
    report = compare_arrays(
        list_xtts_weights(
            sizes.gpt,
            sizes.decoder if "decoder" in parts else None,
            sizes.speaker if "speaker_encoder" in parts else None,
        ),
        arrays,
    )
    if not dvae:
        return report
    own = {DVAE_PREFIX + name: tensor for name, tensor in dvae.items()}
    codec = compare_arrays(list_dvae_weights(sizes.dvae), own, prefix=DVAE_PREFIX)
    return LoadReport(*(getattr(report, part.name) + getattr(codec, part.name) for part in fields(LoadReport)))
