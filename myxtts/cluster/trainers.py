"""Trainers on the machines of a Ray cluster: actors, each of which runs one process of `myxtts train`, and the driver that starts them.

All share every batch. Where one dies the others cannot go on, so the driver ends all and starts them again, some times: they go on
from the last checkpoint. Nobody outlives the driver: Ray ends its actors with it, and the kernel a trainer with its actor.
"""

from __future__ import annotations

import ctypes
import fcntl
import json
import os
import signal
import socket
import struct
import subprocess
import sys
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Any

from myxtts.cluster.ray_setup import LOCAL, HeadWatch, join_cluster
from myxtts.config import XTTSConfig
from myxtts.config.settings import parse_gpu_ids
from myxtts.errors import ClusterError, UserError
from myxtts.processes import make_importable

TRAINER = "MYXTTS_TRAINER"
"""What a trainer is told by who started it, in JSON."""
MOST_RESTARTS = 3
"""In a row, of sessions that were shorter than `_LONG_S`."""
STOPPED = (os.EX_TEMPFAIL, 128 + signal.SIGINT)
"""Exit codes of trainers that were asked to stop and did."""
_LONG_S = 600.0
_ROOM_S = 120.0
"""For machines to have room for all trainers."""
_LOOK_S = 0.2
_GRACE_S = 30.0
"""From the first trainer that stopped, as it was asked to, to the last."""
_THREADS = 4

Tell = Callable[[int, str], None]
"""Hears a line of a trainer."""


@dataclass(frozen=True)
class TrainerSpec:
    """Which of several trainers a process is."""

    addresses: tuple[str, ...]
    """Of TensorFlow's ports, by trainer."""
    index: int
    command: tuple[str, ...]
    """That started all of them, and resumes the run."""

    @property
    def size(self) -> int:
        return len(self.addresses)

    @property
    def is_chief(self) -> bool:
        """Whether it keeps the run's folder."""
        return self.index == 0


def find_trainer(environ: Mapping[str, str]) -> TrainerSpec | None:
    """What this process was told; None where it is no trainer of a cluster."""
    if (told := environ.get(TRAINER)) is None:
        return None
    addresses, index, command = json.loads(told)
    return TrainerSpec(tuple(addresses), index, tuple(command))


class Trainer:
    """The actor: owns devices of the machine it is on, and a process that trains on them."""

    def __init__(self) -> None:
        self._lines: deque[str] = deque()
        self._child: subprocess.Popen[str] | None = None

    def find_address(self) -> str:
        """Where TensorFlow of this trainer will listen."""
        import ray

        host = ray.util.get_node_ip_address()
        with socket.create_server((host, 0)) as tried:
            return f"{host}:{tried.getsockname()[1]}"

    def run(self, words: Sequence[str], folder: str, environ: Mapping[str, str]) -> int:
        """Trains. Returns the exit code."""
        if len(gpus := [str(id) for id in _read_gpu_ids()]) > 1:
            # Which ones they are is Ray's choice; the command told how many.
            words = [*words, "--model-gpus", ",".join(gpus)]
        # What Ray sets for its own workers is no advice for a trainer.
        kept = {name: value for name, value in os.environ.items() if name != "OMP_NUM_THREADS"}
        self._child = subprocess.Popen(
            [sys.executable, "-P", "-m", "myxtts.cli.main", "train", *words],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            cwd=folder,
            env=make_importable({**kept, "PYTHONUNBUFFERED": "1", **environ}),
            start_new_session=True,
            # Between fork and exec nothing is safe but a system call, and it makes no more than that.
            preexec_fn=_make_death_signal(os.getpid()),
        )
        assert self._child.stdout is not None
        for line in self._child.stdout:
            self._lines.append(line.rstrip("\n"))
        return self._child.wait()

    def read_lines(self) -> list[str]:
        """What was said since the last call."""
        return [self._lines.popleft() for _ in range(len(self._lines))]

    def send(self, number: int) -> None:
        """Gives a signal on."""
        if self._child is not None:
            self._child.send_signal(number)


