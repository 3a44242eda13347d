"""What turns codes into sound: the waveform decoder, or mels and Griffin-Lim; and which of them speaks."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from typing import Any, Literal, NamedTuple

import numpy as np
import tensorflow as tf
from numpy.typing import NDArray

from myxtts.audio.griffin_lim import HOP_SAMPLES, HOPS, MARGIN_SAMPLES, reconstruct_phase, recover_magnitudes
from myxtts.audio.mels import make_silent_frame
from myxtts.errors import UnableToSpeakError
from myxtts.inference.voices import Voice
from myxtts.models.dvae import DVAE
from myxtts.models.sizes import FRAMES_PER_LATENT, RATE_CHANGE, SAMPLES_PER_FRAME, SPEECH_RATE_HZ, DecoderSize
from myxtts.models.waveform import WaveformDecoder, change_speed, count_settled, resample_linearly, stretch_latents
from myxtts.units import FRAMES_PER_CODE, SAMPLE_RATE_HZ

STREAM_CODES = 20
"""Codes between two chunks of a stream, 0.93 s."""
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

    def list_steps(self, first: int) -> Iterator[int]:
        """After how many codes of a piece to render, beginning with so many: what a call costs beside its sound is shared by ever more."""
        codes, size = first, first
        while True:
            yield codes
            size = max(first, min(-(-3 * size // 2), STREAM_CODES))
            codes += size

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


class Window(NamedTuple):
    """Frames of a piece whose phases are found at a time."""

    frames: int
    """New ones."""
    ahead: int
    """Frames behind them that are heard too: what the new ones are to go on to."""
    context: int
    """Codes that their mel waits for, where it could hear more."""


OPENING = (
    Window(8, 8, 2),
    Window(8, 8, 2),
    Window(16, 8, 3),
    Window(16, 8, 4),
    Window(32, 8, 4),
    Window(32, 16, 7),
)
"""The first windows of a piece. A stream waits for them: longer ones would delay the first sound, and make the next one late. With these
none is late where codes come 1.75 times as fast as they are heard. What further codes would change of a block of the base voice's mel is
0.17 dB after 2, 0.11 after 3 and 0.05 after 4."""
ONWARD = Window(64, 16, 7)
"""All others: the longer, the less is done twice."""
PAST_FRAMES = 1
"""Before a window: the one frame that reaches from known samples into new ones."""
SPARE_FRAMES = HOPS
"""Silent ones behind the end of a piece."""
ROUNDS = 24
"""Half of what phases take that start from nothing: a window starts from what the one before has found ahead of it."""
OVERLAP_SAMPLES = 1024
"""Of a window that the next one, which knows better what follows, is faded in over."""
PAST_SAMPLES = PAST_FRAMES * HOP_SAMPLES + MARGIN_SAMPLES
PHASE_SEED = 0


def lay_windows() -> Iterator[tuple[Window, int, int]]:
    """The windows of a piece, with the first frame of each and the codes whose mel it takes."""
    done = 0
    for window in itertools.chain(OPENING, itertools.repeat(ONWARD)):
        yield window, done, (done + window.frames + window.ahead) // FRAMES_PER_CODE
        done += window.frames


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
        self.find_magnitudes = tf.function(
            lambda mel: recover_magnitudes(mel, mel_norms_B),
            input_signature=[tf.TensorSpec([1, None, bands])],
            autograph=False,
        )

    def list_steps(self, first: int) -> Iterator[int]:
        """After how many codes of a piece to render, beginning with so many: when a window's mel has come."""
        yield first
        for window, _, end in lay_windows():
            if (codes := end + min(window.context, self.context)) > first:
                yield codes

    def find_samples(
        self, magnitude_TF: NDArray[np.float32], past: NDArray[np.float32], guess: NDArray[np.float32]
    ) -> NDArray[np.float32]:
        """Samples with these magnitudes that go on from what is known of the past, and perhaps to what was guessed of them."""
        return reconstruct_phase(magnitude_TF, PHASE_SEED, known_S=past, guessed_S=guess, rounds=ROUNDS)

    def start(self, voice: Voice | None, speed: float) -> MelRendering:
        """The sound of a new piece. The voice is in the codes already."""
        return MelRendering(self, speed)


