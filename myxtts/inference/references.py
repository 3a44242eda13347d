"""Recordings of a voice, read and judged before any model is there."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import numpy as np
from numpy.typing import NDArray

from myxtts.audio.clip_errors import COPY, REPLACE, ClipError
from myxtts.audio.reading import SILENCE_SPAN, read_clip
from myxtts.audio.units import SAMPLE_RATE_HZ
from myxtts.inference.errors import VoiceError

REFERENCE_SECONDS = 30.0
"""As much of each recording is heard."""
SHORTEST_SECONDS = 0.33
"""A recording below it is refused, a chunk of one left out."""
ANOTHER = "Give another recording."


def read_references(paths: Sequence[str | os.PathLike[str]]) -> list[NDArray[np.float32]]:
    """The first seconds of each recording at 22.05 kHz.

    Raises `ClipError` for a file that cannot be read, `VoiceError` for one that gives no voice.
    """
    if not paths:
        raise VoiceError("A voice must have at least one recording, but none was given. Give a reference.")
    return [_read_reference(path) for path in paths]


@contextmanager
def advise_another() -> Iterator[None]:
    """What is wrong with a recording read in here, with the advice for a reference: it stands in no metadata."""
    try:
        yield
    except ClipError as error:
        text = str(error).removeprefix(f"{error.path}: ").replace(REPLACE, ANOTHER).replace(COPY, ANOTHER)
        raise ClipError(error.path, error.problem, text) from error


def _read_reference(path: str | os.PathLike[str]) -> NDArray[np.float32]:
    with advise_another():
        samples = read_clip(path, most_seconds=REFERENCE_SECONDS)
    seconds = len(samples) / SAMPLE_RATE_HZ
    if seconds < SHORTEST_SECONDS:
        raise VoiceError(
            f"{path}: a reference must last at least {SHORTEST_SECONDS:g} s, but lasts {seconds:.2f} s. Give a recording of "
            "one speaker, best of 6 to 30 s."
        )
    if float(np.ptp(samples)) < SILENCE_SPAN:
        raise VoiceError(
            f"{path}: a reference must hold a voice, but its first {REFERENCE_SECONDS:g} s are silent. {ANOTHER}"
        )
    return samples
