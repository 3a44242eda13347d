"""Where the parts of a tf.data service are, and whether somebody answers there."""

from __future__ import annotations

import contextlib
import ipaddress
import socket
import time
from collections.abc import Callable
from typing import NamedTuple

from myxtts.data.errors import ServiceAddressError

DISPATCHER_PORT = 5050
EVERYWHERE = "0.0.0.0"
LOOPBACK = "127.0.0.1"

_TRY_SECONDS = 1.0
_PAUSE_SECONDS = 0.2


class ServiceAddress(NamedTuple):
    """A host, by name or number, and a port."""

    host: str
    port: int

    def __str__(self) -> str:
        return f"{self.host}:{self.port}"


def parse_address(text: str) -> ServiceAddress:
    """The address in a text such as 10.0.0.5:5050."""
    host, _, port = text.rpartition(":")
    if host and port.isascii() and port.isdecimal() and 1 <= int(port) <= 65535:
        return ServiceAddress(host, int(port))
    raise ServiceAddressError(f"An address must be like 10.0.0.5:{DISPATCHER_PORT}, but is {text!r}.")


def is_answering(address: ServiceAddress) -> bool:
    """Whether something takes connections there. A name that nobody knows is an error."""
    try:
        with socket.create_connection(address, _TRY_SECONDS):
            return True
    except socket.gaierror as error:
        raise ServiceAddressError(
            f"{address.host!r} in {address} is no machine that this one knows: {error.strerror}. Check the name."
        ) from None
    except OSError:
        return False


def wait_for_answer(address: ServiceAddress, limit_s: float, tell_waiting: Callable[[], None]) -> bool:
    """Whether something takes connections there within a time. Tells once if it has to wait."""
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
    if not 0 <= port <= 65535:
        raise ServiceAddressError(f"--port must be from 0 to 65535, but is {port}.")
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
