"""What processes of checks do in tests: answer, decline, refuse, crash, hang, leave without a word."""

from __future__ import annotations

import os
import signal
import sys
from typing import Any

from myxtts.training.selfcheck.situation import Situation
from myxtts.training.selfcheck.work import CheckFailedError, Seen


def answer(situation: Situation, **facts: Any) -> Seen:
    return Seen(f"{situation.cards} devices", facts)


def decline(situation: Situation) -> Seen:
    return Seen("no network here", {}, is_done=False)


def refuse(situation: Situation) -> Seen:
    print("seen before the end", file=sys.stderr, flush=True)
    raise CheckFailedError("The card is upside down.")


def crash(situation: Situation) -> Seen:
    print("seen before the end", file=sys.stderr, flush=True)
    os.kill(os.getpid(), signal.SIGSEGV)
    raise AssertionError


def hang(situation: Situation) -> Seen:
    print("seen before the end", file=sys.stderr, flush=True)
    signal.pause()
    raise AssertionError


def stumble(situation: Situation) -> Seen:
    raise ValueError("seen before the end")
