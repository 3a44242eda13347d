"""Sound without a trained waveform decoder: codes -> DVAE mel -> magnitudes -> phases that fit.

Phases are found window by window: each window starts with what the one before it made, looks a little ahead, and is
cross-faded in. Windows have one shape and fixed places in the piece, so sound that is streamed is the sound that is not.

Shapes: M codes, F mel frames, B mel bands.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import tensorflow as tf
from numpy.typing import NDArray

from myxtts.audio.griffin_lim import HOP_SAMPLES, MARGIN_SAMPLES, reconstruct_phase
from myxtts.audio.mel_inversion import recover_magnitudes
from myxtts.audio.mels import make_silent_frame
from myxtts.audio.units import FRAMES_PER_CODE, SAMPLE_RATE_HZ
from myxtts.inference.joining import OVERLAP_SAMPLES, CrossFader
from myxtts.inference.voices import Voice
from myxtts.models.dvae import DVAE
from myxtts.models.waveform import count_settled, resample_linearly

WINDOW_FRAMES = 32
"""New frames whose phases are found at a time, 0.37 s. A stream waits for them, so longer ones delay the first sound."""
PAST_FRAMES = 16
AHEAD_FRAMES = 16
BLOCK_CODES = (WINDOW_FRAMES + AHEAD_FRAMES) // FRAMES_PER_CODE  # 12
"""Codes whose mel is decoded at a time: the first block is what the first window takes."""
PAST_SAMPLES = PAST_FRAMES * HOP_SAMPLES + MARGIN_SAMPLES
PHASE_SEED = 0


class MelVocoder:
    """Speech at 22.05 kHz by the DVAE's decoder and phase reconstruction.

    Args:
        dvae: the model's.
        mel_norms_B: of the model's mels.
    """

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
        frames = PAST_FRAMES + WINDOW_FRAMES + AHEAD_FRAMES
        self.find_samples = tf.function(
            lambda mel, past: reconstruct_phase(recover_magnitudes(mel, mel_norms_B), PHASE_SEED, known_BP=past),
            input_signature=[tf.TensorSpec([1, frames, bands]), tf.TensorSpec([1, PAST_SAMPLES])],
            autograph=False,
        )

    def start(self, voice: Voice | None, speed: float) -> MelRendering:
        """The sound of a new piece. The voice is in the codes already."""
        return MelRendering(self, speed)


class MelRendering:
    """The sound of one piece under way."""

    def __init__(self, vocoder: MelVocoder, speed: float):
        self._vocoder, self._speed = vocoder, speed
        self._fader = CrossFader(OVERLAP_SAMPLES)
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
        while len(mel_FB) - self._done >= WINDOW_FRAMES + AHEAD_FRAMES:
            parts.append(self._render_window(mel_FB, WINDOW_FRAMES, is_last=False))
        if is_last and len(mel_FB) > self._done:
            parts.append(self._render_window(mel_FB, len(mel_FB) - self._done, is_last=True))
        return np.concatenate(parts) if parts else np.zeros(0, np.float32)

    def _extend_mel(self, codes_M: NDArray[np.int32], is_last: bool) -> None:
        """Decodes the frames that further codes will not change, or all that are left.

        In blocks with fixed places: other blocks would change last bits of the mel, and finding phases makes much of them.
        """
        while len(codes_M) - self._decoded >= BLOCK_CODES + self._vocoder.context:
            self._decode_block(codes_M, self._decoded + BLOCK_CODES)
        if is_last and len(codes_M) > self._decoded:
            self._decode_block(codes_M, len(codes_M))

    def _decode_block(self, codes_M: NDArray[np.int32], end: int) -> None:
        context = self._vocoder.context
        first = max(0, self._decoded - context)
        window = tf.constant(codes_M[None, first : end + context], tf.int32)
        mel = self._vocoder.decode_mel(window).numpy()[0]
        fresh = mel[(self._decoded - first) * FRAMES_PER_CODE : (end - first) * FRAMES_PER_CODE]
        self._mel_FB = np.concatenate([self._mel_FB, fresh])
        self._decoded = end

    def _change_speed(self, is_last: bool) -> NDArray[np.float32]:
        if self._speed == 1.0 or not len(self._mel_FB):
            return self._mel_FB
        scale = 1 / self._speed
        paced: NDArray[np.float32] = resample_linearly(tf.constant(self._mel_FB[None]), scale).numpy()[0]
        return paced if is_last else paced[: count_settled(len(self._mel_FB), scale)]

    def _render_window(self, mel_FB: NDArray[np.float32], frames: int, *, is_last: bool) -> NDArray[np.float32]:
        samples = self._vocoder.find_samples(self._cut_window(mel_FB), tf.constant(self._past[None])).numpy()[0]
        first = self._done * HOP_SAMPLES
        kept = samples[PAST_SAMPLES : PAST_SAMPLES + frames * HOP_SAMPLES + (0 if is_last else OVERLAP_SAMPLES)]
        final = self._fader.join(kept, first, is_last=is_last)
        self._past = np.concatenate([self._past, final])[-PAST_SAMPLES:]
        self._done += frames
        return final

    def _cut_window(self, mel_FB: NDArray[np.float32]) -> Any:
        """The next window with what is before and behind it, silent where there is nothing."""
        first, last = self._done - PAST_FRAMES, self._done + WINDOW_FRAMES + AHEAD_FRAMES
        frames = np.arange(first, last)
        inside = (frames >= 0) & (frames < len(mel_FB))
        window = np.where(inside[:, None], mel_FB[np.clip(frames, 0, len(mel_FB) - 1)], self._vocoder.silent_frame_B)
        return tf.constant(window[None].astype(np.float32))
