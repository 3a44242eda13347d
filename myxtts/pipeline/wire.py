"""Messages between trainer and producer: small JSON objects over a pair of sockets.

The sockets are of the kind that keeps messages apart (SOCK_SEQPACKET), so that a process killed while it sends has sent
its message whole or not at all. The end of the stream is the death notice; there is nothing to unlock and nothing to
clean up after a killed process.
"""

from __future__ import annotations

import json
import socket
from collections.abc import Mapping
from typing import Any

from myxtts.pipeline.errors import MessageTooLargeError, WireFullError

Message = dict[str, Any]

MESSAGE_BYTES = 1 << 16
"""Well below what the kernel queues for one socket (about 200 kB), so that a few messages always fit."""


class PeerGone(Exception):
    """The process at the other end has closed its socket, or is dead."""


def make_socket_pair() -> tuple[socket.socket, socket.socket]:
    """Two connected sockets, one for each process."""
    return socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)


class Connection:
    """One end of the wire.

    Args:
        blocking: whether sending and receiving wait. The trainer never waits here, because it has other things to look
            at while it waits; the producer has not.
    """

    def __init__(self, end: socket.socket, *, blocking: bool):
        self._socket = end
        end.setblocking(blocking)

    def send(self, message: Mapping[str, Any]) -> None:
        """Sends one message. Raises `PeerGone`, or `WireFullError` where it would have to wait."""
        data = json.dumps(message, separators=(",", ":")).encode("ascii")
        if len(data) > MESSAGE_BYTES:
            raise MessageTooLargeError(f"A message must have at most {MESSAGE_BYTES} bytes; this one has {len(data)}.")
        try:
            self._socket.send(data)
        except BlockingIOError:
            raise WireFullError("The other process has stopped reading its messages.") from None
        except (BrokenPipeError, ConnectionResetError):
            raise PeerGone from None

    def receive(self) -> Message | None:
        """The next message, or None when there is none now and this end does not wait. Raises `PeerGone` at the end."""
        while True:
            try:
                data, _, flags, _ = self._socket.recvmsg(MESSAGE_BYTES)
                break
            except BlockingIOError:
                return None
            except ConnectionResetError:
                # A peer that died with unread messages is reported once, before what it had sent: read on.
                continue
        if not data:
            raise PeerGone
        assert not flags & socket.MSG_TRUNC, "longer than `send` allows"
        message: Message = json.loads(data)
        return message

    def fileno(self) -> int:
        return self._socket.fileno()

    def close(self) -> None:
        self._socket.close()
