"""From a model directory of ours to files that others read, tensor by tensor, without building a network."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from myxtts.checkpoints.model_directory import ModelDirectory, has_part, list_present_weights
from myxtts.checkpoints.tensors import Tensor
from myxtts.checkpoints.torch_files import write_torch
from myxtts.config import LANGUAGES
from myxtts.errors import ModelFileError
from myxtts.files import PathLike, open_folder_atomically, require_free_folder
from myxtts.models.sizes import SAMPLES_PER_FRAME, SPEECH_RATE_HZ, read_sizes
from myxtts.models.weights import (
    DECODER_PREFIX,
    OPTIONAL,
    SPEAKER_PREFIX,
    Weight,
    list_dvae_weights,
    make_front_end_constant,
)
from myxtts.units import SAMPLE_RATE_HZ, SAMPLES_PER_CODE

COQUI_DECODER_WIDTH = 512
"""The one width that Coqui's code has."""


def export_coqui(model: ModelDirectory, target: PathLike) -> None:
    """Writes the files Coqui's tools load (`model.pth`, `config.json`, `vocab.json` and what else there is).

    Raises `OutputFolderError` unless the target is new or empty, and `ModelFileError` for a model without a part that those
    tools cannot do without.
    """
    require_free_folder(Path(target))
    if model.vocabulary is None:
        raise ModelFileError(
            model.path, "has no vocabulary, which Coqui's tools need. Import the model again, with --vocab vocab.json."
        )
    config = _make_coqui_config(model)
    with open_folder_atomically(target, replaces=False) as folder:
        dvae = _complete(list_dvae_weights(read_sizes(model.config.model).dvae), model.dvae or {})
        contents = {
            "model.pth": {"model": complete_model(model), "config": config},
            "dvae.pth": dvae if model.dvae is not None else None,
            "mel_stats.pth": model.model.get("mel_stats"),
            "speakers_xtts.pth": {name: dict(voice) for name, voice in model.speakers.items()} or None,
        }
        for name, content in contents.items():
            if content is not None:
                with (folder / name).open("w+b") as handle:
                    write_torch(handle, content, folder / name)
        text = json.dumps(config, ensure_ascii=False, indent=1)
        (folder / "config.json").write_text(text + "\n", encoding="utf-8")
        (folder / "vocab.json").write_text(model.vocabulary, encoding="utf-8")


def explain_loading(model: ModelDirectory) -> str | None:
    """What Coqui's loader does not do with an export, in a sentence; None where it takes it as it is."""
    loosely = "Coqui's `load_checkpoint` takes it with strict=False alone"
    width = model.config.model.decoder_width
    if not has_part(model.model, DECODER_PREFIX):
        return f"It has no HiFi-GAN decoder: {loosely}, and what is spoken there is noise."
    if width != COQUI_DECODER_WIDTH:
        return (
            f"Its HiFi-GAN decoder has {width} channels: Coqui's code has {COQUI_DECODER_WIDTH}, and does not load it. "
            f"Train another one, with --stage decoder --set model.decoder_width={COQUI_DECODER_WIDTH}."
        )
    return None if has_part(model.model, SPEAKER_PREFIX) else f"It has no speaker encoder: {loosely}."


def complete_model(model: ModelDirectory) -> dict[str, Tensor]:
    """The model's tensors with the constants that Coqui's files hold besides, in the order of Coqui's files."""
    return _complete(list_present_weights(model.config.model, model.model), model.model)


def _make_coqui_config(directory: ModelDirectory) -> Mapping[str, Any]:
    """The configuration the model came with, or what Coqui's tools must know of ours."""
    model, source = directory.config.model, directory.source_config or {}
    # The voice in the package tells how it was trained, and nothing of its network.
    if "model_args" in source:
        return source
    return {
        "model": "xtts",
        "model_args": {
            "gpt_layers": model.gpt_layers,
            "gpt_n_model_channels": model.gpt_width,
            "gpt_n_heads": model.gpt_heads,
            "gpt_number_text_tokens": model.text_tokens,
            "gpt_num_audio_tokens": model.audio_codes + 2,
            "gpt_start_audio_token": model.audio_codes,
            "gpt_stop_audio_token": model.audio_codes + 1,
            "gpt_max_text_tokens": model.max_text_tokens,
            "gpt_max_audio_tokens": model.max_audio_tokens,
            "gpt_max_prompt_tokens": model.max_prompt_tokens,
            "gpt_code_stride_len": SAMPLES_PER_CODE,
            "gpt_use_masking_gt_prompt_approach": True,
            "gpt_use_perceiver_resampler": True,
            "input_sample_rate": SAMPLE_RATE_HZ,
            "output_sample_rate": SPEECH_RATE_HZ,
            "output_hop_length": SAMPLES_PER_FRAME,
            "decoder_input_dim": model.gpt_width,
            "d_vector_dim": read_sizes(model).speaker.width,
            "cond_d_vector_in_each_upsampling_layer": True,
        },
        "audio": {"sample_rate": SAMPLE_RATE_HZ, "output_sample_rate": SPEECH_RATE_HZ},
        "languages": list(LANGUAGES),
    }


def _complete(weights: Iterable[Weight], tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    complete: dict[str, Tensor] = {}
    for weight in weights:
        if weight.key in tensors:
            complete[weight.key] = tensors[weight.key]
        elif OPTIONAL.search(weight.key):
            is_front_end = weight.start.kind == "front_end"
            complete[weight.key] = (
                make_front_end_constant(weight) if is_front_end else np.zeros(weight.shape, weight.dtype)
            )
    # What the table does not know was let in by --allow-unexpected, and goes out as it came.
    return {**complete, **{key: tensor for key, tensor in tensors.items() if key not in complete}}
