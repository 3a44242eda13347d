import json
import socket

import numpy as np
import pytest

from myxtts.pipeline.producer import (
    Committed,
    Failed,
    RanOutOfMemory,
    Ready,
    Replaced,
    dump_event,
    parse_event,
    send_exit_message,
)
from myxtts.pipeline.ring import describe_arrays
from myxtts.processes import Connection

LAYOUT = describe_arrays({"a": np.zeros((2, 3), np.float32)})


@pytest.mark.parametrize(
    "event",
    [
        Ready(),
        Committed(1, 5, LAYOUT, 0.25, 100.0),
        Replaced(0, 3, ["a.wav", "b.wav"]),
        RanOutOfMemory("mel", 3, "OOM"),
        Failed("import", None, "ValueError: x", "Traceback"),
    ],
    ids=lambda event: type(event).__name__,
)
def test_events_survive_the_wire(event):
    assert parse_event(json.loads(json.dumps(dump_event(event)))) == event


def test_the_longest_last_word_fits_into_a_message_and_keeps_its_end():
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with ours, theirs:
        error = ValueError("\udc80" * 100_000 + "end")
        assert send_exit_message(Connection(theirs, blocking=True), error, "prepare", 1, is_limited=False) != 0
        event = parse_event(Connection(ours, blocking=False).receive())
    assert event.summary.startswith("ValueError: ")
    assert event.traceback.endswith("end\n")
