"""Sound from the model's own waveform decoder, window by window.

The decoder hears a few frames to either side of a sample and nothing beyond. A window with that much context gives
exactly the samples that decoding everything at once would give, so nothing is decoded twice but the context, and memory
does not grow with the length of a piece.

Shapes: M latents (one per code), T frames, C width, G speaker channels.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import tensorflow as tf
from numpy.typing import NDArray

from myxtts.inference.voices import Voice
from myxtts.models.sizes import DecoderSize
from myxtts.models.speech_units import FRAMES_PER_LATENT, RATE_CHANGE, SAMPLES_PER_FRAME, SPEECH_RATE_HZ
from myxtts.models.waveform import WaveformDecoder, change_speed, count_settled, stretch_latents

FEW_UPDATES = 50_000
"""Of a decoder that is still heard to be unfinished; clean speech takes hundreds of thousands."""
MOST_FRAMES = 512
"""Frames decoded at a time, 5.5 s: enough to keep a device busy."""


class DecoderVocoder:
    """Speech at 24 kHz by the waveform decoder.

    Args:
        decoder: the model's.
        updates: since it was new; None where that is not known.
    """

    name = "decoder"
    rate_hz = SPEECH_RATE_HZ

    def __init__(self, decoder: WaveformDecoder, *, updates: int | None = None):
        self.how = f"Sound: the model's own waveform decoder, 24 kHz{_describe_training(updates)}."
        if not decoder.hears_speakers:
            self.how += " It was trained without a speaker encoder: the voice is what the codes carry of it."
        self.context = measure_context(decoder.size)
        size = decoder.size
        signature = [tf.TensorSpec([1, None, size.latent_width]), tf.TensorSpec([1, size.speaker_width])]
        self.decode = tf.function(decoder.decode_frames, input_signature=signature, autograph=False)

    def start(self, voice: Voice, speed: float) -> DecoderRendering:
        return DecoderRendering(self, voice, speed)


class DecoderRendering:
    """The sound of one piece under way."""

    def __init__(self, vocoder: DecoderVocoder, voice: Voice, speed: float):
        self._vocoder, self._speed = vocoder, speed
        self._speaker_1G = tf.constant(voice.speaker_G[None])
        self._done = 0

    def render(
        self, codes_M: NDArray[np.int32], latents_MC: NDArray[np.float32], *, is_last: bool
    ) -> NDArray[np.float32]:
        """The samples that have become final since the last call, of all codes and latents so far."""
        frames_1TC = stretch_latents(change_speed(tf.constant(latents_MC[None]), self._speed))
        context = self._vocoder.context
        frames = int(frames_1TC.shape[1])
        heard = frames if is_last else count_settled_frames(len(latents_MC), self._speed)
        end = heard if is_last else heard - context
        parts: list[NDArray[np.float32]] = []
        while self._done < end:
            stop = min(self._done + MOST_FRAMES, end)
            parts.append(self._decode(frames_1TC, stop, heard))
            self._done = stop
        return np.concatenate(parts) if parts else np.zeros(0, np.float32)

    def _decode(self, frames_1TC: Any, stop: int, heard: int) -> NDArray[np.float32]:
        """Samples of the frames from the last one done up to `stop`, heard with their neighbours."""
        context = self._vocoder.context
        first, last = max(0, self._done - context), min(stop + context, heard)
        wav: NDArray[np.float32] = self._vocoder.decode(frames_1TC[:, first:last], self._speaker_1G).numpy()[0]
        return wav[(self._done - first) * SAMPLES_PER_FRAME : (stop - first) * SAMPLES_PER_FRAME]


def _describe_training(updates: int | None) -> str:
    if updates is None:
        return ""
    advice = ": expect noise, and compare with --vocoder griffin-lim" if updates < FEW_UPDATES else ""
    return f", trained for {updates:,} updates{advice}"


def count_settled_frames(latents: int, speed: float) -> int:
    """Frames that more latents will not change."""
    paced = latents if speed == 1.0 else count_settled(latents, 1 / speed)
    return count_settled(count_settled(paced, FRAMES_PER_LATENT), RATE_CHANGE)


def measure_context(size: DecoderSize) -> int:
    """Frames that a sample can hear before and behind its own frame."""
    widest = max(size.block_kernels) // 2
    block = sum(widest * dilation + widest for dilation in size.block_dilations)
    samples = float(3 * SAMPLES_PER_FRAME)
    step = SAMPLES_PER_FRAME
    for rate, kernel in zip(size.rates, size.kernels, strict=True):
        samples += kernel / rate / 2 * step
        step //= rate
        samples += block * step
    return math.ceil((samples + 3) / SAMPLES_PER_FRAME)
