"""What measuring processes do in tests: answer, look around, hang while they work, hang before they do."""

from __future__ import annotations

import os
import signal
from typing import Any

from myxtts.data.workers import Work


def make_answer() -> Work:
    return lambda item: {"seen": item}


def make_environment_reader() -> Work:
    return lambda name: {"value": os.environ.get(name)}


def make_killed() -> Work:
    return lambda item: os.kill(os.getpid(), signal.SIGKILL)


def make_hanging() -> Work:
    def hang_for_ever(item: Any) -> None:
        signal.pause()

    return hang_for_ever


def hang_while_loading() -> Work:
    signal.pause()
    raise AssertionError
