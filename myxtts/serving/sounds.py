"""Samples -> the bytes of a sound file, whole or as they come."""

from __future__ import annotations

import io
import struct
from collections.abc import Generator, Iterable, Iterator
from dataclasses import dataclass

import numpy as np
import soundfile
import soxr
from numpy.typing import NDArray

from myxtts.inference.speech import to_pcm16

PCM_RATE_HZ = 24_000
"""Samples without a header are taken to have this rate by clients of the OpenAI API. Opus has it, too, but not 22.05 kHz."""

UNKNOWN_BYTES = 0xFFFFFFFF
"""For the length in the header of a wav file that is still being made: players take what comes."""

_SAMPLE_BYTES = 2


@dataclass(frozen=True)
class SoundFormat:
    """A form in which speech is sent; container and encoding as libsndfile names them."""

    media_type: str
    container: str
    encoding: str = "PCM_16"
    rate_hz: int = 0
    """The only one it can have; 0 for the model's own."""
    can_stream: bool = False
    """Whether it can be sent before its length is known."""

    def choose_rate(self, model_rate_hz: int) -> int:
        return self.rate_hz or model_rate_hz


_ALL = {
    "wav": SoundFormat("audio/wav", "WAV", can_stream=True),
    "pcm": SoundFormat("audio/pcm", "RAW", rate_hz=PCM_RATE_HZ, can_stream=True),
    "flac": SoundFormat("audio/flac", "FLAC"),
    "mp3": SoundFormat("audio/mpeg", "MP3", "MPEG_LAYER_III"),
    "opus": SoundFormat("audio/ogg", "OGG", "OPUS", rate_hz=PCM_RATE_HZ),
    "ogg": SoundFormat("audio/ogg", "OGG", "VORBIS"),
}
FORMATS = {
    name: sound for name, sound in _ALL.items() if sound.encoding in soundfile.available_subtypes(sound.container)
}
"""Those that the libsndfile of this machine can write, by the name a request has for them."""


def encode_stream(
    chunks: Iterable[NDArray[np.float32]], sound: SoundFormat, rate_hz: int
) -> Generator[bytes | None, None, None]:
    """The bytes of each chunk as soon as it is there; None where a chunk gives none."""
    assert sound.can_stream
    header: bytes | None = make_wav_header(rate_hz) if sound.container == "WAV" else b""
    for samples in _resample(chunks, rate_hz, sound.choose_rate(rate_hz)):
        data = to_pcm16(samples)
        # With the first samples and not before them: what goes wrong until then can still be answered with an error.
        yield (header or b"") + data if data else None
        header = None if data else header
    if header is not None:
        # A model may stop without having said anything.
        yield header


def make_wav_header(rate_hz: int) -> bytes:
    """The first 44 bytes of a wav file whose end is not known yet: 16 bit, one channel."""
    form = struct.pack("<HHIIHH", 1, 1, rate_hz, rate_hz * _SAMPLE_BYTES, _SAMPLE_BYTES, 8 * _SAMPLE_BYTES)
    length = struct.pack("<I", UNKNOWN_BYTES)
    return b"RIFF" + length + b"WAVEfmt " + struct.pack("<I", len(form)) + form + b"data" + length


def encode_whole(
    chunks: Iterable[NDArray[np.float32]], sound: SoundFormat, rate_hz: int
) -> Generator[bytes | None, None, None]:
    """None for each chunk, and then all bytes at once."""
    memory, target_hz = io.BytesIO(), sound.choose_rate(rate_hz)
    with soundfile.SoundFile(memory, "w", target_hz, 1, sound.encoding, format=sound.container) as file:
        for samples in _resample(chunks, rate_hz, target_hz):
            # In blocks of a second: libsndfile keeps a whole block on the stack when it writes Vorbis or Opus.
            for first in range(0, len(samples), target_hz):
                file.buffer_write(to_pcm16(samples[first : first + target_hz]), "int16")
            yield None
    yield memory.getvalue()


def _resample(chunks: Iterable[NDArray[np.float32]], from_hz: int, to_hz: int) -> Iterator[NDArray[np.float32]]:
    if from_hz == to_hz:
        yield from chunks
        return
    stream = soxr.ResampleStream(from_hz, to_hz, 1, dtype="float32")
    for samples in chunks:
        yield stream.resample_chunk(samples) if len(samples) else samples
    yield stream.resample_chunk(np.zeros(0, np.float32), last=True)
