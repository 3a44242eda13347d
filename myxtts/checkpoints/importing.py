"""From Coqui's files to a model directory of ours, tensor by tensor, without building a network."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from myxtts.checkpoints.coqui import CoquiFile, CoquiKind, read_coqui_file
from myxtts.checkpoints.errors import ModelFileError
from myxtts.checkpoints.key_report import KeyReport, compare_keys
from myxtts.checkpoints.licence import NOTICE_KEY, find_notice
from myxtts.checkpoints.model_directory import write_model_directory
from myxtts.checkpoints.model_numbers import infer_model_numbers
from myxtts.checkpoints.output_folder import require_model_folder
from myxtts.checkpoints.tensor import LazyTensor
from myxtts.config import DataConfig, ModelConfig, XTTSConfig
from myxtts.config.presets import MODEL_SIZES
from myxtts.config.rules import CODE_SECONDS
from myxtts.files import FileError, MissingFileError, read_json, read_text
from myxtts.models.names import OPTIONAL
from myxtts.models.sizes import read_sizes
from myxtts.models.weights import Weight, list_dvae_weights, list_xtts_weights
from myxtts.text.tokenizer import Tokenizer

_OTHER_FLAGS = {
    CoquiKind.DVAE: "--dvae",
    CoquiKind.MEL_STATISTICS: "--mel-stats",
    CoquiKind.SPEAKERS: "--speakers",
}


@dataclass(frozen=True)
class CoquiFiles:
    """Which files to import; only the model is needed."""

    model: Path
    """`model.pth` or a trainer's checkpoint."""
    dvae: Path | None = None
    vocabulary: Path | None = None
    mel_statistics: Path | None = None
    speakers: Path | None = None


@dataclass(frozen=True)
class ImportReport:
    """What was imported."""

    kind: CoquiKind
    config: ModelConfig
    tensors: int
    dvae_tensors: int
    voices: tuple[str, ...]
    ignored: Mapping[str, str]
    """Entries of the files that are of no use here -> why."""
    differences: KeyReport
    """What was missing or unexpected, and allowed."""
    notice: str | None
    """What must be said of the weights; None for a model that was trained from scratch."""
    parts: tuple[str, ...]
    """Those of `count_parameters` that the files hold."""
    missing_parts: tuple[str, ...] = field(default=())
    """Parts the files do not hold, each with what cannot be done without it."""


def import_coqui_files(
    files: CoquiFiles, target: str | os.PathLike[str], *, allow_missing: bool = False, allow_unexpected: bool = False
) -> ImportReport:
    """Puts the model of Coqui's files at `target`, verified. Executes nothing from the files.

    Raises `OutputFolderError` where the target holds anything but a model.
    """
    given = (files.model, files.dvae, files.vocabulary, files.mel_statistics, files.speakers)
    require_model_folder(Path(target), [path for path in given if path is not None])
    main = read_coqui_file(files.model)
    if main.kind in _OTHER_FLAGS:
        flag = _OTHER_FLAGS[main.kind]
        raise ModelFileError(files.model, f"is a {main.kind.value} file. Give the model first, and this one by {flag}.")
    dvae = _read_dvae(files.dvae, main)
    arrays = {**main.arrays, **_read_mel_statistics(files.mel_statistics)}
    source_config = main.config or _read_config_beside(files.model)
    model_args = source_config.get("model_args", {})
    if not isinstance(model_args, Mapping):
        raise ModelFileError(
            files.model, f"has a configuration whose model_args are a {type(model_args).__name__}, not a table."
        )
    numbers = infer_model_numbers(arrays, dvae_arrays=dvae, model_args=model_args)
    vocabulary = _read_vocabulary(files.vocabulary, numbers.get("text_tokens"))
    config = ModelConfig(size=_name_size(numbers), **numbers)
    differences = _compare(config, arrays, dvae)
    differences.require_match(files.model, allow_missing=allow_missing, allow_unexpected=allow_unexpected)
    speakers = _read_speakers(files.speakers)
    notice = find_notice(files.model, source_config)
    write_model_directory(
        target,
        config=XTTSConfig(model=config, data=_fit_limits(config)),
        model=arrays,
        dvae=dvae or None,
        vocabulary=vocabulary,
        speakers=speakers,
        source_config={key: value for key, value in source_config.items() if key != NOTICE_KEY} or None,
        notice=notice,
    )
    return ImportReport(
        kind=main.kind,
        config=config,
        tensors=len(arrays),
        dvae_tensors=len(dvae),
        voices=tuple(speakers),
        ignored=main.ignored,
        differences=differences,
        notice=notice,
        parts=_list_parts(arrays, dvae),
        missing_parts=_name_missing_parts(arrays, dvae, vocabulary),
    )


