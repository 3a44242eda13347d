import json

import numpy as np
import pytest

from myxtts.pipeline.errors import MalformedMessageError
from myxtts.pipeline.messages import (
    Committed,
    Failed,
    RanOutOfMemory,
    Ready,
    Replaced,
    parse_event,
)
from myxtts.pipeline.ring import SlotContent
from myxtts.pipeline.slot_layout import describe_arrays
from myxtts.pipeline.wire import MESSAGE_BYTES

CONTENT = SlotContent(describe_arrays({"a": np.zeros((2, 3), np.float32)}), 12)
EVENTS = [
    Ready(),
    Committed(1, 5, CONTENT, 0.25, 100.0),
    Replaced(0, 3, ["a.wav", "b.wav"]),
    Replaced(0, 3, []),
    RanOutOfMemory("mel", 3, "OOM"),
    Failed("import", None, "ValueError: x", "Traceback"),
]


@pytest.mark.parametrize("event", EVENTS, ids=lambda event: type(event).__name__)
def test_events_survive_the_wire(event):
    assert parse_event(json.loads(json.dumps(event.dump()))) == event


@pytest.mark.parametrize(
    "change",
    [
        {"slot": "1"}, {"slot": None}, {"position": 1.5}, {"layout": [["a", "object", [1]]]}, {"checksum": "x"},
        {"waited_s": float("nan")}, {"waited_s": -1.0}, {"made_at": float("inf")}, {"made_at": None},
    ],
)  # fmt: skip
def test_a_commit_with_a_wrong_value_is_refused(change):
    with pytest.raises(MalformedMessageError):
        parse_event(EVENTS[1].dump() | change)


@pytest.mark.parametrize(
    "message",
    [
        {}, {"event": "party"}, {"event": 1}, {"event": "committed"},
        {"event": "failed"}, {"event": "failed", "stage": "x", "position": 1}, {"event": "out of memory", "stage": "x", "position": "1"}, {"event": "replaced"},
    ],
)  # fmt: skip
def test_what_no_sound_producer_says_is_refused(message):
    with pytest.raises(MalformedMessageError):
        parse_event(message)


def test_the_longest_texts_still_fit_into_a_message():
    long = "\udc80" * 100_000
    for event in (Failed(long, 1, long, long), RanOutOfMemory(long, 1, long), Replaced(1, 1, [long] * 64)):
        assert len(json.dumps(event.dump())) < MESSAGE_BYTES
    assert Failed("", None, "", "beginning" + long + "end").dump()["traceback"].endswith("end")
