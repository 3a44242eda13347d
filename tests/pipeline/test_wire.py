import json
import os
import socket

import pytest

from myxtts.pipeline.errors import MessageTooLargeError, WireFullError
from myxtts.pipeline.wire import MESSAGE_BYTES, Connection, PeerGone, make_socket_pair


@pytest.fixture
def ends():
    """One end as the trainer uses it, and the bare socket of the other."""
    ours, theirs = make_socket_pair()
    with ours, theirs:
        yield Connection(ours, blocking=False), theirs


def test_messages_arrive_one_by_one_and_whole(ends):
    trainer, theirs = ends
    producer = Connection(theirs, blocking=True)
    messages = [{"event": "a", "text": "سلام \udc80 \n"}, {"event": "b", "list": [1, 2.5, None]}, {}]
    for message in messages:
        producer.send(message)
    assert [trainer.receive() for _ in messages] == messages
    assert trainer.receive() is None


def test_the_longest_message_passes_and_a_longer_one_is_refused(ends):
    trainer, theirs = ends
    producer = Connection(theirs, blocking=True)
    text = "x" * (MESSAGE_BYTES - len(json.dumps({"t": ""}, separators=(",", ":"))))
    producer.send({"t": text})
    assert trainer.receive() == {"t": text}
    with pytest.raises(MessageTooLargeError, match=f"at most {MESSAGE_BYTES} bytes; this one has {MESSAGE_BYTES + 1}"):
        producer.send({"t": text + "x"})
    assert trainer.receive() is None, "nothing of it was sent"


def test_the_end_is_a_death_notice_on_both_sides(ends):
    trainer, theirs = ends
    theirs.close()
    with pytest.raises(PeerGone):
        trainer.receive()
    with pytest.raises(PeerGone):
        trainer.send({"order": "x"})


def test_what_was_sent_before_the_death_is_still_read():
    # With orders it never read in its queue, as a killed process leaves them: the kernel then reports a reset first.
    ours, theirs = make_socket_pair()
    with ours:
        trainer = Connection(ours, blocking=False)
        trainer.send({"order": "never read"})
        theirs.send(b'{"event":"last word"}')
        theirs.close()
        assert trainer.receive() == {"event": "last word"}
        with pytest.raises(PeerGone):
            trainer.receive()


def test_a_peer_that_never_reads_is_an_error_and_not_a_hang(ends):
    trainer, _ = ends

    def send_many():
        for _ in range(10_000):
            trainer.send({"order": "x" * 1000})

    with pytest.raises(WireFullError):
        send_many()


def test_the_sockets_keep_messages_apart_and_are_not_inherited():
    ours, theirs = make_socket_pair()
    with ours, theirs:
        assert ours.type == theirs.type == socket.SOCK_SEQPACKET
        assert not os.get_inheritable(ours.fileno())
        assert not os.get_inheritable(theirs.fileno())
