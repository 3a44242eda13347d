"""The producer process: `python -m myxtts.pipeline.producer_main`, started by `child_process`."""

from __future__ import annotations

import faulthandler
import os
import signal
import socket
import sys

from myxtts.pipeline.lifeline import die_with_holder
from myxtts.pipeline.producer import Producer
from myxtts.pipeline.status_board import StatusBoard
from myxtts.pipeline.wire import Connection

STACK_SIGNAL = signal.SIGUSR1
"""Makes the process write the stacks of its threads to its standard error, even when it hangs."""


def main(arguments: list[str]) -> int:
    """Works for the trainer at the other end of these descriptors; returns the exit code."""
    connection, status, ring, lifeline = (int(word) for word in arguments)
    for descriptor in (connection, status, ring, lifeline):
        # Whatever this process starts must not keep the trainer's end waiting for an end of file.
        os.set_inheritable(descriptor, False)
    die_with_holder(lifeline)
    faulthandler.enable()
    faulthandler.register(STACK_SIGNAL, all_threads=True)
    return Producer(Connection(socket.socket(fileno=connection), blocking=True), StatusBoard(status), ring).run()


if __name__ == "__main__":
    exit_code = main(sys.argv[1:])
    if exit_code != 0:
        # A task that failed may have left threads behind, and these must not keep the process alive.
        sys.stderr.flush()
        os._exit(exit_code)
