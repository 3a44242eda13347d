"""What measuring processes do in tests: answer, hang while they work, hang before they do."""

from __future__ import annotations

import signal
from typing import Any

from myxtts.data.workers import Work


def make_answer() -> Work:
    return lambda item: {"seen": item}


def make_hanging() -> Work:
    def hang_for_ever(item: Any) -> None:
        signal.pause()

    return hang_for_ever


def hang_while_loading() -> Work:
    signal.pause()
    raise AssertionError
