"""`myxtts data-dispatcher`: the middle of a tf.data service, which trainers ask and workers report to."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from myxtts.cli.parser import Parser
from myxtts.cli.service_server import add_listening_flags, prepare_server, run_until_stopped
from myxtts.config.address import Address
from myxtts.data.service.address import DISPATCHER_PORT


def build_parser(prog: str) -> Parser:
    parser = Parser(
        prog=prog,
        description="Start the dispatcher of a tf.data service: trainers with --data-service HOST:PORT ask it, and "
        "`myxtts data-worker` processes read for them. Ends on Ctrl-C or SIGTERM.",
    )
    add_listening_flags(parser, DISPATCHER_PORT)
    return parser


def run(words: Sequence[str], prog: str) -> int:
    arguments = build_parser(prog).parse_all(words)
    place = prepare_server(arguments)
    address = Address(place.public_name, place.own.port)

    def start() -> Any:
        # Not imported above: --help needs no TensorFlow. The runtime first: it makes that quiet.
        import myxtts.devices.runtime  # noqa: F401
        from myxtts.data.service.servers import start_dispatcher

        return start_dispatcher(place.own)

    def tell() -> None:
        print(f"Dispatcher  {address}")
        print(f"Workers     myxtts data-worker --dispatcher {address}")
        print(f"Trainers    myxtts train --data-service {address} ...", flush=True)

    run_until_stopped(start, tell)
