"""From facts to a verdict on every line: a clip to train on, or a reason why not."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from myxtts.audio.units import SAMPLE_RATE_HZ
from myxtts.data.checks import NO_LANGUAGE
from myxtts.data.clip_files import LocatedClips
from myxtts.data.corpus import Corpus, resample_length
from myxtts.data.drops import Drop, DropReason
from myxtts.data.facts import PROBLEMS, ClipFacts, TextFacts
from myxtts.data.ljspeech import Metadata

_REASONS = tuple(DropReason)


@dataclass(frozen=True)
class ClipLimits:
    """What a model takes. The defaults are those XTTS is fine-tuned with."""

    min_seconds: float = 0.5
    max_samples: int = 255_995
    """At the model's rate: 11.6 s."""
    max_tokens: int = 200

    def describe(self, reasons: Collection[DropReason]) -> str:
        """The limits behind these reasons, with the flags that set them; empty where none is behind any."""
        limits = {
            DropReason.TOO_SHORT: f"too_short is below {self.min_seconds:g} s (--min-clip-seconds)",
            DropReason.TOO_LONG: f"too_long is above {self.max_samples / SAMPLE_RATE_HZ:.4g} s (--max-clip-seconds)",
            DropReason.TEXT_TOO_LONG: f"text_too_long is above {self.max_tokens} tokens (--max-text-length)",
        }
        return "; ".join(text for reason, text in limits.items() if reason in reasons)


@dataclass(frozen=True, eq=False)
class Evidence:
    """All that is known about the lines of a corpus; columns of equal length."""

    metadata: Metadata
    clips: LocatedClips
    is_duplicate: NDArray[np.bool_]
    clip_facts: ClipFacts
    text_facts: TextFacts


def judge_lines(evidence: Evidence, limits: ClipLimits, *, follow_symlinks: bool) -> tuple[Corpus, list[Drop]]:
    """The clips that can be used, and every line that cannot, with the first reason found."""
    facts, clips, metadata = evidence.clip_facts, evidence.clips, evidence.metadata
    samples = resample_length(facts.frames, np.maximum(facts.rate_hz, 1))
    tokens = evidence.text_facts.tokens
    verdict = np.full(len(metadata), -1, dtype=np.int8)
    tests: list[tuple[DropReason, NDArray[np.bool_]]] = [
        (DropReason.MISSING, ~clips.is_found),
        (DropReason.SYMLINK, clips.is_linked & (not follow_symlinks)),
        (DropReason.DUPLICATE, evidence.is_duplicate),
        *((reason, facts.problem == code) for code, reason in PROBLEMS.items()),
        (DropReason.TOO_SHORT, samples < limits.min_seconds * SAMPLE_RATE_HZ),
        (DropReason.TOO_LONG, samples > limits.max_samples),
        (DropReason.LANGUAGE, tokens == NO_LANGUAGE),
        (DropReason.TEXT_EMPTY, tokens == 0),
        (DropReason.UNKNOWN_CHARACTERS, evidence.text_facts.unknown != 0),
        (DropReason.TEXT_TOO_LONG, tokens > limits.max_tokens),
    ]
    for reason, applies in tests:
        verdict[applies & (verdict < 0)] = _REASONS.index(reason)
    kept = np.flatnonzero(verdict < 0)
    corpus = Corpus(
        root=metadata.root,
        audio=clips.path.take(kept),
        text=metadata.text.take(kept),
        speaker=metadata.speaker.take(kept),
        language=metadata.language.take(kept),
        samples=samples[kept],
        tokens=tokens[kept].astype(np.int32),
        size_bytes=clips.size_bytes[kept],
        mtime_ns=clips.mtime_ns[kept],
    )
    drops = [
        Drop(reason, clips.path[row], metadata.describe_line(row), _describe(reason, row, evidence, samples))
        for row in np.flatnonzero(verdict >= 0).tolist()
        for reason in [_REASONS[verdict[row]]]
    ]
    return corpus, drops


def list_malformed(metadata: Metadata) -> list[Drop]:
    """The lines that could not even be read as metadata."""
    return [
        Drop(
            DropReason.MALFORMED_LINE,
            f"{line.path.name}:{line.number}",
            f"{line.path}, line {line.number}",
            line.problem,
        )
        for line in metadata.malformed
    ]


def _describe(reason: DropReason, row: int, evidence: Evidence, samples: NDArray[np.int64]) -> str:
    if reason in (DropReason.TOO_SHORT, DropReason.TOO_LONG):
        return f"{samples[row] / SAMPLE_RATE_HZ:.2f} s"
    if reason is DropReason.LANGUAGE:
        return evidence.metadata.language[row]
    if reason is DropReason.TEXT_TOO_LONG:
        return f"{evidence.text_facts.tokens[row]} tokens"
    if reason is DropReason.UNKNOWN_CHARACTERS:
        code_point = int(evidence.text_facts.unknown[row])
        return f"{chr(code_point)!r} U+{code_point:04X}"
    return ""
