"""Hosts that share nothing but a network: namespaces of this machine, each with an address, on one bridge. Needs root.

A link can be cut and mended or made slow, and a host can lose its power: its link first, then all its processes.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

BRIDGE = "myxtts-br"
PORT = 6379
RAY = (sys.executable, "-c", "from ray.scripts.scripts import main; main()")
ROOT = Path(__file__).parents[1]


def find_obstacle() -> str | None:
    """Why there can be no hosts here; None where there can."""
    if os.geteuid() != 0 or shutil.which("ip") is None or shutil.which("tc") is None:
        return "needs root, ip and tc (apt-get install iproute2)"
    made = subprocess.run(["ip", "netns", "add", "myxtts-probe"], capture_output=True, text=True)
    if made.returncode:
        return f"no network namespaces here: {made.stderr.strip()}"
    subprocess.run(["ip", "netns", "delete", "myxtts-probe"], check=True)
    return None


class Hosts:
    """So many hosts, the first of them the head of a Ray cluster once `start_ray` was called for it.

    Args:
        folder: for tokens, sockets and logs; its path must be short.
    """

    def __init__(self, count: int, folder: Path):
        self.names = [f"myxtts-{number}" for number in range(count)]
        self.address = f"{self.find_ip(0)}:{PORT}"
        self.folder = folder
        self._programs: list[subprocess.Popen[bytes]] = []
        token = folder / "token"
        token.touch(0o600)
        token.write_text("7" * 64)
        self.environ = {
            **os.environ, "PYTHONPATH": str(ROOT), "RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN_PATH": str(token),
            "RAY_USAGE_STATS_ENABLED": "0", "RAY_worker_niceness": "0", "RAY_health_check_period_ms": "1000",
            "RAY_health_check_timeout_ms": "1000", "RAY_health_check_failure_threshold": "3",
        }  # fmt: skip

    def find_ip(self, number: int) -> str:
        return f"10.77.0.{number + 1}"

    def __enter__(self) -> Hosts:
        self._remove()
        _run(
            f"ip link add {BRIDGE} type bridge", f"ip addr add 10.77.0.254/24 dev {BRIDGE}", f"ip link set {BRIDGE} up"
        )
        for number, name in enumerate(self.names):
            _run(
                f"ip netns add {name}",
                f"ip link add {name} type veth peer name eth0 netns {name}",
                f"ip link set {name} master {BRIDGE} up",
                f"ip -n {name} addr add {self.find_ip(number)}/24 dev eth0",
                f"ip -n {name} link set eth0 up",
                f"ip -n {name} link set lo up",
                f"ip -n {name} route add default via 10.77.0.254",
            )
        return self

    def __exit__(self, *exception: object) -> None:
        for number in range(len(self.names)):
            self.kill(number)
        for program in self._programs:
            program.wait()
        self._remove()

    def _remove(self) -> None:
        for number, name in enumerate(self.names):
            # Of a bench that was killed, too.
            self.kill(number)
            subprocess.run(["ip", "link", "delete", name], capture_output=True)
            subprocess.run(["ip", "netns", "delete", name], capture_output=True)
        subprocess.run(["ip", "link", "delete", BRIDGE], capture_output=True)

    def start(self, number: int, command: Sequence[object], log: str) -> subprocess.Popen[bytes]:
        """A program on a host; what it says goes to a file of the folder."""
        words = ["ip", "netns", "exec", self.names[number], *map(str, command)]
        with open(self.folder / log, "ab") as file:
            # In a session of its own: `ray start --block` ends its whole group when a part of it has died.
            program = subprocess.Popen(
                words, stdout=file, stderr=subprocess.STDOUT, env=self.environ, cwd=ROOT, start_new_session=True
            )
        self._programs.append(program)
        return program

    def start_ray(self, number: int, cpus: int = 1) -> None:
        """Ray on a host: the head on the first. Returns at once."""
        head = ["--head", f"--port={PORT}", "--include-dashboard=false"]
        where = head if number == 0 else [f"--address={self.address}"]
        self.start(
            number,
            [
                *RAY, "start", *where, f"--node-ip-address={self.find_ip(number)}", f"--num-cpus={cpus}", "--num-gpus=0", "--block",
                f"--object-store-memory={200 << 20}",
                f"--temp-dir={self.folder / str(number)}",
            ],
            f"ray-{number}.log",
        )  # fmt: skip

    def restart_ray(self, number: int) -> None:
        """Ray again on a host that the head took for dead, as whatever watches over it would start it."""
        self.kill(number)
        self.start_ray(number)

    def find(self, number: int, which: str = "") -> list[int]:
        """The processes of a host whose command has a word, or all."""
        found = []
        listed = subprocess.run(["ip", "netns", "pids", self.names[number]], capture_output=True, text=True).stdout
        for pid in map(int, listed.split()):
            with suppress(OSError):
                if which in Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode():
                    found.append(pid)
        return found

    def kill(self, number: int, which: str = "") -> int:
        """Kills the processes of a host whose command has a word, or all; returns how many."""
        found = self.find(number, which)
        for pid in found:
            with suppress(OSError):
                os.kill(pid, signal.SIGKILL)
        return len(found)

    def cut(self, number: int) -> None:
        """Pulls the cable of a host."""
        _run(f"ip link set {self.names[number]} down")

    def mend(self, number: int) -> None:
        _run(f"ip link set {self.names[number]} up")

    def lose_power(self, number: int) -> None:
        """A host goes without a word: nobody is told that its connections are closed."""
        self.cut(number)
        self.kill(number)

    def shape(self, mbit: int) -> None:
        """Makes every cable so slow, both ways."""
        for name in self.names:
            limit = f"root tbf rate {mbit}mbit burst 256kb latency 50ms"
            _run(f"tc qdisc replace dev {name} {limit}", f"ip netns exec {name} tc qdisc replace dev eth0 {limit}")

    def wait_for_ray(self, seconds: float = 120.0) -> None:
        """Until the head answers strangers, if only to turn them away."""
        end_s = time.monotonic() + seconds
        probe = [sys.executable, "-c", f"from myxtts.cluster.ray_setup import *; require_token_at('{self.address}')"]
        while self.start(0, probe, "probe.log").wait() and time.monotonic() < end_s:
            time.sleep(0.5)


def _run(*commands: str) -> None:
    for command in commands:
        subprocess.run(command.split(), check=True)
