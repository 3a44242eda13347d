"""Recordings -> a voice, as XTTS does it.

The recordings, one behind the other, are cut into chunks; each chunk becomes a prompt and their mean is the voice's. The
speaker encoder hears each recording as a whole; the mean of what it says is the voice's, too.

Shapes: S samples, P prompt vectors, C width, G speaker channels.
"""

from __future__ import annotations

import functools
import hashlib
from collections.abc import Sequence
from typing import Any

import numpy as np
import tensorflow as tf
from numpy.typing import NDArray

from myxtts.audio.mels import compute_conditioning_mel, compute_speaker_mel
from myxtts.audio.resampling import resample_clip
from myxtts.inference.voices import SHORTEST_SECONDS, Voice
from myxtts.models.xtts import XTTS
from myxtts.units import SAMPLE_RATE_HZ, SPEAKER_RATE_HZ

PROMPT_SECONDS = 30.0
"""As much of all recordings together makes the prompt."""
CHUNK_SECONDS = 4.0


def describe_speaker(xtts: XTTS, *, uses_decoder: bool) -> str:
    """Where a model's speaker embeddings come from, as a sentence for the user. Only a waveform decoder hears them."""
    prompt = "What is heard of a voice comes from its prompt, which the GPT reads before the text."
    if not uses_decoder or xtts.decoder is None:
        return f"Speaker: without a waveform decoder no speaker embedding is heard. {prompt}"
    if xtts.speaker_encoder is None:
        return (
            "Speaker: this model has no trained speaker encoder, so every speaker embedding is zero, as it was in training. "
            f"{prompt}"
        )
    if not xtts.decoder.hears_speakers:
        return f"Speaker: this model has a speaker encoder, but its decoder was trained on without it. {prompt}"
    return "Speaker: the embedding comes from the model's speaker encoder."


class VoiceCloner:
    """Makes voices from recordings, in chunks as long as the prompts that a model was trained on.

    Without a speaker encoder the speaker is all zeros: the codes carry the voice, and a decoder trained without an encoder heard
    nothing else either.
    """

    def __init__(self, xtts: XTTS, *, chunk_seconds: float = CHUNK_SECONDS):
        self._chunk_samples = round(chunk_seconds * SAMPLE_RATE_HZ)
        self._xtts = xtts
        self._mel_norms = xtts.mel_norms.numpy()
        signature = [tf.TensorSpec([1, None])]
        self._make_prompt = tf.function(self._trace_prompt, input_signature=signature, autograph=False)
        self._embed = tf.function(self._trace_speaker, input_signature=signature, autograph=False)

    @functools.cached_property
    def maker(self) -> bytes:
        """The digest of the weights that make prompts: a voice is of use to a model that has the same."""
        digest = hashlib.sha256()
        for part in (self._xtts.gpt.conditioning_encoder, self._xtts.gpt.perceiver):
            for variable in part.variables:
                digest.update(variable.numpy().tobytes())
        return digest.digest()

    def clone(self, recordings: Sequence[NDArray[np.float32]]) -> Voice:
        """The voice in recordings of one speaker, from `read_references`."""
        samples = np.concatenate(recordings)[: round(PROMPT_SECONDS * SAMPLE_RATE_HZ)]
        chunks = [samples[first : first + self._chunk_samples] for first in range(0, len(samples), self._chunk_samples)]
        heard = [chunk for chunk in chunks if len(chunk) >= SHORTEST_SECONDS * SAMPLE_RATE_HZ]
        prompts = [self._make_prompt(chunk[None]) for chunk in heard]
        prompt_PC = tf.reduce_mean(tf.concat(prompts, 0), 0).numpy()
        speakers = [
            self._embed(resample_clip(recording, SAMPLE_RATE_HZ, SPEAKER_RATE_HZ)[None]) for recording in recordings
        ]
        return Voice(prompt_PC, tf.reduce_mean(tf.concat(speakers, 0), 0).numpy(), self.maker)

    def _trace_prompt(self, wav_1S: Any) -> Any:
        mel_1FM, _ = compute_conditioning_mel(wav_1S, tf.shape(wav_1S)[1:], self._mel_norms)
        return self._xtts.gpt.make_prompt(mel_1FM)

    def _trace_speaker(self, wav_1S: Any) -> Any:
        if self._xtts.speaker_encoder is None:
            return tf.zeros([1, self._xtts.decoder.size.speaker_width if self._xtts.decoder else 0])
        return self._xtts.speaker_encoder(compute_speaker_mel(wav_1S, tf.shape(wav_1S)[1:])[0])
