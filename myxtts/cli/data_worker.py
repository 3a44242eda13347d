"""`myxtts data-worker`: reads clips for trainers, on this machine or on others."""

from __future__ import annotations

import ipaddress
import socket
import sys
from collections.abc import Sequence
from typing import Any

from myxtts.cli.parser import Parser
from myxtts.cli.service_server import add_listening_flags, prepare_server, run_until_stopped
from myxtts.config.address import Address
from myxtts.data.errors import ServiceUnavailableError
from myxtts.data.service.address import (
    LOOPBACK,
    explain_unknown_name,
    is_grpc_server,
    require_address,
    wait_for_answer,
)


def build_parser(prog: str) -> Parser:
    parser = Parser(
        prog=prog,
        description="Read clips for the trainers of a tf.data service. The corpus must be seen under the same path as by the "
        "trainers. Workers may come and go while a run goes on. Ends on Ctrl-C or SIGTERM.",
    )
    parser.add_argument(
        "--dispatcher", metavar="HOST:PORT", required=True, help="what `myxtts data-dispatcher` says that it is"
    )
    parser.add_argument(
        "--wait", metavar="SECONDS", type=float, default=60.0, help="for the dispatcher to be started (default: 60)"
    )
    add_listening_flags(parser, 0)
    return parser


def run(words: Sequence[str], prog: str) -> int:
    arguments = build_parser(prog).parse_all(words)
    dispatcher = require_address(arguments.dispatcher)
    place = prepare_server(arguments)
    _warn_of_lone_worker(dispatcher, place.public_name)
    if not wait_for_answer(dispatcher, arguments.wait, lambda: _tell_waiting(dispatcher, arguments.wait)):
        raise ServiceUnavailableError(
            f"There is no dispatcher at {dispatcher}.{explain_unknown_name(dispatcher)} Start it there with "
            "`myxtts data-dispatcher`, or correct --dispatcher."
        )
    # A worker that is started for something else would wait for ever, where nothing can be said any more.
    if not is_grpc_server(dispatcher):
        raise ServiceUnavailableError(
            f"What answers at {dispatcher} must be a dispatcher, but it does not speak gRPC. Correct --dispatcher: "
            "`myxtts data-dispatcher` says where it is."
        )
    address = Address(place.public_name, place.own.port)

    def start() -> Any:
        # Not imported above: --help needs no TensorFlow. The runtime first: it makes that quiet.
        import myxtts.devices.runtime  # noqa: F401
        from myxtts.data.service.servers import start_worker

        return start_worker(dispatcher, place.own, place.public_name, wait_s=arguments.wait)

    run_until_stopped(start, lambda: print(f"Worker  {address}, for the dispatcher at {dispatcher}", flush=True))


def _tell_waiting(dispatcher: Address, limit_s: float) -> None:
    why = explain_unknown_name(dispatcher)
    print(f"Nobody answers at {dispatcher} yet: waiting up to {limit_s:g} s.{why}", file=sys.stderr, flush=True)


def _warn_of_lone_worker(dispatcher: Address, public_name: str) -> None:
    """Says so where only this machine can reach the worker, though its dispatcher may be elsewhere."""
    try:
        is_here = ipaddress.ip_address(socket.gethostbyname(dispatcher.host)).is_loopback
    except OSError:
        # A name that nobody knows yet is told of while it is waited for.
        return
    if public_name == LOOPBACK and not is_here:
        print(
            f"Warning: this worker listens at {LOOPBACK}, so only this machine reaches it. If the\n"
            f"dispatcher at {dispatcher} or its trainers are elsewhere, give --host with\n"
            "this machine's address in the cluster.",
            file=sys.stderr,
        )
