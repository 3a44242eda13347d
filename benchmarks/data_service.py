"""What data workers bring on one machine: `python benchmarks/data_service.py --train-data DIR [flags of myxtts train]`.

In turn, on the same clips: the reader processes that a run has without a service, a tf.data service with one worker, and one
with two. Then the memory of every process of a service, and by how much its dispatcher grows while it is asked.

The corpus must be one that data workers can read; `myxtts data-prepare` makes one of any other.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import psutil

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from myxtts.cli.bench_data import prepare_material  # noqa: E402  the project need not be installed, so its folder comes first
from myxtts.cli.parser import Parser  # noqa: E402
from myxtts.config import DataConfig, resolve_config  # noqa: E402
from myxtts.config.flags import add_setting_flags  # noqa: E402
from myxtts.data.open_engine import Engine, ReadAhead, choose_read_ahead, choose_workers, start_engine  # noqa: E402
from myxtts.data.throughput import Contender, measure_in_turn  # noqa: E402
from myxtts.data.throughput_loops import Material, open_reader  # noqa: E402
from myxtts.devices.child_environment import make_importable  # noqa: E402

WORKER_COUNTS = (1, 2)
GROWTH_BATCHES = 1000
_MB = 1_000_000


@dataclass(frozen=True)
class Service:
    """A dispatcher and its workers."""

    address: str
    dispatcher: psutil.Process
    workers: list[psutil.Process]


@contextmanager
def run_server(*words: str) -> Iterator[tuple[str, psutil.Process]]:
    """The address that a server of ours tells, and its process."""
    command = [sys.executable, "-P", "-m", "myxtts.cli.main", *words]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=make_importable(os.environ)) as process:
        try:
            assert process.stdout is not None
            yield process.stdout.readline().split()[1].rstrip(","), psutil.Process(process.pid)
        finally:
            process.kill()


@contextmanager
def run_service(workers: int) -> Iterator[Service]:
    """A service with so many workers, on this machine."""
    with ExitStack() as stack:
        address, dispatcher = stack.enter_context(run_server("data-dispatcher", "--port", "0"))
        started = [stack.enter_context(run_server("data-worker", "--dispatcher", address)) for _ in range(workers)]
        yield Service(address, dispatcher, [process for _, process in started])


def make_contender(material: Material, data: DataConfig, ahead: ReadAhead, address: str | None) -> Contender:
    """Our reader, as a run with a service at this address has it, or one without."""
    engine = Engine.PROCESSES if address is None else Engine.SERVICE
    return partial(
        open_reader, material, partial(start_engine, engine, data.model_copy(update={"data_service": address}), ahead), ahead.depth
    )  # fmt: skip


def measure_memory(service: Service, contender: Contender) -> dict[str, float]:
    """MB that every kind of process takes, and MB by which the dispatcher grows for a million clips."""
    clips = 0
    with contender() as pieces:
        before_mb = read_own_mb(service.dispatcher)
        for _ in range(GROWTH_BATCHES):
            clips += next(pieces).clips
        after_mb = read_own_mb(service.dispatcher)
        return {
            "dispatcher": after_mb,
            "worker": max(map(read_own_mb, service.workers)),
            "client of a trainer": max(read_own_mb(child) for child in psutil.Process().children() if is_client(child)),
            "growth of the dispatcher for a million clips": (after_mb - before_mb) * 1e6 / clips,
        }


def read_own_mb(process: psutil.Process) -> float:
    """Memory that a process has for itself: without libraries and batches that it shares with others."""
    return float(process.memory_full_info().uss) / _MB


def is_client(process: psutil.Process) -> bool:
    """Whether a child of this process is the one that asks a service: the others are servers."""
    return "myxtts.data.workers" in process.cmdline()


def measure(material: Material, data: DataConfig, seconds: float, rounds: int) -> dict[str, Any]:
    """All figures."""
    load = os.getloadavg()[0]
    ahead = choose_read_ahead(data, [material.sampler.plan], accumulation=material.sampler.accumulation)
    with ExitStack() as stack:
        services = [stack.enter_context(run_service(workers)) for workers in WORKER_COUNTS]
        contenders = {f"{choose_workers(data)} reader processes": make_contender(material, data, ahead, None)}
        for service in services:
            name = f"service, {len(service.workers)} data worker{'s' if len(service.workers) > 1 else ''}"
            contenders[name] = make_contender(material, data, ahead, service.address)
        measured = measure_in_turn(contenders, rounds, seconds)
        memory = measure_memory(services[-1], make_contender(material, data, ahead, services[-1].address))
    return {
        "clips": len(material.corpus),
        "mean_s": material.corpus.total_seconds / len(material.corpus),
        "batch_size": data.batch_size,
        "read_ahead": ahead.depth,
        "clips_per_s": {name: asdict(rate) for name, rate in measured.rates.items()},
        "windows": [measured.windows, measured.discarded],
        "memory_mb": memory,
        "load_average": [load, os.getloadavg()[0]],
    }


def main() -> int:
    """Measure. Returns the exit code."""
    parser = Parser(prog=f"python {Path(__file__).name}", description=__doc__)
    parser.add_argument("--seconds", type=float, default=5.0, help="length of each measurement (default: 5)")
    parser.add_argument("--rounds", type=int, default=5, help="measurements of each contender (default: 5)")
    add_setting_flags(parser)
    arguments = parser.parse_all(sys.argv[1:])
    config = resolve_config(flags=arguments.given, yaml_path=arguments.config)
    with TemporaryDirectory(prefix="myxtts-bench-") as folder:
        found = measure(prepare_material(config, Path(folder)), config.data, arguments.seconds, arguments.rounds)
    print(json.dumps(found, indent=1))
    return 0


if __name__ == "__main__":
    sys.exit(main())
