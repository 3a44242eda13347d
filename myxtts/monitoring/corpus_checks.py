"""What of a corpus makes reading slow or wastes computation."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import PurePosixPath

import numpy as np

from myxtts.audio.clip_errors import ClipError
from myxtts.audio.reading import inspect_clip
from myxtts.audio.units import SAMPLE_RATE_HZ
from myxtts.data.buckets import BucketPlan
from myxtts.data.corpus import Corpus
from myxtts.monitoring.advice import split_batch
from myxtts.monitoring.health import Issue, Severity

SLOW_FORMATS = frozenset({".mp3", ".ogg", ".opus", ".m4a", ".aac"})
MUCH_PADDING = 0.2
WIDE_SPREAD = 4.0
SHORTER = 0.9
"""Of the longest clip: what 95 % stay below must be notably less, or it is not a few clips that are long."""
MANY_SET_ASIDE = 0.2
NOTABLE_SHARE = 0.05
PROBED_FILES = 32


@dataclass(frozen=True)
class CorpusFacts:
    """A corpus, as far as speed goes."""

    clips: int
    seconds: float
    formats: tuple[tuple[str, int], ...]
    """File endings with their clips, the most frequent first."""
    rates_hz: tuple[tuple[int, int], ...]
    """Sampling rates with the files that have them, of a few that were looked at."""
    probed: int
    median_s: float
    p95_s: float
    longest_s: float
    padding: float
    """Share of the audio that is padding, 0 to 1."""
    shapes: int
    set_aside: int = 0
    """Clips that the metadata names and a run cannot use."""


def describe_speed_of_corpus(corpus: Corpus, plan: BucketPlan, set_aside: int = 0) -> CorpusFacts:
    """The facts of a corpus with at least one clip and of the batches that a run makes; the headers of a few files are read."""
    seconds_N = corpus.samples / SAMPLE_RATE_HZ
    median_s, p95_s = np.quantile(seconds_N, (0.5, 0.95)).tolist()
    rates = _probe_rates(corpus)
    return CorpusFacts(
        clips=len(corpus),
        seconds=corpus.total_seconds,
        formats=tuple(Counter(PurePosixPath(name).suffix.lower() for name in corpus.audio).most_common()),
        rates_hz=tuple(rates.most_common()),
        probed=rates.total(),
        median_s=median_s,
        p95_s=p95_s,
        longest_s=float(seconds_N.max()),
        padding=plan.waste.audio_share,
        shapes=len(plan.buckets),
        set_aside=set_aside,
    )


def check_corpus(facts: CorpusFacts, batch_size: int, accumulation: int) -> Iterator[Issue]:
    """Issues of a corpus in batches of so many clips, so many of which make up an update."""
    slow = [(ending, clips) for ending, clips in facts.formats if ending in SLOW_FORMATS]
    slow_share = sum(clips for _, clips in slow) / facts.clips
    if slow_share > NOTABLE_SHARE:
        yield Issue(
            Severity.WORTH_CHANGING,
            "Many recordings are compressed, which costs processor time in every epoch",
            ", ".join(f"{clips} clips in {ending}" for ending, clips in slow),
            f'for f in wavs/*{slow[0][0]}; do ffmpeg -i "$f" -ac 1 -ar {SAMPLE_RATE_HZ} -c:a pcm_s16le "${{f%.*}}.wav"; done',
            "reading without decoding; matters where the speed test finds loading slow",
        )
    other = [(rate, files) for rate, files in facts.rates_hz if rate != SAMPLE_RATE_HZ]
    if facts.probed and sum(files for _, files in other) / facts.probed > NOTABLE_SHARE:
        yield Issue(
            Severity.NOTE,
            "Recordings are resampled whenever they are read",
            f"{', '.join(f'{files} of {facts.probed} files at {rate} Hz' for rate, files in other[:3])}; the model needs {SAMPLE_RATE_HZ} Hz",
            f"ffmpeg -i IN.wav -ac 1 -ar {SAMPLE_RATE_HZ} -c:a pcm_s16le OUT.wav, for all files once",
            "less processor time per clip",
        )
    if facts.padding > MUCH_PADDING:
        smaller = split_batch(batch_size, accumulation)
        yield Issue(
            Severity.WORTH_CHANGING if smaller else Severity.NOTE,
            "Much of what is computed is padding",
            f"{facts.padding:.0%} of the audio in batches of {batch_size}",
            smaller or "none: a batch of one clip cannot be smaller",
            f"at most {facts.padding:.0%} of the computation",
            facts.padding,
        )
    if facts.set_aside > MANY_SET_ASIDE * (facts.clips + facts.set_aside):
        yield Issue(
            Severity.NOTE,
            "Many clips are set aside",
            f"{facts.set_aside} of {facts.clips + facts.set_aside} cannot be used with these settings",
            "myxtts data    # shows which, and why; it takes the same flags",
            "more to learn from",
        )
    if facts.longest_s > WIDE_SPREAD * facts.median_s and facts.p95_s < SHORTER * facts.longest_s:
        yield Issue(
            Severity.NOTE,
            "A few clips are much longer than the others: they decide how much memory a batch takes",
            f"half are up to {facts.median_s:.1f} s, 95 % up to {facts.p95_s:.1f} s, the longest {facts.longest_s:.1f} s",
            f"--max-clip-seconds {facts.p95_s:.3g}",
            "larger batches in the same memory, steadier steps",
        )


def _probe_rates(corpus: Corpus) -> Counter[int]:
    chosen = np.unique(np.linspace(0, len(corpus) - 1, min(PROBED_FILES, len(corpus))).astype(int))
    rates: Counter[int] = Counter()
    for clip in chosen.tolist():
        try:
            rates[inspect_clip(corpus.find_file(clip)).rate_hz] += 1
        except ClipError:
            # What cannot be read any more is the business of the scan, which says so.
            continue
    return rates
