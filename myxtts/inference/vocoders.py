"""What turns codes into sound: the waveform decoder, or mels and Griffin-Lim; and which of them speaks."""

from __future__ import annotations

import math
from typing import Any, Literal

import numpy as np
import tensorflow as tf
from numpy.typing import NDArray

from myxtts.audio.griffin_lim import HOP_SAMPLES, MARGIN_SAMPLES, reconstruct_phase, recover_magnitudes
from myxtts.audio.mels import make_silent_frame
from myxtts.errors import UnableToSpeakError
from myxtts.inference.voices import Voice
from myxtts.models.dvae import DVAE
from myxtts.models.sizes import FRAMES_PER_LATENT, RATE_CHANGE, SAMPLES_PER_FRAME, SPEECH_RATE_HZ, DecoderSize
from myxtts.models.waveform import WaveformDecoder, change_speed, count_settled, resample_linearly, stretch_latents
from myxtts.units import FRAMES_PER_CODE, SAMPLE_RATE_HZ

MOST_FRAMES = 512
"""Frames decoded at a time, 5.5 s: enough to keep a device busy."""


class DecoderVocoder:
    """Speech at 24 kHz by the waveform decoder."""

    name = "decoder"
    rate_hz = SPEECH_RATE_HZ

    def __init__(self, decoder: WaveformDecoder):
        self.how = "Sound: the model's own waveform decoder, 24 kHz."
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


WINDOW_FRAMES = 32
"""New frames whose phases are found at a time, 0.37 s."""
PAST_FRAMES = 16
AHEAD_FRAMES = 16
EARLY_FRAMES = 8
"""Of the first two windows of a piece, and ahead of the first: a stream waits for them, so longer ones delay the first sound."""
OVERLAP_SAMPLES = 1024
"""Of a window that the next one, which knows better what follows, is faded in over."""
BLOCK_CODES = (WINDOW_FRAMES + AHEAD_FRAMES) // FRAMES_PER_CODE  # 12
"""Codes whose mel is decoded at a time."""
EARLY_CODES = 2 * EARLY_FRAMES // FRAMES_PER_CODE  # 4
"""Of the first two blocks of a piece: the first is what the first window takes."""
EARLY_CONTEXT = 2
"""Codes that are waited for behind the first block. What further ones would change of the base voice's mel is 0.1 dB
in the first window and 0.4 in the second."""
PAST_SAMPLES = PAST_FRAMES * HOP_SAMPLES + MARGIN_SAMPLES
PHASE_SEED = 0


class MelVocoder:
    """Speech at 22.05 kHz by the DVAE's decoder and phase reconstruction."""

    name = "griffin-lim"
    rate_hz = SAMPLE_RATE_HZ
    how = (
        "Sound: no trained waveform decoder is used; mel spectrograms are turned into sound by Griffin-Lim, 22.05 kHz. "
        "That sounds rough, however well the model is trained."
    )

    def __init__(self, dvae: DVAE, mel_norms_B: NDArray[np.float32]):
        bands = dvae.size.mel_channels
        self.codes = dvae.size.codes
        self.context = 2 * dvae.size.blocks + 1
        """Codes that a frame can hear to either side: two convolutions in each block, and less than one behind them."""
        self.silent_frame_B: NDArray[np.float32] = make_silent_frame(mel_norms_B).numpy()
        self.decode_mel = tf.function(
            dvae.decode, input_signature=[tf.TensorSpec([1, None], tf.int32)], autograph=False
        )
        self.find_samples = tf.function(
            lambda mel, past: reconstruct_phase(recover_magnitudes(mel, mel_norms_B), PHASE_SEED, known_BP=past),
            input_signature=[tf.TensorSpec([1, None, bands]), tf.TensorSpec([1, PAST_SAMPLES])],
            autograph=False,
        )

    def start(self, voice: Voice | None, speed: float) -> MelRendering:
        """The sound of a new piece. The voice is in the codes already."""
        return MelRendering(self, speed)


