"""What the model's thread does for a request."""

from __future__ import annotations

import time
from collections.abc import Generator, Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from myxtts.inference.speech import SpeechChunk
from myxtts.inference.voices import Voice
from myxtts.serving.sound_formats import encode_stream, encode_whole
from myxtts.serving.speech_order import SpeechOrder
from myxtts.serving.voice_shelf import clone_upload

if TYPE_CHECKING:
    from myxtts.inference.synthesizer import Synthesizer


@dataclass
class SpeechFacts:
    """How a request went, for the log. Written by the model's thread."""

    asked: float = field(default_factory=time.perf_counter)
    waited_s: float | None = None
    """In the queue."""
    first_sound_s: float | None = None
    seconds: float = 0.0
    """Of speech."""
    unfinished: int = 0
    """Pieces that were cut off because the model did not stop by itself."""

    def note(self, chunk: SpeechChunk, rate_hz: int) -> None:
        if len(chunk.samples) and self.first_sound_s is None:
            self.first_sound_s = time.perf_counter() - self.asked
        self.seconds += len(chunk.samples) / rate_hz
        self.unfinished += chunk.piece is not None and not chunk.piece.stopped

    def describe(self) -> str:
        parts = [f"{self.seconds:.2f} s of speech"]
        if self.first_sound_s is not None:
            parts.append(f"first sound after {self.first_sound_s:.2f} s")
        if self.waited_s is not None:
            parts.append(f"waited {self.waited_s:.2f} s")
        if self.unfinished:
            parts.append(f"pieces cut off: {self.unfinished}")
        return ", ".join(parts)


def speak_order(
    synthesizer: Synthesizer, order: SpeechOrder, voice: Voice, facts: SpeechFacts
) -> Generator[bytes | None, None, None]:
    """The bytes of the answer: as the sound is made, or all of them at the end."""
    facts.waited_s = time.perf_counter() - facts.asked
    # Whole answers are made piece by piece in batches, which is faster and gives the same sound.
    say = synthesizer.stream if order.is_streamed else synthesizer.speak_in_turn
    chunks = say(order.text, voice, order.language, order.settings)
    encode = encode_stream if order.is_streamed else encode_whole
    yield from encode(_take_samples(chunks, facts, synthesizer.rate_hz), order.sound, synthesizer.rate_hz)


def clone_recording(synthesizer: Synthesizer, recording: bytes) -> Generator[Voice | None, None, None]:
    """The voice in an uploaded recording."""
    yield clone_upload(synthesizer, recording)


def _take_samples(chunks: Iterator[SpeechChunk], facts: SpeechFacts, rate_hz: int) -> Iterator[NDArray[np.float32]]:
    for chunk in chunks:
        facts.note(chunk, rate_hz)
        yield chunk.samples
