"""How much may be asked for, how often, and by how many at once."""

from __future__ import annotations

import ipaddress
import math
import time
from collections import Counter, deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from myxtts.inference.speech import MOST_CHARACTERS
from myxtts.serving.request import BUSY, TOO_MANY, ApiError, ServerStartError

WINDOW_SECONDS = 60.0

_BYTES_PER_CHARACTER = 12
"""The longest way to write one in JSON: a pair of escapes."""
_OTHER_FIELDS_BYTES = 4096


@dataclass(frozen=True)
class ServingLimits:
    """What a server takes on."""

    text_characters: int = 4096
    requests_per_minute: int = 60
    """Of one client."""
    queue: int = 8
    """Requests that may wait or be answered at a time."""
    upload_bytes: int = 10 << 20
    uploads: int = 4
    """Recordings that may come, or wait for the model, at a time: what they can take of the memory."""
    connections: int = 200
    connections_per_client: int = 64
    headers_s: float = 10.0
    """Until a request has come up to its body."""
    body_s: float = 30.0
    send_s: float = 10.0
    """That a client may take nothing of its answer; and how much longer than the speech lasts it may take for all."""

    def __post_init__(self) -> None:
        for flag, value, most in (
            ("--max-text", self.text_characters, MOST_CHARACTERS),
            ("--rate", self.requests_per_minute, 100_000),
            ("--queue", self.queue, 1000),
        ):
            if not 1 <= value <= most:
                raise ServerStartError(f"{flag} must be from 1 to {most}, but is {value}.")

    @property
    def body_bytes(self) -> int:
        """Largest body of a request for speech."""
        return self.text_characters * _BYTES_PER_CHARACTER + _OTHER_FIELDS_BYTES


class RateLimiter:
    """Counts the requests of each client within the last minute."""

    def __init__(self, per_minute: int, what: str = "requests", clock: Callable[[], float] = time.monotonic):
        self._most, self._what, self._clock = per_minute, what, clock
        self._times: dict[str, deque[float]] = {}

    def count(self, address: str) -> None:
        """Counts one request. Raises `ApiError` when it is one too many; then it does not count."""
        now = self._clock()
        for client, times in list(self._times.items()):
            while times and times[0] <= now - WINDOW_SECONDS:
                times.popleft()
            if not times:
                del self._times[client]
        times = self._times.setdefault(name_client(address), deque())
        if len(times) >= self._most:
            wait_s = max(1, math.ceil(times[0] + WINDOW_SECONDS - now))
            raise ApiError(
                f"A client may send {self._most} {self._what} a minute, but this is one more. Wait {wait_s} s.",
                TOO_MANY._replace(headers={"Retry-After": str(wait_s)}),
            )
        times.append(now)


def name_client(address: str) -> str:
    """What counts as one client: an address, or the network of an IPv6 one, since a household has billions of those."""
    try:
        parsed = ipaddress.ip_address(address.partition("%")[0])
    except ValueError:
        return address
    if isinstance(parsed, ipaddress.IPv4Address):
        return str(parsed)
    return str(parsed.ipv4_mapped or ipaddress.ip_network((parsed, 64), strict=False))


class Places:
    """The places in the queue. One is held until its answer was sent, so what waits for slow readers is bounded, too.

    The last one is for a client that has none yet: one client alone cannot keep all others out.
    """

    def __init__(self, most: int, what: str = "requests"):
        self._most, self._what = most, what
        self._holders: Counter[str] = Counter()

    @property
    def taken(self) -> int:
        return self._holders.total()

    def check(self, address: str) -> None:
        """Raises `ApiError` when there is no place."""
        free = self._most - self.taken
        if free > 1 or (free == 1 and name_client(address) not in self._holders):
            return
        raise ApiError(
            f"This server takes {self._most} {self._what} at a time, "
            + ("and the last place is for another client." if free else "and that many are there.")
            + " Try again in a moment.",
            BUSY,
        )

    @contextmanager
    def take(self, address: str) -> Iterator[None]:
        """A place for the time of the block. Raises `ApiError` when there is none."""
        self.check(address)
        client = name_client(address)
        self._holders[client] += 1
        try:
            yield
        finally:
            self._holders[client] -= 1
            # A client of the past is no holder, and not remembered.
            self._holders += Counter()
