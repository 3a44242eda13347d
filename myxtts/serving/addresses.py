"""Where a server listens, and under which names it may be called."""

from __future__ import annotations

import ipaddress
import socket

from myxtts.serving.errors import ServerStartError
from myxtts.serving.server_settings import TOKEN_VARIABLE, ServerSettings

LOOPBACK_NAMES = ("localhost", "127.0.0.1", "::1")


def bind_socket(settings: ServerSettings) -> socket.socket:
    """A socket at the server's address, not listening yet. Raises `ServerStartError` for one that is taken or not safe."""
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(
            settings.host, settings.port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
    except OSError as error:
        raise ServerStartError(f"--host must be an address of this machine, but is {settings.host!r}: {error.strerror}.") from error  # fmt: skip
    is_open = settings.token is None and not settings.allow_anyone
    if is_open and not ipaddress.ip_address(str(address[0]).partition("%")[0]).is_loopback:
        raise ServerStartError(
            f"--host {settings.host} lets other machines in, so a token must be given, but none is. Give one in "
            f"{TOKEN_VARIABLE}, stay on 127.0.0.1, or say --allow-anyone."
        )
    listener = socket.socket(family, kind, protocol)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind(address)
    except OSError as error:
        listener.close()
        raise ServerStartError(
            f"--host {settings.host} --port {settings.port} cannot be used: {error.strerror}. Give another --port; 0 is any "
            "that is free."
        ) from error
    return listener


def name_address(listener: socket.socket) -> str:
    """The address of a server, as a browser takes it."""
    host, port = listener.getsockname()[:2]
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


def list_hosts(settings: ServerSettings) -> tuple[str, ...] | None:
    """Names under which the server may be called; None where anybody is let in, or the token decides."""
    if settings.token is not None or settings.allow_anyone:
        return None
    return (settings.host.lower(), *LOOPBACK_NAMES)
