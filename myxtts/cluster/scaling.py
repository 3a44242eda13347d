"""What a step would take with more workers. Arithmetic only: nothing here was measured on such a cluster.

With a fixed global batch, n workers compute an n-th of the rows each, and then add up the gradients of all weights in a ring:
every worker sends and receives 2 (n - 1) / n times their size, in 2 (n - 1) messages, at the full speed of the network. Nothing
overlaps: sums begin after the last gradient.
"""

from __future__ import annotations

from dataclasses import dataclass

BITS_PER_BYTE = 8


@dataclass(frozen=True)
class Network:
    """What joins the workers."""

    bytes_per_s: float
    """In one direction."""
    latency_s: float = 50e-6
    """Of a message."""

    @classmethod
    def from_gigabits(cls, gigabits_per_s: float) -> Network:
        """A network by the number that is printed on it."""
        return cls(gigabits_per_s * 1e9 / BITS_PER_BYTE)


def predict_exchange_s(workers: int, gradient_bytes: float, network: Network) -> float:
    """Seconds to add up the gradients of all workers in a ring."""
    if workers == 1:
        return 0.0
    carried_s = 2 * (workers - 1) / workers * gradient_bytes / network.bytes_per_s
    return carried_s + 2 * (workers - 1) * network.latency_s


def predict_step_s(
    workers: int, alone_s: float, gradient_bytes: float, network: Network, updates_share: float = 1.0
) -> float:
    """Seconds per batch with the same global batch.

    Args:
        alone_s: of one worker that does it all.
        updates_share: updates per batch: 1/4 where the gradients of four batches make one update.
    """
    return alone_s / workers + updates_share * predict_exchange_s(workers, gradient_bytes, network)


def predict_speed_up(
    workers: int, alone_s: float, gradient_bytes: float, network: Network, updates_share: float = 1.0
) -> float:
    """How many times as fast as one worker."""
    return alone_s / predict_step_s(workers, alone_s, gradient_bytes, network, updates_share)
