"""The servers of a tf.data service, as their commands start them."""

from __future__ import annotations

import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil
import pytest

from myxtts.devices.child_environment import make_importable

STOP_SECONDS = 60.0


class Server:
    """A process of `myxtts data-dispatcher` or `myxtts data-worker`."""

    def __init__(self, *words: str, cwd: Path | None = None):
        self.process = subprocess.Popen(
            [sys.executable, "-P", "-m", "myxtts.cli.main", *words],
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            cwd=cwd,
            env=make_importable({"PATH": "/usr/bin:/bin", "TF_CPP_MIN_LOG_LEVEL": "3"}),
        )

    def wait_until_ready(self) -> str:
        """The address that it tells."""
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        assert line, f"the server ended with exit code {self.process.wait()}"
        return line.split()[1].rstrip(",")

    def stop(self, number: int = signal.SIGTERM) -> tuple[int, str]:
        """Its exit code, and what it had still to say."""
        self.process.send_signal(number)
        output, _ = self.process.communicate(timeout=STOP_SECONDS)
        return self.process.returncode, output


@contextmanager
def run_servers() -> Iterator[list[Server]]:
    """A list for servers, all of which are ended."""
    servers: list[Server] = []
    try:
        yield servers
    finally:
        for server in servers:
            if server.process.poll() is None:
                server.stop(signal.SIGKILL)


def start_service(servers: list[Server], workers: int, cwd: Path | None = None) -> str:
    """The address of a dispatcher with so many workers."""
    servers.append(Server("data-dispatcher", "--port", "0", cwd=cwd))
    address = servers[0].wait_until_ready()
    new = [Server("data-worker", "--dispatcher", address, cwd=cwd) for _ in range(workers)]
    servers += new
    for worker in new:
        worker.wait_until_ready()
    return address


def find_own_address() -> str:
    """An address of this machine that others may reach; skips the test where it has none."""
    for addresses in psutil.net_if_addrs().values():
        for address in addresses:
            if address.family == socket.AF_INET and not address.address.startswith("127."):
                return address.address
    pytest.skip("this machine has no address but loopback")
