"""The numbers each part of the network is made of, without TensorFlow.

A part takes its size and nothing else, so that a test can build it at width 8 and a checkpoint at its own width;
`read_sizes` is the one place that turns a configuration into sizes."""

from __future__ import annotations

import math
from dataclasses import dataclass

from myxtts.config import ModelConfig
from myxtts.units import FRAMES_PER_CODE, HOP_SAMPLES, SAMPLE_RATE_HZ

MEL_CHANNELS = 80
"""Channels of the conditioning mel and of the DVAE's mel."""
PROMPT_LATENTS = 32
"""Vectors the perceiver makes of a reference, whatever its length; they stand before the text."""
STOP_CODES = 4
"""Stop tokens a clip is trained on after its last code."""


@dataclass(frozen=True, kw_only=True)
class GPTSize:
    """Sizes of the GPT, its conditioning encoder and its perceiver."""

    layers: int
    width: int
    heads: int
    text_tokens: int
    audio_codes: int
    max_text_tokens: int
    max_audio_tokens: int
    max_prompt_tokens: int = 70
    start_text_token: int = 261
    stop_text_token: int = 0
    encoder_blocks: int = 6
    perceiver_layers: int = 2
    perceiver_heads: int = 8
    perceiver_head_width: int = 64

    @property
    def audio_tokens(self) -> int:
        """Audio codes, the start token and the stop token."""
        return self.audio_codes + 2

    @property
    def start_audio_token(self) -> int:
        return self.audio_codes

    @property
    def stop_audio_token(self) -> int:
        return self.audio_codes + 1

    @property
    def text_positions(self) -> int:
        """Rows of the text position table: the longest text between START and STOP."""
        return self.max_text_tokens + 2

    @property
    def audio_positions(self) -> int:
        return self.max_audio_tokens + 3

    @property
    def max_new_codes(self) -> int:
        """The most codes that can be generated, as in the reference (602 at full size)."""
        return self.max_audio_tokens - 3

    @property
    def perceiver_inner_width(self) -> int:
        return self.perceiver_heads * self.perceiver_head_width

    @property
    def perceiver_hidden_width(self) -> int:
        """Width of the gated feed-forward: two thirds of four times the width, cut to a whole number."""
        return int(self.width * 4 * 2 / 3)


@dataclass(frozen=True, kw_only=True)
class DVAESize:
    """Sizes of the DVAE. `width` is both the hidden width and the length of a code's vector."""

    width: int
    codes: int
    mel_channels: int = MEL_CHANNELS
    blocks: int = 3
    accumulator_rows: int = 100
    """Rows of a buffer that the reference stores and never uses; carried along so that an export is complete."""


@dataclass(frozen=True, kw_only=True)
class DecoderSize:
    """Sizes of the HiFi-GAN decoder. `width` is halved at each of the four upsampling stages."""

    latent_width: int
    width: int
    speaker_width: int = 512
    rates: tuple[int, ...] = (8, 8, 2, 2)
    kernels: tuple[int, ...] = (16, 16, 4, 4)
    block_kernels: tuple[int, ...] = (3, 7, 11)
    block_dilations: tuple[int, ...] = (1, 3, 5)

    def channels(self, stage: int) -> int:
        """Channels after upsampling stage `stage`, counted from 0; -1 is the input of the first."""
        return self.width >> (stage + 1)


@dataclass(frozen=True, kw_only=True)
class SpeakerSize:
    """Sizes of the speaker encoder. The defaults are the published ones, and every model size keeps them:
    the encoder is never trained here, only imported."""

    width: int = 512
    filters: tuple[int, ...] = (32, 64, 128, 256)
    blocks: tuple[int, ...] = (3, 4, 6, 3)
    mel_channels: int = 64
    attention_width: int = 128
    squeeze: int = 8
    fft_bins: int = 257
    window_samples: int = 400

    @property
    def pooled_width(self) -> int:
        """Channels times mel bins at the attentive pooling; the mel axis is halved by all stages but the first."""
        return self.filters[-1] * (self.mel_channels >> (len(self.filters) - 1))


@dataclass(frozen=True, kw_only=True)
class XTTSSize:
    """Sizes of all parts."""

    gpt: GPTSize
    dvae: DVAESize
    decoder: DecoderSize
    speaker: SpeakerSize


def read_sizes(config: ModelConfig, *, start_text_token: int = 261, stop_text_token: int = 0) -> XTTSSize:
    """The sizes a configuration asks for.

    Args:
        config: the model section.
        start_text_token: id of `[START]`. It belongs to the vocabulary file; 261 is the published one's.
        stop_text_token: id of `[STOP]`, likewise.
    """
    speaker = SpeakerSize()
    return XTTSSize(
        gpt=GPTSize(
            layers=config.gpt_layers,
            width=config.gpt_width,
            heads=config.gpt_heads,
            text_tokens=config.text_tokens,
            audio_codes=config.audio_codes,
            max_text_tokens=config.max_text_tokens,
            max_audio_tokens=config.max_audio_tokens,
            max_prompt_tokens=config.max_prompt_tokens,
            start_text_token=start_text_token,
            stop_text_token=stop_text_token,
        ),
        dvae=DVAESize(width=config.dvae_width, codes=config.audio_codes),
        decoder=DecoderSize(latent_width=config.gpt_width, width=config.decoder_width, speaker_width=speaker.width),
        speaker=speaker,
    )


SPEECH_RATE_HZ = 24_000
"""Rate of what the decoder says."""
RATE_CHANGE = SPEECH_RATE_HZ / SAMPLE_RATE_HZ
FRAMES_PER_LATENT = float(FRAMES_PER_CODE)
SAMPLES_PER_FRAME = HOP_SAMPLES

SEGMENT_FRAMES = 32
"""As much of a clip as one step of the decoder's training hears."""
SEGMENT_SAMPLES = SEGMENT_FRAMES * SAMPLES_PER_FRAME  # 8192, or 0.34 s


def count_frames(latents: int) -> int:
    """Frames that the decoder makes of so many latents."""
    return math.floor(math.floor(latents * FRAMES_PER_LATENT) * RATE_CHANGE)
