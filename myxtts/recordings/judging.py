"""Whether a clip is fit to learn from: what is measured in its sound, and what speaks against it.

A reason is a doubt, not a proof: what has one is set aside, and can be taken back by whoever listens to it.
"""

from __future__ import annotations

import importlib.util
import math
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from myxtts.audio.resampling import resample_clip
from myxtts.errors import DropReason
from myxtts.evaluation.scores import compute_cepstra_db, join_words, score_transcript, split_words
from myxtts.recordings.cutting import DETECTOR_RATE_HZ, LEAST_SECONDS, MOST_SECONDS
from myxtts.units import SAMPLE_RATE_HZ

LEVEL_DB, PEAK_DB = -20.0, -1.0
"""Of full scale: the root mean square of a clip's speech is brought to the first, unless a peak passed the second then."""
SPEECH_RANGE_DB = 30.0
"""Frames that are not quieter than this below the loudest count as speech."""
FRAME_SAMPLES = SAMPLE_RATE_HZ // 50  # 20 ms

FULL_SCALE = 0.985
"""Beyond it a peak is taken for cut off; resampling moves what stood at full scale a little."""
MOST_CLIPPED_SHARE = 0.0005
TOP_BINS = 53
"""Of 3 % each: peaks are counted down to a fifth of the highest."""
MOST_FLAT_TOPS = 1.4
"""What `count_flat_tops` may give: 1.1 is usual."""
LEAST_SNR_DB = 18.0
"""As `measure_sound` estimates it, about 5 dB above what white noise really is below speech."""
MOST_MISHEARD_SHARE = 0.2
"""Of the characters of a text. A good recogniser errs in about one of twenty words."""
RATE_RANGE = (0.5, 1.7)
"""Of the median of all clips: characters each second."""
FEWEST_CLIPS = 8
"""For a median, or a voice, that says something."""

VOICE_SPREAD_DB = (1.17, 0.99, 0.81, 0.46, 0.69, 0.47, 0.41, 0.31, 0.31, 0.30, 0.31, 0.30, 0.26)
"""Of the mean cepstra of one speaker's clips of 5 s, without the level: of nine speakers in two languages."""
MOST_VOICE_DISTANCE = 2.0
"""From the speaker most clips are of, in such spreads; 1 is usual. One clip of a hundred of the same speaker is farther away."""

Samples = NDArray[np.float32]
Figures = dict[str, float | None]


def measure_sound(samples: Samples) -> Figures:
    """What is measured in a clip at 22.05 kHz as it was recorded."""
    levels = _measure_levels(samples)
    is_speech = levels >= levels.max() - SPEECH_RANGE_DB
    level = 10 * math.log10(float(np.mean(10 ** (levels[is_speech] / 10))))
    return {
        "level_db": round(level, 2),
        "peak_db": round(20 * math.log10(max(float(np.abs(samples).max()), 1e-6)), 2),
        "clipped_share": round(float(np.mean(np.abs(samples) >= FULL_SCALE)), 6),
        "flat_tops": round(count_flat_tops(samples), 2),
        "snr_db": round(float(np.percentile(levels, 95) - np.percentile(levels, 5)), 1),
        "dnsmos": estimate_quality(samples),
    }


def count_flat_tops(samples: Samples) -> float:
    """How much more often peaks stop at some height than 12 % below it; in speech that is not cut off, higher ones are rarer.

    That height may be below the highest peak: what was overdriven, then made quieter, and coded or resampled, swings beyond it.
    """
    heights = np.abs(samples)
    heights = heights[heights > heights.max() * 1.03**-TOP_BINS]
    if not len(heights):
        return 0.0
    bins = (np.log(heights.max() / heights) / math.log(1.03)).astype(np.int64)
    pairs = np.convolve(np.bincount(np.minimum(bins, TOP_BINS), minlength=TOP_BINS + 1)[:-1], [1, 1], "valid")
    tops, below = pairs[:-4], pairs[4:]
    # A few for chance.
    return float(np.max(np.where(tops >= MOST_CLIPPED_SHARE * len(samples), tops / (below + 10), 0.0)))


def even_level(samples: Samples, figures: Figures) -> Samples:
    """The clip at the level of all."""
    level, peak = figures["level_db"], figures["peak_db"]
    assert level is not None
    assert peak is not None
    return samples * np.float32(10 ** (min(LEVEL_DB - level, PEAK_DB - peak) / 20))


