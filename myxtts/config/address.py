"""Addresses as people write them, host:port."""

from __future__ import annotations

from typing import NamedTuple

MOST_PORT = 65535


class Address(NamedTuple):
    """Where something listens."""

    host: str
    port: int

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


def parse_address(text: str) -> Address | None:
    """The address in a text such as 10.0.0.5:5050, node7:5050 or [::1]:5050; None if it is none."""
    host, _, port = text.rpartition(":")
    if host and port.isascii() and port.isdecimal() and 1 <= int(port) <= MOST_PORT:
        return Address(host.removeprefix("[").removesuffix("]"), int(port))
    return None
