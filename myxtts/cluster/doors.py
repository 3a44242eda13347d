"""Whether every worker reaches TensorFlow's port of every other one, tried before TensorFlow is started.

TensorFlow itself waits up to an hour for a worker that cannot be reached, in a call that nothing interrupts, and names nobody.
"""

from __future__ import annotations

import socket
import time
from collections.abc import Sequence

from myxtts.cluster.errors import RendezvousError
from myxtts.cluster.interfaces import find_own_interface
from myxtts.cluster.link import Link
from myxtts.cluster.spec import ClusterSpec
from myxtts.config.address import Address

PATIENCE_S = 30.0
"""With all ports together: a name may be known later than its machine is there."""
_TRY_S = 5.0
_PAUSE_S = 0.25
_MOST_NAMED = 5


def require_open_doors(link: Link, patience_s: float = PATIENCE_S) -> None:
    """Raises `RendezvousError`, on every worker, which names the ports that are closed, and to whom."""
    spec = link.spec
    with _open_door(spec):
        # Nobody knocks before all are open, and none closes before all have knocked.
        link.add_up("open doors", [])
        deadline = time.monotonic() + min(patience_s, spec.rendezvous_s)
        others = [index for index in range(spec.size) if index != spec.index]
        closed = link.gather("closed doors", [each for each in others if not _knock(spec.workers[each], deadline)])
        problem = link.hand_out("closed doors", _describe(spec, closed))
    if problem is not None:
        raise RendezvousError(problem)


def _open_door(spec: ClusterSpec) -> socket.socket:
    """Something that listens where TensorFlow will. The kernel takes connections by itself, as many as there are workers."""
    port, interface = spec.workers[spec.index].port, find_own_interface(spec)
    backlog = 2 * spec.size
    try:
        if interface is not None:
            return socket.create_server((str(interface), port), backlog=backlog)
        if socket.has_dualstack_ipv6():
            return socket.create_server(("", port), family=socket.AF_INET6, dualstack_ipv6=True, backlog=backlog)
        return socket.create_server(("", port), backlog=backlog)
    except OSError as error:
        raise RendezvousError(
            f"TensorFlow cannot listen on port {port} here, as {spec.name_worker(spec.index)} should ({error.strerror or error}). End "
            "the process that has the port, or give another one in the cluster file."
        ) from None


def _knock(address: Address, deadline: float) -> bool:
    """Whether a port can be reached; tried once at least."""
    while True:
        try:
            with socket.create_connection(address, timeout=_TRY_S):
                return True
        except OSError:
            if time.monotonic() >= deadline:
                return False
        time.sleep(_PAUSE_S)


def _describe(spec: ClusterSpec, closed: Sequence[Sequence[int]]) -> str | None:
    """What is wrong, in words; None where all is well.

    Args:
        closed: for every worker, those that it does not reach.
    """
    pairs = [
        f"{spec.name_worker(other)} cannot be reached from {spec.workers[index].host} (worker {index})"
        for index, others in enumerate(closed)
        for other in others
    ]
    if not pairs:
        return None
    more = f"; and {len(pairs) - _MOST_NAMED} more" if len(pairs) > _MOST_NAMED else ""
    return (
        f"All workers must reach each other at the ports under `workers`, over which TensorFlow talks, but "
        f"{'; '.join(pairs[:_MOST_NAMED])}{more}. Open these ports between the machines, and start the whole cluster again."
    )
