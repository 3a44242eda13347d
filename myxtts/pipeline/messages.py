"""What trainer and producer say to each other: orders go to the producer, events come from it."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from myxtts.pipeline.ring import ArraySpec, Layout
from myxtts.pipeline.wire import Message

LONGEST_TEXT = 8000
"""Characters of a message; each takes up to six bytes on the wire, and a message must stay whole."""


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


@dataclass(frozen=True)
class Committed:
    """A slot is written."""

    slot: int
    position: int
    layout: Layout
    waited_s: float
    """How long the producer had waited for this slot."""
    made_at: float
    """On the clock that all processes of a machine share."""


@dataclass(frozen=True)
class Replaced:
    """The clips of a batch will not be used there from now on."""

    number: int
    """Of the position in the order that it answers."""
    position: int
    names: Sequence[str]


@dataclass(frozen=True)
class RanOutOfMemory:
    """The producer's last word before it ends."""

    stage: str
    position: int | None
    text: str


@dataclass(frozen=True)
class Failed:
    """The producer's last word before it ends: an error that another try would only repeat."""

    stage: str
    position: int | None
    summary: str
    traceback: str


Event = Ready | Committed | Replaced | RanOutOfMemory | Failed
_EVENTS = {kind.__name__: kind for kind in (Ready, Committed, Replaced, RanOutOfMemory, Failed)}


def dump_event(event: Event) -> Message:
    """The message that says an event."""
    return {"event": type(event).__name__, **asdict(event)}


def parse_event(message: Message) -> Event:
    """The event in a message."""
    values = dict(message)
    kind = _EVENTS[values.pop("event")]
    if kind is Committed:
        values["layout"] = [ArraySpec(name, dtype, tuple(shape)) for name, dtype, shape in values["layout"]]
    event: Event = kind(**values)
    return event


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
