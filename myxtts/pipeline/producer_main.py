"""The producer process: `python -m myxtts.pipeline.producer_main`, started by `child_process`."""

from __future__ import annotations

import os
import socket
import sys

from myxtts.devices.stacks import answer_stack_requests
from myxtts.pipeline.lifeline import die_with_holder
from myxtts.pipeline.producer import Producer
from myxtts.pipeline.status_board import StatusBoard
from myxtts.pipeline.wire import Connection


def main(arguments: list[str]) -> int:
    """Works for the trainer at the other end of these descriptors; returns the exit code."""
    connection, status, ring, lifeline = (int(word) for word in arguments)
    for descriptor in (connection, status, ring, lifeline):
        # Whatever this process starts must not keep the trainer's end waiting for an end of file.
        os.set_inheritable(descriptor, False)
    die_with_holder(lifeline)
    answer_stack_requests()
    return Producer(Connection(socket.socket(fileno=connection), blocking=True), StatusBoard(status), ring).run()


if __name__ == "__main__":
    exit_code = main(sys.argv[1:])
    if exit_code != 0:
        # A task that failed may have left threads behind, and these must not keep the process alive.
        sys.stderr.flush()
        os._exit(exit_code)
