"""Trainers on the machines of a Ray cluster: actors, each of which runs one process of `myxtts train`, and the driver that starts them.

All share every batch. Where one dies the others cannot go on, so the driver ends all and starts them again, some times: they go on
from the last checkpoint. Nobody outlives the driver: Ray ends its actors with it, and the kernel a trainer with its actor.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import astuple, dataclass
from typing import Any

from myxtts.cluster.ray_setup import HeadWatch, join_cluster
from myxtts.config import XTTSConfig
from myxtts.config.settings import parse_gpu_ids
from myxtts.errors import ClusterError, MachineError, UserError, choose_exit_code
from myxtts.processes import make_importable

TRAINER = "MYXTTS_TRAINER"
"""What a trainer is told by who started it, in JSON."""
MOST_RESTARTS = 3
"""In a row, of sessions that were shorter than `_LONG_S`."""
STOPPED = (os.EX_TEMPFAIL, 128 + signal.SIGINT)
"""Exit codes of trainers that were asked to stop and did."""
_LONG_S = 600.0
_LOOK_S = 0.2
_ROOM_S = 120.0
"""For machines to have room for all trainers."""
_GRACE_S = 30.0
"""From the first trainer that stopped, as it was asked to, to the last."""

Tell = Callable[[int, str], None]


@dataclass(frozen=True)
class TrainerSpec:
    """Which of several trainers a process is."""

    addresses: Sequence[str]
    """Of TensorFlow's ports, by trainer."""
    index: int
    command: Sequence[str]
    """That started all of them, and resumes the run."""

    @property
    def size(self) -> int:
        return len(self.addresses)

    @property
    def is_chief(self) -> bool:
        """Whether it keeps the run's folder."""
        return self.index == 0


def find_trainer(environ: Mapping[str, str]) -> TrainerSpec | None:
    """What this process was told; None where it is no trainer of a cluster. Its standard input ends with who started it."""
    return None if (told := environ.get(TRAINER)) is None else TrainerSpec(*json.loads(told))


class Trainer:
    """The actor: owns devices of the machine it is on, and a process that trains on them."""

    _child: subprocess.Popen[str] | None = None
    _asked = 0
    """The signal that was given on."""

    def __init__(self) -> None:
        import ray

        self._ray, self._lock = ray, threading.Lock()
        threading.Thread(target=HeadWatch(ray).end_process, daemon=True).start()

    def find_address(self) -> str:
        """Where TensorFlow of this trainer will listen."""
        host = self._ray.util.get_node_ip_address()
        with socket.create_server((host, 0)) as tried:
            return f"{host}:{tried.getsockname()[1]}"

    def run(self, words: Sequence[str], folder: str, told: str) -> Iterator[str | int]:
        """Trains: every line that is said, and at last the exit code."""
        if len(gpus := list(map(str, self._ray.get_gpu_ids()))) > 1:
            # Which ones they are is Ray's choice; the command told how many.
            words = [*words, "--model-gpus", ",".join(gpus)]
        # What Ray sets for its own workers is no advice for a trainer.
        kept = {name: value for name, value in os.environ.items() if name != "OMP_NUM_THREADS"}
        with self._lock:
            if not self._asked:
                self._child = subprocess.Popen(
                    [sys.executable, "-P", "-m", "myxtts.cli.main", "train", *words],
                    stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace",
                    cwd=folder, env=make_importable({**kept, "PYTHONUNBUFFERED": "1", TRAINER: told}), start_new_session=True,
                )  # fmt: skip
        if self._child is not None:
            assert self._child.stdout is not None
            yield from (line.rstrip("\n") for line in self._child.stdout)
        code = self._child.wait() if self._child is not None else -self._asked
        # Asked before it was there, or so early that it died of it.
        yield choose_exit_code(signal.Signals(-code), is_worker=True) if code == -self._asked < 0 else code

    def send(self, number: int) -> None:
        """Gives a signal on, to a process that is yet to be started too."""
        with self._lock:
            self._asked = number
            if self._child is not None:
                self._child.send_signal(number)


