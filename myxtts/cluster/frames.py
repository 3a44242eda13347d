"""Small JSON messages over TCP: four bytes of length, then the text. Nothing that is received is ever run."""

from __future__ import annotations

import json
import socket
import struct
from typing import Any

from myxtts.cluster.errors import FrameError

MOST_BYTES = 1 << 24
"""Of a message. Weights do not travel this way."""
_LENGTH = struct.Struct("!I")


class Closed(Exception):
    """The other end has closed the connection, or is dead."""


def send_frame(end: socket.socket, value: Any) -> None:
    """Sends one value. Raises `Closed`."""
    data = json.dumps(value, separators=(",", ":")).encode("utf-8")
    if len(data) > MOST_BYTES:
        raise FrameError(f"A message must have at most {MOST_BYTES} bytes; this one has {len(data)}.")
    try:
        end.sendall(_LENGTH.pack(len(data)) + data)
    except TimeoutError:
        raise
    except OSError:
        raise Closed from None


def receive_frame(end: socket.socket) -> Any:
    """The next value. Raises `Closed` at the end, and `TimeoutError` if the socket has a limit."""
    (size,) = _LENGTH.unpack(_receive_all(end, _LENGTH.size))
    if size > MOST_BYTES:
        raise FrameError(f"A message must have at most {MOST_BYTES} bytes; one of {size} was announced.")
    try:
        return json.loads(_receive_all(end, size))
    except (ValueError, RecursionError) as error:
        raise FrameError(f"A message is not JSON: {error}") from None


def _receive_all(end: socket.socket, size: int) -> bytes:
    data = bytearray()
    while len(data) < size:
        try:
            part = end.recv(size - len(data))
        except TimeoutError:
            raise
        except OSError:
            raise Closed from None
        if not part:
            raise Closed
        data += part
    return bytes(data)
