"""A model directory -> a synthesizer, with the parts that the directory has."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

import numpy as np

from myxtts.checkpoints.finding import count_decoder_updates, find_model_directory
from myxtts.checkpoints.model_directory import VOCABULARY_NAME, ModelDirectory, read_model_directory, require_weights
from myxtts.checkpoints.tensor import Tensor
from myxtts.devices.host_memory import read_free_memory_bytes
from myxtts.inference.cloning import CHUNK_SECONDS
from myxtts.inference.errors import UnableToSpeakError
from myxtts.inference.speaking_model import require_able_to_speak
from myxtts.inference.synthesizer import Synthesizer
from myxtts.inference.vocoder_choice import VocoderChoice
from myxtts.models.dvae import DVAE
from myxtts.models.gpt import GPT
from myxtts.models.names import load_checkpoint_arrays
from myxtts.models.sizes import read_sizes
from myxtts.models.speaker import SpeakerEncoder
from myxtts.models.waveform import WaveformDecoder
from myxtts.models.weights import DECODER_PREFIX, SPEAKER_PREFIX
from myxtts.models.xtts import XTTS
from myxtts.text.tokenizer import Tokenizer


def load_synthesizer(
    path: str | os.PathLike[str], *, verify_checksums: bool = True, vocoder: VocoderChoice = "auto"
) -> Synthesizer:
    """The model in a directory, ready to speak: an imported one, or a checkpoint of a training run.

    Args:
        path: the directory, or the folder of a run, whose best checkpoint then speaks.
        verify_checksums: reads every byte once more, which takes seconds for a full-size model.
        vocoder: what makes the sound.
    """
    directory = read_model_directory(find_model_directory(Path(path)), verify_checksums=verify_checksums)
    require_able_to_speak(directory)
    tokenizer = Tokenizer(directory.path / VOCABULARY_NAME)
    _require_vocabulary(directory, tokenizer)
    data = directory.config.data
    return Synthesizer(
        build_parts(directory, tokenizer),
        tokenizer,
        speakers=directory.speakers,
        clip_seconds=data.max_clip_seconds,
        chunk_seconds=min(CHUNK_SECONDS, data.prompt_seconds),
        vocoder=vocoder,
        decoder_updates=count_decoder_updates(directory),
    )


def build_parts(directory: ModelDirectory, tokenizer: Tokenizer) -> XTTS:
    """The parts that a directory has, with their weights. Raises before anything is built where these are not as it says."""
    require_weights(directory)
    _require_memory(directory)
    sizes = read_sizes(directory.config.model, start_text_token=tokenizer.start_id, stop_text_token=tokenizer.stop_id)
    xtts = XTTS(
        GPT(sizes.gpt),
        decoder=WaveformDecoder(sizes.decoder) if _has_part(directory.model, DECODER_PREFIX) else None,
        speaker_encoder=SpeakerEncoder(sizes.speaker) if _has_part(directory.model, SPEAKER_PREFIX) else None,
        dvae=DVAE(sizes.dvae) if directory.dvae is not None else None,
    )
    load_checkpoint_arrays(xtts, directory.model).require_complete()
    if xtts.dvae is not None and directory.dvae is not None:
        load_checkpoint_arrays(xtts.dvae, directory.dvae).require_complete()
    return xtts


def _require_vocabulary(directory: ModelDirectory, tokenizer: Tokenizer) -> None:
    tokens = directory.config.model.text_tokens
    if tokenizer.text_tokens != tokens:
        raise UnableToSpeakError(
            f"The vocabulary of {directory.path} must have the {tokens} tokens that its model knows, but has "
            f"{tokenizer.text_tokens}. Import the model again, with its own vocab.json."
        )


def _require_memory(directory: ModelDirectory) -> None:
    groups = (directory.model, directory.dvae or {})
    needed = sum(tensor.size for group in groups for tensor in group.values()) * np.dtype(np.float32).itemsize
    free = read_free_memory_bytes()
    if needed > free:
        raise UnableToSpeakError(
            f"The weights of {directory.path} take {needed / 2**30:.1f} GiB of memory, but only {free / 2**30:.1f} GiB are free. "
            "End what else needs memory, or take a smaller model."
        )


def _has_part(tensors: Mapping[str, Tensor], prefix: str) -> bool:
    return any(name.startswith(prefix) for name in tensors)