def _read_gpu_ids() -> list[Any]:
    import ray

    return list(ray.get_gpu_ids())


def _make_death_signal(parent: int) -> Callable[[], None]:
    """What a process does before its program begins, so that the kernel kills it when its parent dies."""
    prctl = ctypes.CDLL(None).prctl

    def ask() -> None:
        prctl(1, signal.SIGKILL)
        if os.getppid() != parent:
            os._exit(1)

    return ask


def train_on_cluster(config: XTTSConfig, words: Sequence[str], command: Sequence[str], tell: Tell) -> int:
    """Trains with several trainers, and returns the exit code of the first that failed for good, or 0."""
    training = config.training
    assert training.cluster is not None, "a rule of the configuration"
    if training.cluster == LOCAL:
        enter_private_network()
    cards = 0 if training.rehearsal else len(parse_gpu_ids(training.model_gpus)) if training.model_gpus else 1
    cpus = max(os.cpu_count() or 1, training.trainers + training.preparers)
    with join_cluster(training.cluster, cpus=cpus) as ray, _Signals() as signals:
        gpus = min(cards, int(ray.cluster_resources().get("GPU", 0)))
        head, share = ray.get_runtime_context().gcs_address, -(-training.preparers // training.trainers)
        driver = _Driver(ray, HeadWatch(head), training.trainers, gpus, tell, signals)
        words = [*words, "--cluster", head, "--preparers", str(share)]
        restarts = 0
        while True:
            began_s = time.monotonic()
            codes = driver.run(words, command)
            failed = [code for code in codes if code not in (0, None)]
            if not failed:
                return 0
            is_final = signals.asked is not None or any(
                code in STOPPED or code == UserError.exit_code for code in failed
            )
            restarts = 0 if time.monotonic() - began_s > _LONG_S else restarts
            if is_final or restarts == MOST_RESTARTS:
                return 128 - failed[0] if failed[0] < 0 else failed[0]
            restarts += 1
            tell(0, f"All trainers start again from the last checkpoint, {restarts}. time of at most {MOST_RESTARTS}.")
            # The first start may have put an older run aside. This one goes on.
            words = [*(word for word in words if word != "--reset-training"), "--resume"]


class _Signals:
    """SIGINT and SIGTERM, noted instead of obeyed, while the block lasts."""

    def __init__(self) -> None:
        self.asked: int | None = None
        self.is_repeated = False

    def __enter__(self) -> _Signals:
        self._before = {number: signal.signal(number, self._note) for number in (signal.SIGINT, signal.SIGTERM)}
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def _note(self, number: int, frame: FrameType | None) -> None:
        self.is_repeated = self.asked is not None
        self.asked = number


class _Driver:
    """Starts trainers once, shows what they say, and leaves none behind."""

    def __init__(self, ray: Any, head: HeadWatch, count: int, gpus: int, tell: Tell, signals: _Signals):
        self._ray = ray
        self._head = head
        self._count = count
        self._gpus = gpus
        self._tell = tell
        self._signals = signals

    def run(self, words: Sequence[str], command: Sequence[str]) -> list[int | None]:
        """The exit codes by trainer, -9 for one that was lost with its actor; None for those that were ended for another's sake."""
        actor = self._ray.remote(Trainer).options(
            num_cpus=1, num_gpus=self._gpus, max_concurrency=_THREADS, max_restarts=0, scheduling_strategy="SPREAD"
        )
        actors = [actor.remote() for _ in range(self._count)]
        try:
            addresses = self._find_addresses(actors)
            refs = {}
            for index, each in enumerate(actors):
                told = json.dumps([addresses, index, list(command)])
                refs[each.run.remote(list(words), os.getcwd(), {TRAINER: told})] = index
            return self._watch(actors, refs)
        finally:
            for each in actors:
                self._ray.kill(each)

    def _find_addresses(self, actors: Sequence[Any]) -> list[str]:
        try:
            return list(self._ray.get([each.find_address.remote() for each in actors], timeout=_ROOM_S))
        except self._ray.exceptions.GetTimeoutError:
            needs = f"{self._gpus} free GPU(s)" if self._gpus else "a free processor"
            raise ClusterError(
                f"The cluster has not found {needs} for each of {self._count} trainers within {_ROOM_S:g} s. `ray status` tells what is "
                "there. Give fewer --trainers, or add machines."
            ) from None

    def _watch(self, actors: Sequence[Any], refs: dict[Any, int]) -> list[int | None]:
        codes: list[int | None] = [None] * len(actors)
        given, ending_s = None, None
        while refs and not self._signals.is_repeated:
            self._head.look()
            ready, _ = self._ray.wait(list(refs), timeout=_LOOK_S)
            if self._signals.asked not in (None, given):
                given = self._signals.asked
                for each in actors:
                    each.send.remote(given)
            for ref in ready:
                index = refs.pop(ref)
                try:
                    codes[index] = self._ray.get(ref)
                except self._ray.exceptions.RayActorError:
                    codes[index] = -signal.SIGKILL
                if codes[index] != 0:
                    self._tell(index, _describe_end(codes[index] or 0))
            self._show(actors, codes)
            if any(code not in (None, 0, *STOPPED) for code in codes):
                # The others wait for it in vain.
                break
            if any(code in STOPPED for code in codes):
                ending_s = ending_s or time.monotonic() + _GRACE_S
                if time.monotonic() > ending_s:
                    break
        self._show(actors, codes)
        return codes

    def _show(self, actors: Sequence[Any], codes: Sequence[int | None]) -> None:
        for index, each in enumerate(actors):
            try:
                lines = self._ray.get(each.read_lines.remote(), timeout=1.0)
            except (self._ray.exceptions.RayActorError, self._ray.exceptions.GetTimeoutError):
                continue
            for line in lines:
                self._tell(index, line)


def _describe_end(code: int) -> str:
    if code < 0:
        return f"was ended by signal {-code}"
    return "stopped as it was asked to" if code in STOPPED else f"ended with code {code}"


_NEW_NETWORK, _NEW_USER = 0x40000000, 0x10000000
_READ_FLAGS, _SET_FLAGS, _IS_UP = 0x8913, 0x8914, 0x1
_INTERFACE = struct.Struct("16sH22x")


def enter_private_network() -> None:
    """Leaves the machine's network for a new one that has only loopback: TensorFlow's ports listen on every interface there is.

    Cannot be undone. For a process with one thread. Raises `ClusterError` where the kernel does not allow it, as in most containers.
    """
    user, group = os.getuid(), os.getgid()
    flags = _NEW_NETWORK if user == 0 else _NEW_NETWORK | _NEW_USER
    try:
        # `os.unshare` comes with Python 3.12.
        if ctypes.CDLL(None, use_errno=True).unshare(flags) != 0:
            number = ctypes.get_errno()
            raise OSError(number, os.strerror(number))
        if user != 0:
            # The same user inside as outside: files belong to whom they belonged to.
            Path("/proc/self/setgroups").write_text("deny")
            Path("/proc/self/uid_map").write_text(f"{user} {user} 1")
            Path("/proc/self/gid_map").write_text(f"{group} {group} 1")
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as end:
            name, found = _INTERFACE.unpack(fcntl.ioctl(end, _READ_FLAGS, _INTERFACE.pack(b"lo", 0)))
            fcntl.ioctl(end, _SET_FLAGS, _INTERFACE.pack(name, found | _IS_UP))
    except OSError as error:
        raise ClusterError(
            f"Trainers on one machine need a network of their own, which cannot be had here ({error.strerror}): TensorFlow listens on every "
            "interface, without a password. Use --model-gpus, which needs no network; or start a Ray head with a token and give its address."
        ) from error
