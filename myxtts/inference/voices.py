"""Voices: what a model needs to know of a speaker, and the files they are kept in."""

from __future__ import annotations

import math
import os
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from myxtts.checkpoints.errors import ModelFileError
from myxtts.checkpoints.safetensors_file import open_safetensors, write_safetensors
from myxtts.checkpoints.tensor import Tensor
from myxtts.config.section import nearest_name
from myxtts.inference.errors import VoiceError

PROMPT, SPEAKER = "gpt_cond_latent", "speaker_embedding"
"""Names of the two tensors, as in the published file of named voices."""
MAKER = "made_by"
"""Name of the digest in our own files."""
MOST_NUMBERS = 1 << 20
"""Of a prompt: hundreds of vectors as wide as the widest model."""
VOICE_SUFFIX = ".safetensors"
"""Of voice files in a folder of voices; the rest of a file's name is the voice's."""


@dataclass(frozen=True)
class Voice:
    """A speaker as a model hears it. Made by one model, of use to that model alone."""

    prompt_PC: NDArray[np.float32]
    """Vectors before the text: how the speaker talks."""
    speaker_G: NDArray[np.float32]
    """For the waveform decoder: how the speaker sounds. Zeros from a model without a speaker encoder."""
    maker: bytes = b""
    """The digest of the weights that made the prompt; empty where it is not known."""


def read_voice(tensors: Mapping[str, Tensor], source: str) -> Voice:
    """The voice in a pair of tensors, as a file of named voices holds them.

    Args:
        tensors: by name.
        source: where they come from, for messages.
    """
    missing = [name for name in (PROMPT, SPEAKER) if name not in tensors]
    if missing:
        raise VoiceError(f"{source} must hold {PROMPT} and {SPEAKER}, but lacks {missing[0]}. Clone the voice again.")
    # Before anything is read: a file may claim any size.
    shapes = {name: tuple(tensors[name].shape) for name in (PROMPT, SPEAKER, MAKER) if name in tensors}
    is_one_voice = len(shapes[PROMPT]) >= 2 and set(shapes[PROMPT][:-2]) <= {1}
    if not is_one_voice or any(math.prod(shape) > MOST_NUMBERS for shape in shapes.values()):
        raise VoiceError(
            f"{source} must hold one prompt and one embedding of at most {MOST_NUMBERS:,} numbers each, but holds the shapes "
            f"{', '.join(map(str, shapes.values()))[:200]}. Clone the voice again."
        )
    prompt, speaker = (np.asarray(tensors[name], np.float32) for name in (PROMPT, SPEAKER))
    if not (np.isfinite(prompt).all() and np.isfinite(speaker).all()):
        raise VoiceError(f"{source} must hold the numbers of a voice, but does not. Clone the voice again.")
    maker = np.asarray(tensors[MAKER], np.uint8).tobytes() if MAKER in tensors else b""
    return Voice(prompt.reshape(prompt.shape[-2:]), speaker.reshape(-1), maker)


def load_voice(path: str | os.PathLike[str]) -> Voice:
    """The voice in a voice file."""
    try:
        tensors = open_safetensors(path)
    except ModelFileError as error:
        raise VoiceError(f"{error.path}: {error.problem} A voice file is what --save-voice writes.") from error
    return read_voice(tensors, str(path))


def save_voice(voice: Voice, path: str | os.PathLike[str]) -> None:
    """Writes a voice file, whole or not at all."""
    target = Path(path)
    part = target.with_name(f".{target.name}.part")
    tensors = {PROMPT: voice.prompt_PC[None], SPEAKER: voice.speaker_G[None, :, None]}
    if voice.maker:
        tensors[MAKER] = np.frombuffer(voice.maker, np.uint8)
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        with part.open("wb") as file:
            write_safetensors(file, tensors)
        part.replace(target)
    except OSError as error:
        # What stands in the way of writing may stand in the way of this, too: a file in the place of the folder.
        with suppress(OSError):
            part.unlink()
        raise VoiceError(f"The voice cannot be written to {target}: {error.strerror}.") from error


def find_voice(speakers: Mapping[str, Mapping[str, Tensor]], name: str) -> Voice:
    """A named voice of a model."""
    if name in speakers:
        return read_voice(speakers[name], f"The voice {name!r}")
    if not speakers:
        raise VoiceError(
            f"There is no voice {name!r}: only imported models come with named voices, and this one has none. Give a recording "
            "(--reference), and keep its voice for the next time (--save-voice, then --voice)."
        )
    near = nearest_name(name, list(speakers))
    hint = f"Did you mean {near!r}?" if near else f"It has: {', '.join(speakers)}."
    raise VoiceError(f"This model has no voice {name!r}. {hint}")
