"""Which processes make a cluster, and which of them this one is: from a YAML file, or from `TF_CONFIG`.

    workers: [10.0.0.1:5000, 10.0.0.2:5000]   # the first one is the chief
    control: 10.0.0.1:5001                    # where the chief is met; by default one port above its own

Every worker trains on rows of its own, and the chief also keeps the run's folder. TensorFlow talks over the ports under
`workers`, MyXTTS over `control`.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import field_validator

from myxtts.config.settings import MOST_PORT, Address, Section, parse_address
from myxtts.config.sources import read_yaml
from myxtts.errors import ClusterError, ConfigError

TF_CONFIG = "TF_CONFIG"
WORKER_INDEX = "MYXTTS_WORKER_INDEX"
LAUNCH_COMMAND = "MYXTTS_LAUNCH_COMMAND"
"""The command that started this worker and the others, as a list in JSON, where one did."""
RENDEZVOUS_SECONDS = 300.0
SILENCE_SECONDS = 60.0
_WORKER_JOBS = ("chief", "worker")
"""As TensorFlow orders them: a chief, where there is one, is the first worker."""


@dataclass(frozen=True)
class ClusterSpec:
    """A cluster as one of its workers sees it."""

    workers: tuple[Address, ...]
    index: int
    """Of this worker; 0 is the chief."""
    control: Address
    """Where the chief is met."""
    bind: str | None = None
    """The interface that the chief listens on; by default the one that `control` names."""
    rendezvous_s: float = RENDEZVOUS_SECONDS
    """How long workers wait for each other at the start."""
    silence_s: float = SILENCE_SECONDS
    """After how long a worker of which nothing is heard counts as lost."""

    @property
    def size(self) -> int:
        return len(self.workers)

    @property
    def is_chief(self) -> bool:
        return self.index == 0

    def name_worker(self, index: int, *, begins: bool = False) -> str:
        """A worker as messages name it.

        Args:
            begins: whether a sentence begins with it.
        """
        return f"{'W' if begins else 'w'}orker {index}{' (the chief)' if index == 0 else ''} at {self.workers[index]}"


class ClusterFile(Section):
    """The content of a cluster file."""

    workers: list[str]
    control: str | None = None
    bind: str | None = None
    rendezvous_seconds: float = RENDEZVOUS_SECONDS
    silence_seconds: float = SILENCE_SECONDS

    @field_validator("rendezvous_seconds", "silence_seconds")
    @classmethod
    def _check_seconds(cls, value: float) -> float:
        if 1.0 <= value <= 86400.0:
            return value
        raise ValueError(f"must be from 1 to 86400, but is {value:g}.")


def find_cluster(path: str | None, index: int | None, environ: Mapping[str, str]) -> ClusterSpec | None:
    """The cluster that this process is asked to be part of; None for a run of its own.

    Args:
        path: a cluster file (`--cluster`). It wins over `TF_CONFIG`.
        index: which worker of a cluster file this is (`--worker-index`). It wins over the environment.
        environ: of the process.
    """
    if path is not None:
        return _read_file(Path(path), index, environ)
    text = environ.get(TF_CONFIG)
    spec = _parse_tf_config(text) if text else None
    if spec is None and index is not None:
        raise ClusterError(
            f"--worker-index {index} was given, but no cluster. Give the file that lists its workers with --cluster."
        )
    if spec is not None and index is not None and index != spec.index:
        raise ClusterError(
            f"--worker-index is {index}, but {TF_CONFIG} says that this is worker {spec.index}. Leave one of them out, or give a cluster "
            "file with --cluster, which wins."
        )
    return spec


def _require_address(text: str, what: str) -> Address:
    address = parse_address(text)
    if address is None:
        raise ClusterError(f"{what} must be an address like 10.0.0.5:5000, but is {text!r}.")
    return address


def _read_file(path: Path, index: int | None, environ: Mapping[str, str]) -> ClusterSpec:
    settings = read_yaml(path)
    try:
        content = ClusterFile(**settings.sections)
    except ConfigError as error:
        raise ClusterError("\n".join(f"{settings.locate(key)}: {key} {text}" for key, text in error.problems)) from None
    workers = _parse_workers(content.workers, str(path))
    control = (
        _require_address(content.control, f"{path}: control") if content.control else _follow(workers[0], str(path))
    )
    spec = ClusterSpec(
        workers=workers,
        index=_choose_index(index, environ, len(workers)),
        control=control,
        bind=content.bind,
        rendezvous_s=content.rendezvous_seconds,
        silence_s=content.silence_seconds,
    )
    _check_ports(spec, str(path))
    return spec


def _choose_index(given: int | None, environ: Mapping[str, str], size: int) -> int:
    text = environ.get(WORKER_INDEX)
    if given is None and text is None:
        raise ClusterError(
            f"Which of the {size} workers of the cluster is this one? Give --worker-index 0 to {size - 1}, or set {WORKER_INDEX}; "
            "worker 0 is the chief, which keeps the run's folder."
        )
    if given is None and not (text or "").isdecimal():
        raise ClusterError(f"{WORKER_INDEX} must be a whole number from 0 to {size - 1}, but is {text!r}.")
    index = int(text or 0) if given is None else given
    if index >= size:
        raise ClusterError(
            f"The worker's index must be from 0 to {size - 1}, as the cluster has {size} workers, but is {index}."
        )
    return index


def _parse_tf_config(text: str) -> ClusterSpec | None:
    """The cluster in a `TF_CONFIG`; None where it describes a single process."""
    try:
        content: dict[str, Any] = json.loads(text)
        jobs: dict[str, list[str]] = content.get("cluster") or {}
        task = content.get("task") or {}
        names = [(job, number) for job in _WORKER_JOBS for number in range(len(jobs.get(job, ())))]
        addresses = [jobs[job][number] for job, number in names]
        if not all(isinstance(address, str) for address in addresses):
            raise TypeError(f"addresses must be texts like 10.0.0.5:5000, but are {addresses}")
        own = (task.get("type"), int(task.get("index", -1)))
    except (ValueError, TypeError, AttributeError) as error:
        raise ClusterError(
            f"{TF_CONFIG} must be JSON with a cluster and a task, but cannot be read: {error}."
        ) from None
    others = sorted(jobs.keys() - set(_WORKER_JOBS))
    if not others and len(addresses) < 2:
        return None
    if others or own not in names:
        wrong = (
            f"has jobs that MyXTTS has no use for ({', '.join(others)})"
            if others
            else f"has the task {own}, which is none of them"
        )
        raise ClusterError(f"{TF_CONFIG} must name the jobs chief and worker, and a task of theirs, but {wrong}.")
    workers = _parse_workers(addresses, TF_CONFIG)
    spec = ClusterSpec(workers, names.index(own), _follow(workers[0], TF_CONFIG))
    _check_ports(spec, TF_CONFIG)
    return spec


def _parse_workers(texts: Sequence[str], where: str) -> tuple[Address, ...]:
    workers = tuple(_require_address(text, f"{where}: worker {number}") for number, text in enumerate(texts))
    if len(workers) < 2:
        raise ClusterError(
            f"{where}: a cluster must have at least two workers, but has {len(workers)}. Leave out --cluster."
        )
    return workers


def _follow(address: Address, where: str) -> Address:
    if address.port == MOST_PORT:
        raise ClusterError(
            f"{where}: the chief is met one port above its own, but above {address} there is none. Give it a lower one, or name another "
            "place to meet as control in a cluster file."
        )
    return Address(address.host, address.port + 1)


def _check_ports(spec: ClusterSpec, where: str) -> None:
    seen: set[Address] = set()
    for address in (*spec.workers, spec.control):
        if address in seen:
            raise ClusterError(
                f"{where}: every address must be used once, but {address} is used twice. The chief is met one port above its own, "
                "unless control names another."
            )
        seen.add(address)
