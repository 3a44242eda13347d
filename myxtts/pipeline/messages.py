"""What trainer and producer say to each other.

Orders go to the producer, which trusts them. Events come from it and are checked here: a producer whose memory is
damaged must not be able to lead the trainer astray.
"""

from __future__ import annotations

import math
import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from myxtts.pipeline.errors import MalformedMessageError
from myxtts.pipeline.ring import SlotContent
from myxtts.pipeline.slot_layout import dump_layout, parse_layout
from myxtts.pipeline.wire import Message

_LONGEST_TEXT = 8000
"""Characters; each takes up to six bytes on the wire, and a message must stay whole."""
_LONGEST_STAGE = 200


@dataclass(frozen=True)
class TaskSpec:
    """What a producer prepares, in words that another process understands.

    Args:
        factory: `package.module:function`, called as `function(settings, report_stage)`; returns a `ProducerTask`.
        settings: JSON values. `preparation_batch`, where present, is how many rows are prepared at a time; it is halved
            when the producer runs out of memory.
    """

    factory: str
    settings: Mapping[str, Any]


@dataclass(frozen=True)
class Ready:
    """The producer is loaded and warm."""

    def dump(self) -> Message:
        return {"event": "ready"}


@dataclass(frozen=True)
class Committed:
    """A slot is written."""

    slot: int
    position: int
    content: SlotContent
    waited_s: float
    """How long the producer had waited for this slot."""
    made_at: float
    """On the clock that all processes of a machine share."""

    def dump(self) -> Message:
        return {
            "event": "committed",
            "slot": self.slot,
            "position": self.position,
            "layout": dump_layout(self.content.layout),
            "checksum": self.content.checksum,
            "waited_s": self.waited_s,
            "made_at": self.made_at,
        }


@dataclass(frozen=True)
class Replaced:
    """The clips of a batch will not be used there from now on."""

    number: int
    """Of the position in the order that it answers."""
    position: int
    names: list[str]

    def dump(self) -> Message:
        return {
            "event": "replaced",
            "number": self.number,
            "position": self.position,
            "names": [name[: _LONGEST_TEXT // len(self.names)] for name in self.names],
        }


@dataclass(frozen=True)
class RanOutOfMemory:
    """The producer's last word before it ends."""

    stage: str
    position: int | None
    text: str

    def dump(self) -> Message:
        return {
            "event": "out of memory",
            "stage": self.stage[:_LONGEST_STAGE],
            "position": self.position,
            "text": self.text[: _LONGEST_TEXT // 4],
        }


@dataclass(frozen=True)
class Failed:
    """The producer's last word before it ends: an error that another try would only repeat."""

    stage: str
    position: int | None
    summary: str
    traceback: str

    def dump(self) -> Message:
        # Of a long traceback the end says more than the beginning.
        return {
            "event": "failed",
            "stage": self.stage[:_LONGEST_STAGE],
            "position": self.position,
            "summary": self.summary[: _LONGEST_TEXT // 4],
            "traceback": self.traceback[-_LONGEST_TEXT // 4 * 3 :],
        }


Event = Ready | Committed | Replaced | RanOutOfMemory | Failed


def parse_event(message: Message) -> Event:
    """The event in a message. Raises `MalformedMessageError` for anything a sound producer would not have said."""
    match message:
        case {"event": "ready"}:
            return Ready()
        case {"event": "committed"}:
            return _parse_committed(message)
        case {"event": "replaced", "number": int(number), "position": int(position), "names": list(names)}:
            return Replaced(number, position, names)
        case {"event": "out of memory" | "failed", "stage": str(stage), "position": (int() | None) as position}:
            return _parse_last_word(message, stage, position)
    raise MalformedMessageError(f"Not an event: {str(message)[:200]}")


def _parse_last_word(message: Message, stage: str, position: int | None) -> RanOutOfMemory | Failed:
    match message:
        case {"event": "out of memory", "text": str(text)}:
            return RanOutOfMemory(stage, position, text)
        case {"event": "failed", "summary": str(summary), "traceback": str(traceback)}:
            return Failed(stage, position, summary, traceback)
    raise MalformedMessageError(f"Not a last word: {str(message)[:200]}")


def _parse_committed(message: Message) -> Committed:
    match message:
        case {
            "slot": int(slot),
            "position": int(position),
            "layout": layout,
            "checksum": int(checksum),
            "waited_s": float(waited_s),
            "made_at": float(made_at),
        } if all(math.isfinite(seconds) and seconds >= 0 for seconds in (waited_s, made_at)):
            return Committed(slot, position, SlotContent(parse_layout(layout), checksum), waited_s, made_at)
    raise MalformedMessageError(f"Not a commit: {str(message)[:200]}")


def order_begin(task: TaskSpec, slots: int, slot_bytes: int, memory_limit_bytes: int | None) -> Message:
    """The first order: what to load, where this process would find it, and where to put the results."""
    return {
        "order": "begin",
        "factory": task.factory,
        "settings": dict(task.settings),
        "path": [os.path.abspath(entry) for entry in sys.path],
        "slots": slots,
        "slot_bytes": slot_bytes,
        "memory_limit_bytes": memory_limit_bytes,
    }


def order_grant(slot: int, position: int) -> Message:
    """Prepare a batch and put it into a slot."""
    return {"order": "grant", "slot": slot, "position": position}


def order_replace(positions: Sequence[int]) -> Message:
    """Use the clips of these batches no more there; a position that stands there again has its new clips replaced too."""
    return {"order": "replace", "positions": list(positions)}
