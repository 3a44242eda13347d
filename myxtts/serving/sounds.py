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

_WAV_HEADER_BYTES = 44
_SAMPLE_BYTES = 2


@dataclass(frozen=True)
class SoundFormat:
    """A form in which speech is sent.

    Args:
        media_type: as in a Content-Type header.
        container, encoding: as libsndfile names them; empty for what is written here.
        rate_hz: the only one it can have; 0 for the model's own.
        can_stream: whether it can be sent before its length is known.
    """

    media_type: str
    container: str = ""
    encoding: str = ""
    rate_hz: int = 0
    can_stream: bool = False

    def choose_rate(self, model_rate_hz: int) -> int:
        return self.rate_hz or model_rate_hz

    @property
    def can_be_written(self) -> bool:
        """Whether the libsndfile of this machine can."""
        return not self.container or self.encoding in soundfile.available_subtypes(self.container)


WAV = SoundFormat("audio/wav", can_stream=True)
PCM = SoundFormat("audio/pcm", rate_hz=PCM_RATE_HZ, can_stream=True)

_ALL = {
    "wav": WAV,
    "pcm": PCM,
    "flac": SoundFormat("audio/flac", "FLAC", "PCM_16"),
    "mp3": SoundFormat("audio/mpeg", "MP3", "MPEG_LAYER_III"),
    "opus": SoundFormat("audio/ogg", "OGG", "OPUS", rate_hz=PCM_RATE_HZ),
    "ogg": SoundFormat("audio/ogg", "OGG", "VORBIS"),
}

FORMATS = {name: sound for name, sound in _ALL.items() if sound.can_be_written}
"""By the name a request has for them."""


def encode_stream(
    chunks: Iterable[NDArray[np.float32]], sound: SoundFormat, rate_hz: int
) -> Generator[bytes | None, None, None]:
    """The bytes of each chunk as soon as it is there; None where a chunk gives none."""
    assert sound.can_stream
    header: bytes | None = make_wav_header(rate_hz) if sound is WAV else b""
    for samples in _resample(chunks, rate_hz, sound.choose_rate(rate_hz)):
        data = to_pcm16(samples)
        # With the first samples and not before them: what goes wrong until then can still be answered with an error.
        yield (header or b"") + data if data else None
        header = None if data else header
    if header is not None:
        # A model may stop without having said anything.
        yield header


def encode_whole(
    chunks: Iterable[NDArray[np.float32]], sound: SoundFormat, rate_hz: int
) -> Generator[bytes | None, None, None]:
    """None for each chunk, and then all bytes at once."""
    target_hz = sound.choose_rate(rate_hz)
    resampled = _resample(chunks, rate_hz, target_hz)
    if sound.container:
        return (yield from _encode_file(resampled, sound, target_hz))
    parts = []
    for samples in resampled:
        parts.append(to_pcm16(samples))
        yield None
    data = b"".join(parts)
    yield make_wav_header(rate_hz, len(data)) + data if sound is WAV else data


def make_wav_header(rate_hz: int, data_bytes: int | None = None) -> bytes:
    """The first 44 bytes of a wav file: 16 bit, one channel. Without a length, of a file whose end is not known yet."""
    if data_bytes is None:
        data_bytes, riff_bytes = UNKNOWN_BYTES, UNKNOWN_BYTES
    else:
        riff_bytes = data_bytes + _WAV_HEADER_BYTES - 8
    form = struct.pack("<HHIIHH", 1, 1, rate_hz, rate_hz * _SAMPLE_BYTES, _SAMPLE_BYTES, 8 * _SAMPLE_BYTES)
    return b"RIFF" + struct.pack("<I4s4sI", riff_bytes, b"WAVE", b"fmt ", len(form)) + form + b"data" + struct.pack("<I", data_bytes)  # fmt: skip


def _encode_file(
    chunks: Iterable[NDArray[np.float32]], sound: SoundFormat, rate_hz: int
) -> Generator[bytes | None, None, None]:
    memory = io.BytesIO()
    with soundfile.SoundFile(memory, "w", rate_hz, 1, sound.encoding, format=sound.container) as file:
        for samples in chunks:
            # In blocks of a second: libsndfile keeps a whole block on the stack when it writes Vorbis or Opus.
            for first in range(0, len(samples), rate_hz):
                file.write(np.clip(samples[first : first + rate_hz], -1.0, 1.0))
            yield None
    yield memory.getvalue()


def _resample(chunks: Iterable[NDArray[np.float32]], from_hz: int, to_hz: int) -> Iterator[NDArray[np.float32]]:
    if from_hz == to_hz:
        yield from chunks
        return
    stream = soxr.ResampleStream(from_hz, to_hz, 1, dtype="float32")
    for samples in chunks:
        yield stream.resample_chunk(samples)
    yield stream.resample_chunk(np.zeros(0, np.float32), last=True)