def _measure_levels(samples: Samples) -> NDArray[np.float64]:
    """Of each frame, in dB of full scale."""
    count = max(1, len(samples) // FRAME_SAMPLES)
    frames = np.resize(samples, (count, FRAME_SAMPLES)).astype(np.float64)
    return np.asarray(10 * np.log10(np.square(frames).mean(1) + 1e-9))


def estimate_quality(samples: Samples) -> float | None:
    """DNSMOS, from 1 to 5: how little noise and distortion listeners would hear; None where it is not installed.

    It says nothing of naturalness: a formant synthesiser gets 3.05, real speech 3.26.
    """
    session = _load_dnsmos()
    if session is None:
        return None
    heard = resample_clip(samples, SAMPLE_RATE_HZ, DETECTOR_RATE_HZ)
    raw = session.run(None, {"input_1": np.resize(heard, (1, round(9.01 * DETECTOR_RATE_HZ)))})[0][0][2]
    return round(float(np.polyval([-0.06766283, 1.11546468, 0.04602535], raw)), 2)


@cache
def _load_dnsmos() -> Any:
    """The network of speechmos, without the rest of that package, which needs others that it does not name."""
    found = importlib.util.find_spec("speechmos")
    if found is None or found.origin is None or importlib.util.find_spec("onnxruntime") is None:
        return None
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3
    # A clip is little work: more threads cost processor time, and save none that can be seen.
    options.intra_op_num_threads = 1
    path = Path(found.origin).parent / "dnsmos_models" / "sig_bak_ovr.onnx"
    return onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])


def compare_text(text: str, heard: str | None, language: str, seconds: float) -> Figures:
    """How much of a text was misheard, and how fast it was said."""
    letters = join_words(split_words(text, language), language)
    figures: Figures = {"characters_per_s": round(len(letters) / seconds, 2) if seconds else None}
    if heard is not None and letters:
        words, characters = score_transcript(text, heard, language)
        figures["misheard_words"] = round(words["errors"] / max(1, words["length"]), 3)
        figures["misheard_characters"] = round(characters["errors"] / max(1, characters["length"]), 3)
    return figures


def judge_clip(figures: Mapping[str, float | None], seconds: float, text: str) -> list[DropReason]:
    """What speaks against a clip with these figures."""

    def read(name: str, without: float) -> float:
        value = figures.get(name)
        return without if value is None else value

    tests = {
        # A frame more than is cut for.
        DropReason.TOO_SHORT: seconds < LEAST_SECONDS,
        DropReason.TOO_LONG: seconds > MOST_SECONDS + 0.01,
        DropReason.TEXT_EMPTY: not text.strip(),
        DropReason.CLIPPED: read("clipped_share", 0.0) > MOST_CLIPPED_SHARE or read("flat_tops", 0.0) > MOST_FLAT_TOPS,
        DropReason.NOISY: read("snr_db", math.inf) < LEAST_SNR_DB,
        DropReason.MISHEARD: read("misheard_characters", 0.0) > MOST_MISHEARD_SHARE,
        DropReason.OTHER_VOICE: read("voice_distance", 0.0) > MOST_VOICE_DISTANCE,
    }
    return [reason for reason, applies in tests.items() if applies]


def describe_voice(samples: Samples) -> list[float]:
    """The mean cepstra of the louder frames of a clip: its timbre, and that of the microphone."""
    cepstra_FC = compute_cepstra_db(samples)
    louder_FC = cepstra_FC[cepstra_FC[:, 0] >= np.percentile(cepstra_FC[:, 0], 40)]
    return [round(value, 2) for value in louder_FC[:, 1:].mean(0).tolist()]


def measure_voices(voices: Sequence[Sequence[float]]) -> list[float | None]:
    """How far each voice is from that of most; None where there are too few to tell."""
    if len(voices) < FEWEST_CLIPS:
        return [None] * len(voices)
    voices_NC = np.array(voices) / VOICE_SPREAD_DB

    def measure(centre_C: NDArray[np.float64]) -> NDArray[np.float64]:
        return np.asarray(np.sqrt(np.square(voices_NC - centre_C).mean(1)))

    # From the clip that most are near to; then from the middle of those.
    distances_N = min(map(measure, voices_NC), key=lambda distances_N: float(np.median(distances_N)))
    for _ in range(3):
        distances_N = measure(voices_NC[distances_N <= max(MOST_VOICE_DISTANCE, distances_N.min())].mean(0))
    return [round(distance, 2) for distance in distances_N.tolist()]


def find_odd_rates(rates: Sequence[float | None]) -> list[bool]:
    """Which clips are said far faster or slower than the others."""
    known = [rate for rate in rates if rate]
    if len(known) < FEWEST_CLIPS:
        return [False] * len(rates)
    low, high = (share * float(np.median(known)) for share in RATE_RANGE)
    return [bool(rate) and not low <= float(rate or 0) <= high for rate in rates]
