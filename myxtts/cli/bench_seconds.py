"""How long each measurement of a benchmark takes, as a flag."""

from __future__ import annotations

import argparse

from myxtts.cli.parser import Parser
from myxtts.errors import CommandLineError


def add_seconds_flag(parser: Parser, default_s: float) -> None:
    """`--seconds`; read it with `read_seconds`."""
    parser.add_argument(
        "--seconds",
        metavar="N",
        type=float,
        default=default_s,
        help=f"length of each measurement (default: {default_s:g})",
    )


def read_seconds(arguments: argparse.Namespace) -> float:
    """The length that was asked for."""
    seconds: float = arguments.seconds
    if not 0 < seconds <= 3600:
        raise CommandLineError(f"--seconds must be a number from 0 to 3600, but is {seconds:g}.")
    return seconds
