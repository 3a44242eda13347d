"""What the two servers of a tf.data service have in common: where they listen, and how they end."""

from __future__ import annotations

import argparse
import os
import signal
import socket
import sys
import threading
from collections.abc import Callable
from typing import Any, NamedTuple

from myxtts.cli.parser import Parser
from myxtts.data.service_address import LOOPBACK, OwnAddress, check_own_address
from myxtts.devices.environment import VISIBLE_DEVICES

UNAUTHENTICATED = (
    "Warning: other machines can reach this server. TensorFlow's gRPC asks nobody who\n"
    "they are: whoever reaches the port can have every file read that you can read.\n"
    "Keep it inside a network of your own machines, or behind a firewall."
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


def run_until_stopped(start: Callable[[], Any], tell: Callable[[], None]) -> int:
    """Starts a server, tells that it runs, and ends it on SIGTERM or Ctrl-C."""
    stop = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: stop.set())
    server = start()
    tell()
    stop.wait()
    # Its threads end with it.
    del server
    print("Stopped.", flush=True)
    return 0