def _read_config_beside(model: Path) -> Mapping[str, Any]:
    """What a config.json in the model's folder says: no tensor shows how many heads there are."""
    path = model.parent / "config.json"
    try:
        content = read_json(path, dict)
    except MissingFileError:
        return {}
    except FileError as error:
        raise ModelFileError(path, f"{error.problem} Mend it, or move it away.") from error
    return content if isinstance(content.get("model_args", {}), dict) else {}


def _read_dvae(path: Path | None, main: CoquiFile) -> Mapping[str, LazyTensor]:
    if path is None:
        return main.dvae_arrays
    file = read_coqui_file(path)
    if not file.dvae_arrays:
        raise ModelFileError(path, f"is a {file.kind.value} file and holds no DVAE. Give dvae.pth by --dvae.")
    return file.dvae_arrays


def _read_mel_statistics(path: Path | None) -> Mapping[str, LazyTensor]:
    if path is None:
        return {}
    file = read_coqui_file(path)
    if file.kind is not CoquiKind.MEL_STATISTICS:
        raise ModelFileError(path, f"is a {file.kind.value} file. Give mel_stats.pth by --mel-stats.")
    return file.arrays


def _read_speakers(path: Path | None) -> Mapping[str, Mapping[str, LazyTensor]]:
    if path is None:
        return {}
    file = read_coqui_file(path)
    if file.kind is not CoquiKind.SPEAKERS:
        raise ModelFileError(path, f"is a {file.kind.value} file. Give speakers_xtts.pth by --speakers.")
    return file.speakers


def _read_vocabulary(path: Path | None, text_tokens: int | None) -> str | None:
    if path is None:
        return None
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
    limits: dict[str, float] = {}
    if config.max_text_tokens < usual.max_text_length:
        limits["max_text_length"] = config.max_text_tokens
    if longest_s < usual.max_clip_seconds:
        limits["max_clip_seconds"] = longest_s
    return limits


def _name_size(numbers: Mapping[str, int]) -> str:
    """The size whose table the numbers fill; the numbers themselves are given besides, so it is a label."""
    for size, table in MODEL_SIZES.items():
        if all(numbers.get(name, value) == value for name, value in table.items()):
            return size
    return "base"


def _compare(config: ModelConfig, arrays: Mapping[str, LazyTensor], dvae: Mapping[str, LazyTensor]) -> KeyReport:
    sizes = read_sizes(config)
    there = _list_parts(arrays, dvae)
    weights = list_xtts_weights(
        sizes.gpt,
        sizes.decoder if "decoder" in there else None,
        sizes.speaker if "speaker_encoder" in there else None,
    )
    expected = _list_shapes(weights)
    found = dict(arrays)
    if dvae:
        expected |= {f"dvae.{key}": shape for key, shape in _list_shapes(list_dvae_weights(sizes.dvae)).items()}
        found |= {f"dvae.{key}": tensor for key, tensor in dvae.items()}
    return compare_keys(expected, found)


def _list_shapes(weights: list[Weight]) -> dict[str, tuple[int, ...]]:
    return {weight.key: weight.shape for weight in weights if not OPTIONAL.search(weight.key)}


def _name_missing_parts(
    arrays: Mapping[str, LazyTensor], dvae: Mapping[str, LazyTensor], vocabulary: str | None
) -> tuple[str, ...]:
    there = _list_parts(arrays, dvae)
    parts = {
        "DVAE: needed to fine-tune": "dvae" in there,
        "vocabulary: needed to fine-tune and to speak": vocabulary is not None,
        "HiFi-GAN decoder: needed for its voice": "decoder" in there,
        "speaker encoder: needed to clone a voice": "speaker_encoder" in there,
    }
    return tuple(part for part, is_there in parts.items() if not is_there)


def _list_parts(arrays: Mapping[str, LazyTensor], dvae: Mapping[str, LazyTensor]) -> tuple[str, ...]:
    marks = {"decoder": "hifigan_decoder.waveform_decoder.", "speaker_encoder": "hifigan_decoder.speaker_encoder."}
    found = [part for part, mark in marks.items() if any(name.startswith(mark) for name in arrays)]
    return ("gpt", *(["dvae"] if dvae else []), *found)
