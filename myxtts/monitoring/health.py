"""What is wrong with a set-up: issues, each with its evidence and its remedy, ranked."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import IntEnum


class Severity(IntEnum):
    """How much an issue matters."""

    SERIOUS = 0
    """It stops the GPU from being used, or costs a large part of the time."""
    WORTH_CHANGING = 1
    NOTE = 2
    """Good to know; nothing has to be done."""

    @property
    def word(self) -> str:
        return {Severity.SERIOUS: "serious", Severity.WORTH_CHANGING: "worth changing", Severity.NOTE: "note"}[self]


@dataclass(frozen=True)
class Issue:
    """One thing that is not as it could be."""

    severity: Severity
    observation: str
    evidence: str
    remedy: str
    """A command, a flag or a YAML line; nothing when nothing is to be done."""
    gain: str
    """What to expect of the remedy; a bound where one is known."""
    share: float = 0.0
    """Of the time that is at stake, 0 to 1, where it is known: ranks issues of the same severity."""


def rank_issues(issues: Iterable[Issue]) -> list[Issue]:
    """Serious ones first; among equals what costs most. Issues that cost nothing known keep their order."""
    return sorted(issues, key=lambda issue: (issue.severity, -issue.share))


def has_serious(issues: Iterable[Issue]) -> bool:
    return any(issue.severity is Severity.SERIOUS for issue in issues)
