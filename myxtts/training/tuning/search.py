"""The configurator's search: one question after another, each answered by what is fastest, on top of the answers before it.

A candidate is taken only where it is faster by more than two short measurements differ by themselves. No TensorFlow.
"""

from __future__ import annotations

import itertools
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from myxtts.config import XTTSConfig
from myxtts.errors import MyXTTSError
from myxtts.monitoring.words import format_step_time
from myxtts.training.tuning.candidates import Candidate, Question

NOISE = 0.03
"""Share of a step by which two measurements of the same settings may differ."""
VERIFY_ROUNDS = 3


@dataclass(frozen=True)
class Trial:
    """Settings to run with, beside those of the user."""

    settings: Mapping[str, Any] = field(default_factory=dict)
    environ: Mapping[str, str] = field(default_factory=dict)
    is_whole: bool = False
    """With the read-ahead and the kept codes that a run would have; the search does without, to see what a setting does."""

    def add(self, candidate: Candidate) -> Trial:
        return replace(
            self,
            settings={**self.settings, **candidate.settings},
            environ={**self.environ, **candidate.environ},
        )

    def apply(self, config: XTTSConfig) -> XTTSConfig:
        """The configuration with these settings given on top."""
        sections: dict[str, dict[str, Any]] = {}
        for key, value in self.settings.items():
            section, _, name = key.partition(".")
            sections.setdefault(section, {})[name] = value
        return config.replace(**sections)


@dataclass(frozen=True)
class TrialResult:
    """What a trial showed."""

    step_s: float
    """Per update; infinite where there is no memory for it."""
    read_share: float
    """Of a step, that went into waiting for clips."""
    fitting: tuple[tuple[int, int], ...] = ()
    """Batches x accumulation that fit into memory; none where that is unknown."""
    in_force: Mapping[str, str] = field(default_factory=dict)
    """Read back from TensorFlow in the process of the trial."""
    refusal: str = ""
    """Why there is no memory for a run with these settings; empty where there is, as far as that is known."""

    @property
    def fits(self) -> bool:
        """Whether such a run is not known to be too large."""
        return not self.refusal

    def describe(self) -> str:
        """What a step takes, in words."""
        return format_step_time(self.step_s) if self.fits else "does not fit into memory"


RunTrial = Callable[[Trial], TrialResult]


@dataclass(frozen=True)
class Answer:
    """What a question came to."""

    title: str
    evidence: str
    taken: Candidate | None = None
    """None where things stay as they are."""


@dataclass(frozen=True)
class Search:
    """The settings that were found, and why."""

    trial: Trial
    result: TrialResult
    answers: tuple[Answer, ...]


def search_settings(
    start: Trial,
    first: TrialResult,
    questions: Sequence[Question],
    run_trial: RunTrial,
    tell: Callable[[str], None] = lambda _: None,
) -> Search:
    """Answers all questions in turn.

    Args:
        start: what to begin with.
        first: what that showed.
        tell: hears what is tried.
    """
    search = Search(start, first, ())
    for question in questions:
        search = _answer(search, question, run_trial, tell)
    return search


def _answer(search: Search, question: Question, run_trial: RunTrial, tell: Callable[[str], None]) -> Search:
    if question.skipped:
        return replace(search, answers=(*search.answers, Answer(question.title, f"not tried: {question.skipped}")))
    best: tuple[Candidate, TrialResult] | None = None
    seen = []
    for candidate in question.candidates:
        tell(f"trying {question.title}: {candidate.name}")
        try:
            result = run_trial(search.trial.add(candidate))
        except MyXTTSError as error:
            seen.append(f"{candidate.name} failed ({cut_reason(str(error))})")
            continue
        seen.append(f"{candidate.name} {result.describe()}")
        if result.fits and (best is None or result.step_s < best[1].step_s):
            best = (candidate, result)
    predicted = f"predicted: {question.reason.rstrip('.')}; " if question.reason else ""
    unit = "" if best is None else " a step"
    evidence = f"{predicted}measured: {', '.join(seen)}{unit}; before {search.result.describe()}"
    # What does not fit takes for ever: whatever fits is faster.
    if best is None or best[1].step_s >= search.result.step_s * (1 - NOISE):
        return replace(search, answers=(*search.answers, Answer(question.title, evidence)))
    candidate, result = best
    return Search(
        search.trial.add(candidate), result, (*search.answers, Answer(question.title, evidence, taken=candidate))
    )


@dataclass(frozen=True)
class Verification:
    """The settings found, against those one would have without them, in turn."""

    default_s: tuple[float, ...]
    """Per update, of each round."""
    default_in_force: Mapping[str, str]
    tuned_s: tuple[float, ...] = ()
    """Nothing where the defaults are what was found: there is nothing to compare."""
    tuned_in_force: Mapping[str, str] = field(default_factory=dict)
    failure: str = ""
    """Why it was broken off: then nothing is known about a gain."""

    @property
    def gain(self) -> float:
        """How much faster a step is, as a share of the default's; negative where it is slower."""
        return (
            0.0
            if self.failure or self.is_unchanged
            else 1 - statistics.median(self.tuned_s) / statistics.median(self.default_s)
        )

    @property
    def is_unchanged(self) -> bool:
        """Whether the defaults are what was found."""
        return not self.tuned_s and not self.failure

    @property
    def is_kept(self) -> bool:
        """Whether what was found is faster: what gains nothing is not worth deviating from the defaults."""
        return self.gain > 0

    @property
    def in_force(self) -> Mapping[str, str]:
        """With the settings that stay."""
        return self.tuned_in_force if self.is_kept else self.default_in_force


def verify_settings(
    default: Trial,
    tuned: Trial,
    run_trial: RunTrial,
    tell: Callable[[str], None] = lambda _: None,
    rounds: int = VERIFY_ROUNDS,
) -> Verification:
    """Runs both in turn, so that a busy minute hits both. A round that fails ends it."""
    seconds: dict[bool, list[float]] = {True: [], False: []}
    in_force: dict[bool, Mapping[str, str]] = {True: {}, False: {}}
    failure = ""
    for number, is_tuned in itertools.product(range(rounds), (False, True)):
        name = "these settings" if is_tuned else "the defaults"
        tell(f"comparing, round {number + 1} of {rounds}: {name}")
        try:
            result = run_trial(tuned if is_tuned else default)
        except MyXTTSError as error:
            failure = f"{name} failed ({cut_reason(str(error))})"
            break
        if not result.fits:
            failure = f"{name}: {cut_reason(result.refusal)}"
            break
        seconds[is_tuned].append(result.step_s)
        in_force[is_tuned] = result.in_force
    return Verification(tuple(seconds[False]), in_force[False], tuple(seconds[True]), in_force[True], failure)


def cut_reason(text: str) -> str:
    """The last line of an error, short enough for a table."""
    line = text.strip().splitlines()[-1] if text.strip() else "no reason given"
    return line if len(line) <= 80 else line[:77] + "..."
