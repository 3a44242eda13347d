"""Where the parts of a tf.data service are, and whether somebody answers there."""

from __future__ import annotations

import contextlib
import ipaddress
import socket
import time
from collections.abc import Callable
from typing import NamedTuple

from myxtts.config.address import MOST_PORT, Address, parse_address
from myxtts.data.errors import ServiceAddressError

DISPATCHER_PORT = 5050
LOOPBACK = "127.0.0.1"

_TRY_SECONDS = 1.0
_GREETING_SECONDS = 10.0
"""For a server that has much to do."""

_SETTINGS = 4
"""The kind of frame with which both sides of HTTP/2, and so of gRPC, begin."""
_FRAME_HEADER_BYTES = 9
_GREETING = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes([0, 0, 0, _SETTINGS, 0, 0, 0, 0, 0])
_PAUSE_SECONDS = 0.2


def require_address(text: str) -> Address:
    """The address in a text such as 10.0.0.5:5050."""
    address = parse_address(text)
    if address is None:
        raise ServiceAddressError(f"An address must be like 10.0.0.5:{DISPATCHER_PORT}, but is {text!r}.")
    return address


def is_answering(address: Address) -> bool:
    """Whether something takes connections there."""
    try:
        with socket.create_connection(address, _TRY_SECONDS):
            return True
    except OSError:
        return False


def is_grpc_server(address: Address) -> bool:
    """Whether what takes connections there can be a server of TensorFlow's, which speak gRPC."""
    try:
        with socket.create_connection(address, _TRY_SECONDS) as connection:
            connection.settimeout(_GREETING_SECONDS)
            connection.sendall(_GREETING)
            header = connection.recv(_FRAME_HEADER_BYTES, socket.MSG_WAITALL)
    except OSError:
        return False
    return len(header) == _FRAME_HEADER_BYTES and header[3] == _SETTINGS


def explain_unknown_name(address: Address) -> str:
    """A sentence that says so, after a space, where the host's name is not known here; else nothing."""
    try:
        socket.getaddrinfo(address.host, address.port)
    except socket.gaierror as error:
        return f" This machine knows no {address.host!r} ({error.strerror}): check the name."
    return ""


def wait_for_answer(address: Address, limit_s: float, tell_waiting: Callable[[], None]) -> bool:
    """Whether something takes connections there within a time. Tells once if it has to wait.

    A name that nobody knows is waited for too: clusters give names to machines when they start.
    """
    deadline = time.monotonic() + limit_s
    while not is_answering(address):
        if time.monotonic() >= deadline:
            return False
        tell_waiting()
        tell_waiting = _say_nothing
        time.sleep(_PAUSE_SECONDS)
    return True


class OwnAddress(NamedTuple):
    """Where a server of ours is to listen."""

    number: ipaddress.IPv4Address
    port: int


def check_own_address(host: str, port: int) -> OwnAddress:
    """An address of this machine at which nobody listens yet; port 0 is any that is free."""
    if not 0 <= port <= MOST_PORT:
        raise ServiceAddressError(f"--port must be from 0 to {MOST_PORT}, but is {port}.")
    # Without the option to share a port, with which TensorFlow's own server would start beside another and take every
    # second connection.
    with contextlib.closing(socket.socket()) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
            probe.listen(1)
        except OSError as error:
            raise ServiceAddressError(
                f"--host {host} --port {port} cannot be used: {error.strerror}. Give an IPv4 address of this machine, and a "
                "--port that is free."
            ) from None
        number, free_port = probe.getsockname()
        return OwnAddress(ipaddress.IPv4Address(number), free_port)


def _say_nothing() -> None:
    """Told already."""
