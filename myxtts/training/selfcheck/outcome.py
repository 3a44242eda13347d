"""What a check has found."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any


class Status(StrEnum):
    PASSED = "passed"
    REHEARSED = "rehearsed"
    """It passed on logical CPU devices, which says nothing about cards."""
    FAILED = "FAILED"
    NOT_RUN = "not run"


@dataclass(frozen=True)
class Outcome:
    """The end of one check."""

    name: str
    proves: str
    status: Status
    detail: str
    """What was seen, or why it failed or did not run."""
    seconds: float = 0.0
    facts: Mapping[str, Any] = field(default_factory=dict)
    last_words: str = ""
    """The end of what the process of a failed check wrote."""