class MelRendering:
    """The sound of one piece under way."""

    def __init__(self, vocoder: MelVocoder, speed: float):
        self._vocoder, self._speed = vocoder, speed
        self._mel_FB = np.zeros((0, len(vocoder.silent_frame_B)), np.float32)
        self._past, self._held, self._guess = (np.zeros(size, np.float32) for size in (PAST_SAMPLES, 0, 0))
        self._blocks, self._windows = lay_windows(), lay_windows()
        self._block, self._window = next(self._blocks), next(self._windows)
        self._decoded = 0

    def render(
        self, codes_M: NDArray[np.int32], latents_MC: NDArray[np.float32] | None = None, *, is_last: bool
    ) -> NDArray[np.float32]:
        """The samples that have become final since the last call, of all codes so far."""
        # Start and stop tokens have no sound.
        self._extend_mel(codes_M[codes_M < self._vocoder.codes], is_last)
        mel_FB = self._change_speed(is_last)
        parts: list[NDArray[np.float32]] = []
        while True:
            window, done, _ = self._window
            # No more than a stream has by then.
            end = done + window.frames + window.ahead
            if len(mel_FB) < end:
                break
            parts.append(self._render_window(mel_FB, done, window.frames, end, is_last=False))
            self._window = next(self._windows)
        if is_last and len(mel_FB) > done:
            left = len(mel_FB) - done
            parts.append(self._render_window(mel_FB, done, left, len(mel_FB) + SPARE_FRAMES, is_last=True))
        return np.concatenate(parts) if parts else np.zeros(0, np.float32)

    def _extend_mel(self, codes_M: NDArray[np.int32], is_last: bool) -> None:
        """Decodes the frames that further codes will not change, or all that are left.

        In blocks with fixed places: other blocks would change last bits of the mel, and finding phases makes much of them.
        """
        context = self._vocoder.context
        while self._decoded < len(codes_M):
            window, _, end = self._block
            ahead = min(window.context, context)
            is_whole = len(codes_M) >= end + ahead
            if not is_whole and not is_last:
                break
            end = end if is_whole else len(codes_M)
            first = max(0, self._decoded - context)
            mel = self._vocoder.decode_mel(tf.constant(codes_M[None, first : end + ahead], tf.int32)).numpy()[0]
            fresh = mel[(self._decoded - first) * FRAMES_PER_CODE : (end - first) * FRAMES_PER_CODE]
            self._mel_FB = np.concatenate([self._mel_FB, fresh])
            self._decoded, self._block = end, next(self._blocks)

    def _change_speed(self, is_last: bool) -> NDArray[np.float32]:
        if self._speed == 1.0 or not len(self._mel_FB):
            return self._mel_FB
        scale = 1 / self._speed
        paced: NDArray[np.float32] = resample_linearly(tf.constant(self._mel_FB[None]), scale).numpy()[0]
        return paced if is_last else paced[: count_settled(len(self._mel_FB), scale)]

    def _render_window(
        self, mel_FB: NDArray[np.float32], done: int, frames: int, last: int, *, is_last: bool
    ) -> NDArray[np.float32]:
        mel_1TB = tf.constant(self._cut_window(mel_FB, done - PAST_FRAMES, last)[None])
        samples = self._vocoder.find_samples(self._vocoder.find_magnitudes(mel_1TB).numpy()[0], self._past, self._guess)
        end = PAST_SAMPLES + frames * HOP_SAMPLES
        window = samples[PAST_SAMPLES : end + (0 if is_last else OVERLAP_SAMPLES)].copy()
        fade = min(len(self._held), len(window))
        rise = np.linspace(0.0, 1.0, fade, dtype=np.float32)
        window[:fade] = window[:fade] * rise + self._held[:fade] * rise[::-1]
        final, self._held = window[: end - PAST_SAMPLES], window[end - PAST_SAMPLES :]
        self._past = np.concatenate([self._past, final])[-PAST_SAMPLES:]
        # Without the last samples, which few windows cover.
        self._guess = samples[end:-MARGIN_SAMPLES]
        return final

    def _cut_window(self, mel_FB: NDArray[np.float32], first: int, last: int) -> NDArray[np.float32]:
        """The mel between two frames, silent where there is nothing."""
        frames = np.arange(first, last)
        inside = (frames >= 0) & (frames < len(mel_FB))
        window = np.where(inside[:, None], mel_FB[np.clip(frames, 0, len(mel_FB) - 1)], self._vocoder.silent_frame_B)
        return window.astype(np.float32)


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
