"""Clips from files: what a header says, the samples, and whether a clip can be used.

Reads what libsndfile reads (wav, flac, ogg, opus, mp3, aiff; any rate, depth and number of channels). Every failure is a
`ClipError`; nothing of the native libraries' own messages reaches the terminal.
"""

from __future__ import annotations

import math
import os
from pathlib import Path

import numpy as np
import soundfile
from numpy.typing import NDArray

from myxtts.audio.clip_errors import COPY, REPLACE, ClipError, ClipProblem
from myxtts.audio.opening import MPEG_SLACK_FRAMES, ClipInfo, OpenClip, open_clip
from myxtts.audio.resampling import resample_clip
from myxtts.audio.units import SAMPLE_RATE_HZ

BLOCK_FRAMES = 1 << 20
"""Decoded at a time, so that a header's claim never decides how much memory is asked for."""

_BEHIND_CUT_SECONDS = 1.0

SILENCE_SPAN = 2.0**-13
"""A clip whose samples all lie this close together is silent: four steps of 16 bits, about -78 dB."""

LOUDEST_PEAK = 16.0
"""Full scale is 1 and a hot recording may pass it; a float file of 16-bit numbers has a peak of 32768."""


def inspect_clip(path: str | os.PathLike[str]) -> ClipInfo:
    """What a file's header says, in a fraction of a millisecond: nothing is decoded.

    Raises `ClipError` (missing, unreadable, empty, unsupported, corrupt, truncated) for what can be told without decoding.
    """
    with open_clip(Path(path)) as clip:
        return clip.info


def read_clip(
    path: str | os.PathLike[str], rate_hz: int = SAMPLE_RATE_HZ, *, most_seconds: float = math.inf
) -> NDArray[np.float32]:
    """The samples of a file: one channel (the mean of all), at `rate_hz`, in [-1, 1].

    What is behind `most_seconds` is not decoded, so damage there is not seen.

    Raises `ClipError` (missing, unreadable, empty, unsupported, corrupt, truncated, nan).
    """
    with open_clip(Path(path)) as clip:
        # A little more, so that the filter finds what follows at the cut.
        samples = _decode_mono(clip, most_seconds + _BEHIND_CUT_SECONDS)
    samples = resample_clip(samples, clip.info.rate_hz, rate_hz)
    if len(samples) > most_seconds * rate_hz:
        samples = samples[: round(most_seconds * rate_hz)]
    # Last, as the reference does it: lossy formats and the resampling itself overshoot.
    return np.clip(samples, -1.0, 1.0, out=samples)


def check_clip(path: str | os.PathLike[str]) -> ClipInfo:
    """What a file's header says, after all of the file was decoded and found usable.

    Raises `ClipError` with the first problem met.
    """
    with open_clip(Path(path)) as clip:
        samples = _decode_mono(clip)
    # Not the peak: a constant offset is silence too.
    span = float(np.ptp(samples))
    if span < SILENCE_SPAN:
        averaged = ", once its channels are averaged" if clip.info.channels > 1 else ""
        text = f"must hold sound, but its samples span only {span:.1e} of full scale{averaged}. {REPLACE}"
        raise ClipError(clip.info.path, ClipProblem.SILENT, text)
    return clip.info


def check_duration(info: ClipInfo, *, max_seconds: float) -> None:
    """Raises `ClipError` (too_long) when a clip is longer than this."""
    if info.seconds > max_seconds:
        text = f"must last at most {max_seconds:g} s, but lasts {info.seconds:.3f} s. Cut it at a pause, with its text."
        raise ClipError(info.path, ClipProblem.TOO_LONG, text)


def _decode_mono(clip: OpenClip, most_seconds: float = math.inf) -> NDArray[np.float32]:
    """The mean of all channels at the file's rate: finite, and as long as the header promises, or as `most_seconds`."""
    blocks: list[NDArray[np.float32]] = []
    failure = ""
    most = most_seconds * clip.info.rate_hz
    count = 0
    try:
        while count < most and len(
            block := clip.sound.read(math.ceil(min(BLOCK_FRAMES, most - count)), dtype="float32", always_2d=True)
        ):
            blocks.append(_average_channels(block))
            count += len(block)
    except soundfile.LibsndfileError as error:
        failure = error.error_string
    if count < most:
        _check_decoded(clip, count, failure)
    samples = blocks[0] if len(blocks) == 1 else np.concatenate(blocks)
    _check_values(clip.info, samples)
    return samples


def _average_channels(block: NDArray[np.float32]) -> NDArray[np.float32]:
    if block.shape[1] == 1:
        return block[:, 0]
    # Column by column is several times faster than a mean along the short axis. What overflows is refused afterwards.
    with np.errstate(over="ignore", invalid="ignore"):
        total = block[:, 0] + block[:, 1]
        for channel in range(2, block.shape[1]):
            total += block[:, channel]
        total /= np.float32(block.shape[1])
    return total


def _check_decoded(clip: OpenClip, frames: int, failure: str) -> None:
    info = clip.info
    slack = MPEG_SLACK_FRAMES if "MPEG" in info.encoding else 0
    if not failure and frames > 0 and info.frames - frames <= slack:
        return
    why = f" ({failure})" if failure else ""
    if clip.is_read_up():
        text = f"is cut off{why}: its header promises {info.frames} samples, {frames} could be decoded. {COPY}"
        raise ClipError(info.path, ClipProblem.TRUNCATED, text)
    text = f"is damaged{why}: {frames} of {info.frames} samples could be decoded. {REPLACE}"
    raise ClipError(info.path, ClipProblem.CORRUPT, text)


def _check_values(info: ClipInfo, samples: NDArray[np.float32]) -> None:
    low, high = float(samples.min()), float(samples.max())
    if not (math.isfinite(low) and math.isfinite(high)):
        text = f"must hold numbers, but has samples that are infinite or not a number. {REPLACE}"
        raise ClipError(info.path, ClipProblem.NAN, text)
    peak = max(-low, high)
    if peak > LOUDEST_PEAK:
        text = f"must have samples of about -1 to 1, but they reach {peak:.4g}. Scale them, or write the file as 16-bit integers."
        raise ClipError(info.path, ClipProblem.CORRUPT, text)
