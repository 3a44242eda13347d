"""A cluster whose workers are all on this machine."""

from __future__ import annotations

import socket
from contextlib import ExitStack

LOOPBACK = "127.0.0.1"


def make_cluster_file(workers: int) -> str:
    """The text of a cluster file with free ports of loopback."""
    with ExitStack() as stack:
        # All at once, so that none is given twice.
        ends = [stack.enter_context(socket.create_server((LOOPBACK, 0))) for _ in range(workers + 1)]
        control, *ports = (end.getsockname()[1] for end in ends)
    addresses = ", ".join(f"{LOOPBACK}:{port}" for port in ports)
    return f"workers: [{addresses}]\ncontrol: {LOOPBACK}:{control}\n"
