"""What the two servers of a tf.data service have in common: where they listen, and how they end."""

from __future__ import annotations

import argparse
import os
import signal
import socket
import sys
import threading
from collections.abc import Callable
from typing import Any, NamedTuple, NoReturn

from myxtts.cli.parser import Parser
from myxtts.cli.telling import tell
from myxtts.data.service.address import LOOPBACK, OwnAddress, check_own_address
from myxtts.devices.environment import VISIBLE_DEVICES

UNAUTHENTICATED = (
    "Warning: other machines can reach this server. TensorFlow's gRPC asks nobody who\n"
    "they are: whoever reaches the port can read and write files as you, and so run\n"
    "code as you. Keep it in a network of your own machines, or behind a firewall."
)


class ServerPlace(NamedTuple):
    """Where a server listens and under which name others find it."""

    own: OwnAddress
    public_name: str


def add_listening_flags(parser: Parser, port: int) -> None:
    """The flags that say where a server listens."""
    parser.add_argument(
        "--host",
        metavar="ADDRESS",
        default=LOOPBACK,
        help=f"an address of this machine to listen at, or 0.0.0.0 for all (default: {LOOPBACK}, this machine only)",
    )
    what = f"(default: {port})" if port else "(default: any that is free)"
    parser.add_argument(
        "--port", metavar="N", type=int, default=port, help=f"to listen at; 0 is any that is free {what}"
    )


def prepare_server(arguments: argparse.Namespace) -> ServerPlace:
    """Where a server is to listen. Warns where others can reach it, and keeps TensorFlow off the GPUs."""
    own = check_own_address(arguments.host, arguments.port)
    if not own.number.is_loopback:
        print(UNAUTHENTICATED, file=sys.stderr, flush=True)
    # It reads files: the cards are for those who train.
    os.environ[VISIBLE_DEVICES] = ""
    return ServerPlace(own, socket.gethostname() if own.number.is_unspecified else str(own.number))


def run_until_stopped(start: Callable[[], Any], tell_running: Callable[[], None]) -> NoReturn:
    """Starts a server, tells that it runs, and ends the process with it on SIGTERM or Ctrl-C."""
    tell("starting, which takes TensorFlow some seconds")
    # A server starts outside of Python, and waits for another one: only the system can end it there.
    _set_signals(signal.SIG_DFL)
    _serve(start(), tell_running)


def _serve(server: Any, tell_running: Callable[[], None]) -> NoReturn:
    """Keeps a server, which would end if it were let go, until a signal comes."""
    stop = threading.Event()
    _set_signals(lambda *_: stop.set())
    tell_running()
    stop.wait()
    print("Stopped.", flush=True)
    # In good order a worker may wait for its dispatcher, which may be gone for good.
    os._exit(0)


def _set_signals(handler: Callable[..., None] | signal.Handlers) -> None:
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, handler)
