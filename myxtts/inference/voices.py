"""Voices: what a model needs to know of a speaker, and the files they are kept in."""

from __future__ import annotations

import itertools
import os
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from myxtts.audio.reading import SILENCE_SPAN, read_clip
from myxtts.checkpoints.tensors import Tensor, encode_safetensors, open_safetensors, read_array
from myxtts.config.settings import nearest_name
from myxtts.errors import COPY, REPLACE, ClipError, FileError, VoiceError
from myxtts.files import WriteError, open_file_atomically
from myxtts.models.weights import FLOAT_DTYPES, find_value_problem
from myxtts.units import SAMPLE_RATE_HZ

PROMPT, SPEAKER = "gpt_cond_latent", "speaker_embedding"
"""Names of the two tensors, as in the published file of named voices."""
MAKER = "made_by"
"""Name of the digest in our own files."""
_MOST_MAKER_BYTES = 64
_MOST_NUMBERS = 1 << 20
"""Of each tensor: twice the prompt of the widest GPT there can be."""
_SHOWN_NAMES = 60
_MOST_FILE_BYTES = 32 << 20
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
    """The voice in a pair of tensors by name, as a file of named voices holds them; `source` begins messages."""
    missing = [name for name in (PROMPT, SPEAKER) if name not in tensors]
    if missing:
        raise VoiceError(f"{source} must hold {PROMPT} and {SPEAKER}, but lacks {missing[0]}. Clone the voice again.")
    prompt, speaker, maker = tensors[PROMPT], tensors[SPEAKER], tensors.get(MAKER)
    problem = None
    if {prompt.dtype, speaker.dtype} - FLOAT_DTYPES:
        problem = f"they are {prompt.dtype} and {speaker.dtype}, not floating-point"
    elif len(prompt.shape) not in (2, 3) or prompt.shape[:-2] not in ((), (1,)) or not prompt.size:
        problem = f"{PROMPT} must be the vectors of one prompt, and has the shape {prompt.shape}"
    elif max(prompt.size, speaker.size) > _MOST_NUMBERS:
        problem = f"at most {_MOST_NUMBERS} of each, and it has the shapes {prompt.shape} and {speaker.shape}"
    elif maker is not None and (maker.dtype != np.uint8 or maker.nbytes > _MOST_MAKER_BYTES):
        problem = f"its {MAKER} is no digest"
    if problem is None:
        prompt, speaker = read_array(prompt), read_array(speaker)
        problem = find_value_problem(prompt) or find_value_problem(speaker)
    if problem is not None:
        raise VoiceError(f"{source} must hold the numbers of a voice, but {problem}. Clone the voice again.")
    digest = b"" if maker is None else read_array(maker).tobytes()
    return Voice(
        np.asarray(prompt, np.float32).reshape(prompt.shape[-2:]), np.asarray(speaker, np.float32).reshape(-1), digest
    )


def load_voice(path: str | os.PathLike[str]) -> Voice:
    """The voice in a voice file."""
    with suppress(OSError):
        size = os.stat(path).st_size
        if size > _MOST_FILE_BYTES:
            raise VoiceError(
                f"{path} must be a voice file of at most {_MOST_FILE_BYTES} bytes, as --save-voice writes it, but has {size}."
            )
    try:
        tensors = open_safetensors(path)
    except FileError as error:
        raise VoiceError(f"{error.path}: {error.problem} A voice file is what --save-voice writes.") from error
    return read_voice(tensors, str(path))


def save_voice(voice: Voice, path: str | os.PathLike[str]) -> None:
    """Writes a voice file, whole or not at all."""
    tensors = {PROMPT: voice.prompt_PC[None], SPEAKER: voice.speaker_G[None, :, None]}
    if voice.maker:
        tensors[MAKER] = np.frombuffer(voice.maker, np.uint8)
    try:
        with open_file_atomically(path) as file:
            file.writelines(encode_safetensors(tensors))
    except WriteError as error:
        raise VoiceError(f"The voice cannot be written to {path}: {error.reason}.") from error


def find_voice(speakers: Mapping[str, Mapping[str, Tensor]], name: str | None = None) -> Voice:
    """A named voice of a model, its first unless one is named."""
    if not speakers:
        raise VoiceError(
            f"There is no voice{f' {name!r}, neither as a file nor' if name else ''} in the model: only imported models "
            "and the one that comes with MyXTTS have named voices. Give a recording (--reference), and keep its voice for the next time "
            "(--save-voice, then --voice)."
        )
    name = next(iter(speakers)) if name is None else name
    if name in speakers:
        return read_voice(speakers[name], f"The voice {name!r}")
    raise VoiceError(f"This model has no voice {name!r}. {suggest_voice(name, speakers)}")


def suggest_voice(name: str, names: Collection[str]) -> str:
    """What to say of a name that no voice has: the nearest, or those there are."""
    near = nearest_name(name, names)
    shown = ", ".join(itertools.islice(names, _SHOWN_NAMES))
    return f"Did you mean {near!r}?" if near else f"There are: {shown}{', ...' * (len(names) > _SHOWN_NAMES)}."


REFERENCE_SECONDS = 30.0
"""As much of each recording is heard."""
SHORTEST_SECONDS = 0.33
"""A recording below it is refused, a chunk of one left out."""
ANOTHER = "Give another recording."


def read_references(paths: Sequence[str | os.PathLike[str]]) -> list[NDArray[np.float32]]:
    """The first seconds of each recording at 22.05 kHz.

    Raises `ClipError` for a file that cannot be read, `VoiceError` for one that gives no voice.
    """
    if not paths:
        raise VoiceError("A voice must have at least one recording, but none was given. Give a reference.")
    return [_read_reference(path) for path in paths]


@contextmanager
def advise_another() -> Iterator[None]:
    """What is wrong with a recording read in here, with the advice for a reference: it stands in no metadata."""
    try:
        yield
    except ClipError as error:
        text = str(error).removeprefix(f"{error.path}: ").replace(REPLACE, ANOTHER).replace(COPY, ANOTHER)
        raise ClipError(error.path, error.reason, text) from error


def _read_reference(path: str | os.PathLike[str]) -> NDArray[np.float32]:
    with advise_another():
        samples = read_clip(path, most_seconds=REFERENCE_SECONDS)
    seconds = len(samples) / SAMPLE_RATE_HZ
    if seconds < SHORTEST_SECONDS:
        raise VoiceError(
            f"{path}: a reference must last at least {SHORTEST_SECONDS:g} s, but lasts {seconds:.2f} s. Give a recording of "
            "one speaker, best of 6 to 30 s."
        )
    if float(np.ptp(samples)) < SILENCE_SPAN:
        raise VoiceError(
            f"{path}: a reference must hold a voice, but its first {REFERENCE_SECONDS:g} s are silent. {ANOTHER}"
        )
    return samples