def train_on_cluster(config: XTTSConfig, words: Sequence[str], command: Sequence[str], tell: Tell, stop: Any) -> int:
    """Trains with several trainers, and returns the exit code of the first that failed for good, or 0. What `stop` notes is given on.

    Raises `ClusterError` where they cannot begin, and `MachineError` where they cannot any more."""
    training, count = config.training, config.training.trainers
    assert training.cluster is not None, "a rule of the configuration"
    cards = 0 if training.rehearsal else len(parse_gpu_ids(training.model_gpus)) if training.model_gpus else 1
    cpus = max(os.cpu_count() or 1, count + training.preparers)
    with join_cluster(training.cluster, cpus=cpus) as ray:
        gpus = min(cards, int(ray.cluster_resources().get("GPU", 0)))
        # Two threads: a signal is given on while the other one reads what is said.
        needs = {"num_cpus": 1, "num_gpus": gpus, "max_concurrency": 2, "scheduling_strategy": "SPREAD"}
        head, restarts = HeadWatch(ray), 0
        words = [*words, "--cluster", head.address]
        while True:
            began_s = time.monotonic()
            actors = [ray.remote(Trainer).options(**needs).remote() for _ in range(count)]
            try:
                codes = _watch(ray, head, _start(ray, head, actors, words, command, stop), actors, stop, tell)
            except ClusterError as error:
                if not restarts:
                    raise
                # What was asked for could be had before: started again, as by a scheduler, it may be had later.
                raise MachineError(str(error)) from error
            finally:
                head.end(actors)
            if not (failed := [code for code in codes if code]):
                return 0
            is_final = stop.signal is not None or any(code in (*STOPPED, UserError.exit_code) for code in failed)
            restarts = 0 if time.monotonic() - began_s > _LONG_S else restarts
            if is_final or restarts == MOST_RESTARTS:
                return 128 - failed[0] if failed[0] < 0 else failed[0]
            restarts += 1
            tell(0, f"All trainers start again from the last checkpoint, {restarts}. time of at most {MOST_RESTARTS}.")
            # The first start may have put an older run aside. This one goes on.
            words = [*(word for word in words if word != "--reset-training"), "--resume"]


def _start(
    ray: Any, head: HeadWatch, actors: Sequence[Any], words: Sequence[str], command: Sequence[str], stop: Any
) -> dict[Any, int]:
    """What each trainer says from now on, and which of them it is."""
    asked, end_s = [each.find_address.remote() for each in actors], time.monotonic() + _ROOM_S
    while len(ray.wait(asked, num_returns=len(asked), timeout=_LOOK_S)[0]) < len(asked) and time.monotonic() < end_s:
        head.look()
        stop.check()
    stop.check()
    try:
        addresses = ray.get(asked, timeout=0)
    except ray.exceptions.GetTimeoutError:
        raise ClusterError(
            f"The cluster has not found room for {len(actors)} trainers within {_ROOM_S:g} s: each needs a processor, and the GPUs that it "
            "is to train on. `ray status` tells what is there. Give fewer --trainers, or add machines."
        ) from None
    except ray.exceptions.RayError as error:
        raise ClusterError(f"A trainer cannot begin: {_quote(error)}. Every machine needs the same MyXTTS.") from error
    specs = [json.dumps(astuple(TrainerSpec(addresses, index, command))) for index in range(len(actors))]
    run = [each.run.options(num_returns="streaming") for each in actors]
    return {run[index].remote(words, os.getcwd(), spec): index for index, spec in enumerate(specs)}


def _watch(
    ray: Any, head: HeadWatch, streams: dict[Any, int], actors: Sequence[Any], stop: Any, tell: Tell
) -> list[int | None]:
    """The exit codes by trainer, -9 for one that was lost with its actor; None for those that are to be ended for another's sake."""
    codes: list[int | None] = [None] * len(actors)
    told, end_s = list[Any](), float("inf")
    while streams and time.monotonic() < end_s:
        head.look()
        if stop.signal is not None and not told:
            told = [each.send.remote(int(stop.signal)) for each in actors]
        for stream in ray.wait(list(streams), timeout=_LOOK_S)[0]:
            try:
                said = ray.get(next(stream))
            except ray.exceptions.RayTaskError as error:
                raise ClusterError(
                    f"Trainer {streams[stream]} cannot begin: {_quote(error)}. Every machine needs the folder {os.getcwd()}."
                ) from error
            except ray.exceptions.RayError:
                said = -signal.SIGKILL
            if isinstance(said, str):
                tell(streams[stream], said)
                continue
            codes[index := streams.pop(stream)] = said
            if said:
                ended = f"ended with code {said}" if said > 0 else f"was ended by signal {-said}"
                tell(index, "stopped as it was asked to" if said in STOPPED else ended)
                # Those who are asked to stop do it at the same update. Where one fails the others wait for it in vain.
                end_s = min(end_s, time.monotonic() + (_GRACE_S if said in STOPPED else 0))
    return codes


def _quote(error: Exception) -> str:
    """The last line of an error, which is what it says behind the stack of another machine."""
    return str(error).rstrip(" .\n").rpartition("\n")[2].strip()
