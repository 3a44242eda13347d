"""The numbers of a network, read off the shapes of its tensors."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from myxtts.checkpoints.errors import CheckpointError
from myxtts.checkpoints.tensor import Tensor

HEAD_CHANNELS = 64
"""Channels of an attention head in every published XTTS. No shape shows how the channels are split into heads."""

_START_AND_STOP = 2
_EXTRA_TEXT_POSITIONS = 2
_EXTRA_AUDIO_POSITIONS = 3

_AXES: Mapping[str, tuple[tuple[str, int, int], ...]] = {
    # number: (tensor, axis, what to take off). All that are there must agree; a model and its DVAE share some.
    "gpt_width": (
        ("gpt.text_embedding.weight", 1, 0),
        ("gpt.mel_embedding.weight", 1, 0),
        ("gpt.gpt.ln_f.weight", 0, 0),
        ("hifigan_decoder.waveform_decoder.conv_pre.weight", 1, 0),
    ),
    "text_tokens": (("gpt.text_embedding.weight", 0, 0), ("gpt.text_head.weight", 0, 0)),
    "audio_codes": (
        ("gpt.mel_embedding.weight", 0, _START_AND_STOP),
        ("gpt.mel_head.weight", 0, _START_AND_STOP),
        ("dvae.codebook.embed", 1, 0),
    ),
    "max_text_tokens": (("gpt.text_pos_embedding.emb.weight", 0, _EXTRA_TEXT_POSITIONS),),
    "max_audio_tokens": (("gpt.mel_pos_embedding.emb.weight", 0, _EXTRA_AUDIO_POSITIONS),),
    "dvae_width": (("dvae.encoder.0.0.weight", 0, 0), ("dvae.codebook.embed", 0, 0)),
    "decoder_width": (("hifigan_decoder.waveform_decoder.conv_pre.weight", 0, 0),),
}

_ARGUMENTS: Mapping[str, str] = {"gpt_heads": "gpt_n_heads", "max_prompt_tokens": "gpt_max_prompt_tokens"}
"""Numbers that no shape shows -> their names in Coqui's configuration."""

# A number of more digits is no block's: its tensor is then one that nobody knows.
_LAYER_NAME = re.compile(r"gpt\.gpt\.h\.(0|[1-9][0-9]{0,5})\.ln_1\.weight")


def infer_model_numbers(
    arrays: Mapping[str, Tensor],
    *,
    dvae_arrays: Mapping[str, Tensor] | None = None,
    model_args: Mapping[str, Any] | None = None,
) -> dict[str, int]:
    """The settings of `ModelConfig` that a file's tensors determine; those of parts that are not there are left out.

    Args:
        arrays: the model's tensors, by canonical names.
        dvae_arrays: the DVAE's tensors, by canonical names.
        model_args: Coqui's `XttsArgs`, for what no shape shows: heads and the longest prompt. Without it, heads have
            64 channels each.
    """
    everything = {**arrays, **{f"dvae.{name}": tensor for name, tensor in (dvae_arrays or {}).items()}}
    numbers = {number: value for number in _AXES if (value := _read_axes(number, everything)) is not None}
    layers = _count_layers(arrays)
    if layers:
        numbers["gpt_layers"] = layers
    for number, argument in _ARGUMENTS.items():
        value = (model_args or {}).get(argument)
        if value is None:
            continue
        if type(value) is not int or value < 1:
            raise CheckpointError(
                f"The model's configuration must give {argument} as a whole number from 1 up, but has {value!r:.80}. Get the "
                "model's own config.json."
            )
        numbers[number] = value
    if "gpt_width" in numbers:
        if "gpt_heads" not in numbers:
            numbers["gpt_heads"] = _split_heads(numbers["gpt_width"])
        _check_heads(numbers)
    return numbers


def _read_axes(number: str, arrays: Mapping[str, Tensor]) -> int | None:
    found: dict[str, int] = {}
    for name, axis, surplus in _AXES[number]:
        if name in arrays:
            shape = arrays[name].shape
            if axis >= len(shape) or shape[axis] <= surplus:
                raise CheckpointError(f"{name} has the shape {tuple(shape)}, which no XTTS has. Check the file.")
            found[name] = shape[axis] - surplus
    if len(set(found.values())) > 1:
        listing = ", ".join(f"{name} says {value}" for name, value in found.items())
        raise CheckpointError(f"The tensors contradict each other about {number}: {listing}. Do they belong together?")
    return next(iter(found.values()), None)


def _count_layers(arrays: Mapping[str, Tensor]) -> int:
    indices = {int(match[1]) for name in arrays if (match := _LAYER_NAME.fullmatch(name))}
    absent = next((index for index in range(len(indices)) if index not in indices), None)
    if absent is not None:
        raise CheckpointError(
            f"The GPT's {len(indices)} blocks go up to {max(indices)}, but block {absent} is missing. Get the file again."
        )
    return len(indices)


def _split_heads(width: int) -> int:
    if width % HEAD_CHANNELS:
        raise CheckpointError(
            f"The GPT is {width} channels wide, which heads of {HEAD_CHANNELS} channels do not divide, and the file does "
            "not say how many heads there are. Give model.gpt_heads."
        )
    return width // HEAD_CHANNELS


def _check_heads(numbers: Mapping[str, int]) -> None:
    if numbers["gpt_width"] % numbers["gpt_heads"]:
        raise CheckpointError(
            f"The file's configuration says {numbers['gpt_heads']} heads, which do not divide its {numbers['gpt_width']} "
            "channels. Check that configuration and weights belong together."
        )