class MelRendering:
    """The sound of one piece under way."""

    def __init__(self, vocoder: MelVocoder, speed: float):
        self._vocoder, self._speed = vocoder, speed
        self._held = np.zeros(0, np.float32)
        self._mel_FB = np.zeros((0, len(vocoder.silent_frame_B)), np.float32)
        self._past = np.zeros(PAST_SAMPLES, np.float32)
        self._decoded = 0
        self._done = 0

    def render(
        self, codes_M: NDArray[np.int32], latents_MC: NDArray[np.float32] | None = None, *, is_last: bool
    ) -> NDArray[np.float32]:
        """The samples that have become final since the last call, of all codes so far."""
        # Start and stop tokens have no sound.
        self._extend_mel(codes_M[codes_M < self._vocoder.codes], is_last)
        mel_FB = self._change_speed(is_last)
        parts: list[NDArray[np.float32]] = []
        while True:
            frames = EARLY_FRAMES if self._done < 2 * EARLY_FRAMES else WINDOW_FRAMES
            end = self._done + frames + (AHEAD_FRAMES if self._done else EARLY_FRAMES)
            if len(mel_FB) < end:
                break
            # No more than a stream has by then.
            parts.append(self._render_window(mel_FB, frames, end, is_last=False))
        if is_last and len(mel_FB) > self._done:
            end = self._done + WINDOW_FRAMES + AHEAD_FRAMES
            parts.append(self._render_window(mel_FB, len(mel_FB) - self._done, end, is_last=True))
        return np.concatenate(parts) if parts else np.zeros(0, np.float32)

    def _extend_mel(self, codes_M: NDArray[np.int32], is_last: bool) -> None:
        """Decodes the frames that further codes will not change, or all that are left.

        In blocks with fixed places: other blocks would change last bits of the mel, and finding phases makes much of them.
        """
        context = self._vocoder.context
        while left := len(codes_M) - self._decoded:
            block = EARLY_CODES if self._decoded < 2 * EARLY_CODES else BLOCK_CODES
            ahead = context if self._decoded else EARLY_CONTEXT
            if left < block + ahead and not is_last:
                break
            end = self._decoded + block if left >= block + ahead else len(codes_M)
            first = max(0, self._decoded - context)
            mel = self._vocoder.decode_mel(tf.constant(codes_M[None, first : end + ahead], tf.int32)).numpy()[0]
            fresh = mel[(self._decoded - first) * FRAMES_PER_CODE : (end - first) * FRAMES_PER_CODE]
            self._mel_FB = np.concatenate([self._mel_FB, fresh])
            self._decoded = end

    def _change_speed(self, is_last: bool) -> NDArray[np.float32]:
        if self._speed == 1.0 or not len(self._mel_FB):
            return self._mel_FB
        scale = 1 / self._speed
        paced: NDArray[np.float32] = resample_linearly(tf.constant(self._mel_FB[None]), scale).numpy()[0]
        return paced if is_last else paced[: count_settled(len(self._mel_FB), scale)]

    def _render_window(
        self, mel_FB: NDArray[np.float32], frames: int, last: int, *, is_last: bool
    ) -> NDArray[np.float32]:
        samples = self._vocoder.find_samples(self._cut_window(mel_FB, last), tf.constant(self._past[None])).numpy()[0]
        end = frames * HOP_SAMPLES
        window: NDArray[np.float32] = samples[
            PAST_SAMPLES : PAST_SAMPLES + end + (0 if is_last else OVERLAP_SAMPLES)
        ].copy()
        fade = min(len(self._held), len(window))
        rise = np.linspace(0.0, 1.0, fade, dtype=np.float32)
        window[:fade] = window[:fade] * rise + self._held[:fade] * rise[::-1]
        final, self._held = window[:end], window[end:]
        self._past = np.concatenate([self._past, final])[-PAST_SAMPLES:]
        self._done += frames
        return final

    def _cut_window(self, mel_FB: NDArray[np.float32], last: int) -> Any:
        """The next window with what is before it and, up to `last`, behind it; silent where there is nothing."""
        frames = np.arange(self._done - PAST_FRAMES, last)
        inside = (frames >= 0) & (frames < len(mel_FB))
        window = np.where(inside[:, None], mel_FB[np.clip(frames, 0, len(mel_FB) - 1)], self._vocoder.silent_frame_B)
        return tf.constant(window[None].astype(np.float32))


VocoderChoice = Literal["auto", "griffin-lim", "decoder"]
"""`auto` is the waveform decoder where there is one."""


def choose_vocoder(
    choice: VocoderChoice, decoder: WaveformDecoder | None, rough: MelVocoder | None
) -> DecoderVocoder | MelVocoder:
    """What makes the sound. Raises `UnableToSpeakError` where the model lacks what was asked for."""
    if choice != "griffin-lim" and decoder is not None:
        return DecoderVocoder(decoder)
    if choice == "decoder":
        raise UnableToSpeakError(
            "To speak by a waveform decoder, a model must have one, but this one has none. Train one (--stage decoder), or "
            "give --vocoder griffin-lim."
        )
    if rough is not None:
        return rough
    if decoder is not None:
        raise UnableToSpeakError(
            "To speak by Griffin-Lim, a model must have a DVAE, but this one has none. Import it again with --dvae dvae.pth, "
            "or give --vocoder decoder."
        )
    raise UnableToSpeakError(
        "To speak, a model must have a waveform decoder or a DVAE, but this one has neither. "
        "Import it again with --dvae dvae.pth, or train a codec."
    )
