"""What keeps `myxtts train` from starting a worker for each device of this machine."""

from __future__ import annotations

from myxtts.cluster import private_network
from myxtts.training.mode import Obstacle


def find_launch_obstacle() -> Obstacle | None:
    """Why workers cannot be started as things are, and the flag with which they can; None where they can."""
    if not private_network.has_private_network():
        return Obstacle(
            "its workers can have no network of their own here (--open-ports takes the machine's)",
            "add --open-ports to `myxtts train`, and its workers take the machine's own network",
        )
    return None
