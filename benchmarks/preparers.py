"""Preparers of a Ray cluster: hosts in network namespaces, stages that only take time; overlap, speed, gaps after deaths. Needs root.

Every scenario hands on each batch once and in order, or fails.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from benchmarks.hosts import Hosts, find_obstacle
from benchmarks.measuring import judge, print_row, run_bench, tell_machine
from myxtts.cluster.preparers import PreparerPool
from myxtts.cluster.ray_setup import join_cluster
from myxtts.config import XTTSConfig
from myxtts.devices.machine import read_machine
from myxtts.devices.plan import PlanRequest
from myxtts.devices.planning import plan_devices
from myxtts.pipeline.producer_client import FilledSlot
from myxtts.pipeline.recipe import BatchRecipe, Kit, Target, choose_preparation
from myxtts.pipeline.ring import Arrays
from myxtts.pipeline.threads import EndOfStream, Handoff, TimeLimits, WorkerThread

BATCH_BYTES = 5_000_000
SETTINGS = "paced.json"
WIDTHS = (56, 10, 12, 9)


class Pace(NamedTuple):
    """How long things take that do nothing but take time."""

    prepare_s: float
    train_s: float
    batch_bytes: int = BATCH_BYTES


class PacedTask:
    """What a preparer does here: waits, and hands on a batch that has its number."""

    def __init__(self, folder: Path, recipe: BatchRecipe, execution: Any):
        self._pace = Pace(**json.loads((folder / SETTINGS).read_text()))
        self._bytes = np.zeros(self._pace.batch_bytes, np.uint8)

    def warm_up(self) -> None: ...

    def prepare(self, position: int, upcoming: Sequence[int] | None = None) -> Arrays:
        time.sleep(self._pace.prepare_s)
        return {"number": np.array([position]), "bytes": self._bytes}

    def replace_batch(self, position: int) -> list[str]:
        return []

    def close(self) -> None: ...


def train_paced(address: str, pace: Pace, batches: int, count: int, told: Callable[[dict[str, Any]], None]) -> None:
    """Trains in this process on the batches of preparers, and tells when each was trained on."""
    config = XTTSConfig(training={"rehearsal": True, "mode": "single"})
    recipe = BatchRecipe(
        config=config,
        plan=plan_devices(PlanRequest.from_config(config), read_machine()),
        preparation=choose_preparation(config, Target.CODEC, [1.0] * 80),
        validation_interval=1,
        first_step=0,
        end_step=1,
        codec_folder=None,
        cache_folder=Path(),
    )
    with tempfile.TemporaryDirectory() as folder, join_cluster(address) as ray:
        recipe.write(Path(folder) / "recipe.json")
        (Path(folder) / SETTINGS).write_text(json.dumps(pace._asdict()))
        files = {path.name: np.fromfile(path, np.uint8) for path in Path(folder).iterdir()}
        kit = Kit(files, None, "benchmarks.preparers:PacedTask")
        pool = PreparerPool(ray, kit, range(batches), count, uses_gpu=False, limits=TimeLimits())
        placed: Handoff[int] = Handoff("placed")
        transfer = WorkerThread("transfer", _copy, pool, placed)
        transfer.start()
        try:
            _train(placed, pool, pace, count, told)
        finally:
            transfer.stop()
            transfer.join()
            pool.close()


def _copy(slot: FilledSlot) -> int:
    slot.arrays["bytes"].copy()
    (number,) = slot.arrays["number"].tolist()
    assert number == slot.position
    return int(number)


def _train(
    placed: Handoff[int], pool: PreparerPool, pace: Pace, count: int, told: Callable[[dict[str, Any]], None]
) -> None:
    # Measured is what goes on, not how it begins: all are there, and every slot is full.
    placed.wait_for_item(600)
    end_s = time.monotonic() + 300
    while len(pool.list_preparers()) < count and time.monotonic() < end_s:
        placed.take()
        placed.release()
        time.sleep(pace.train_s)
    placed.wait_until_full(10)
    told({"event": "begins", "preparers": len(pool.list_preparers())})
    last = None
    while True:
        try:
            number = placed.take()
        except EndOfStream:
            break
        assert last is None or number == last + 1, (last, number)
        last = number
        time.sleep(pace.train_s)
        placed.release()
        told({"event": "trained", "number": number, "at": time.time()})
    told({"event": "ends", "last": last, "preparers": [asdict(each) for each in pool.list_preparers()]})


class Told(NamedTuple):
    """What a paced training told, batch by batch."""

    times: list[float]
    pace: Pace

    @property
    def overlap(self) -> float:
        """1 where the training never waits."""
        return self.pace.train_s * (len(self.times) - 1) / (self.times[-1] - self.times[0])

    @property
    def per_s(self) -> float:
        return (len(self.times) - 1) / (self.times[-1] - self.times[0])

    @property
    def gap_s(self) -> float:
        """The longest time between two batches, beyond what training takes."""
        return max(b - a for a, b in zip(self.times, self.times[1:], strict=False)) - self.pace.train_s


def run_on(hosts: Hosts, pace: Pace, batches: int, count: int, strike: Callable[[], None] | None = None) -> Told:
    """Trains on the first host; what strikes does so after a third of the batches."""
    path = hosts.folder / f"told-{time.time():.0f}.jsonl"
    words = ["--train", json.dumps(pace._asdict()), "--batches", batches, "--count", count, "--told", path]
    program = hosts.start(0, [sys.executable, "-m", "benchmarks.preparers", hosts.address, *words], "trainer.log")
    struck = strike is None
    while program.poll() is None:
        time.sleep(0.02)
        if not struck and _count(path) > batches // 3:
            struck = True
            assert strike is not None
            strike()
    lines = [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []
    times = [line["at"] for line in lines if line["event"] == "trained"]
    if program.returncode or not lines or lines[-1].get("last") != batches - 1:
        raise RuntimeError(f"{path}: {len(times)} batches\n{(hosts.folder / 'trainer.log').read_text()[-3000:]}")
    return Told(times, pace)


def _count(path: Path) -> int:
    return path.read_text().count("trained") if path.exists() else 0


@contextmanager
def open_cluster(preparing: int = 2) -> Iterator[Hosts]:
    """A head that trains, and so many hosts that prepare."""
    with tempfile.TemporaryDirectory(prefix="mx", dir="/tmp") as folder, Hosts(1 + preparing, Path(folder)) as hosts:
        hosts.start_ray(0, cpus=0)
        hosts.wait_for_ray()
        for number in range(1, 1 + preparing):
            hosts.start_ray(number)
        yield hosts


EVEN = Pace(0.05, 0.05)
SLOW_PREPARING = Pace(0.1, 0.01)


def measure(hosts: Hosts, batches: int) -> Iterator[tuple[str, str, str, bool]]:
    """Scenario, figure, bar, and whether it was reached. The last one leaves a host without power."""
    overlap = run_on(hosts, EVEN, batches, 1).overlap
    yield "one preparer on another host, 50 / 50 ms: overlap", f"{overlap:.3f}", ">= 0.97", overlap >= 0.97
    one, two = (run_on(hosts, SLOW_PREPARING, batches, count).per_s for count in (1, 2))
    yield "two preparers against one, 100 / 10 ms", f"{two / one:.2f} x", ">= 1.7 x", two >= 1.7 * one
    gap_s = run_on(hosts, EVEN, batches, 2, lambda: _kill_actor(hosts)).gap_s
    yield "a preparer is killed: gap", f"{gap_s:.2f} s", "<= 2 s", gap_s <= 2
    gap_s = run_on(hosts, EVEN, batches + 400, 2, lambda: _cut_for(hosts, 1, 10.0)).gap_s
    yield "a cable is out for 10 s: gap", f"{gap_s:.2f} s", "<= 6 s", gap_s <= 6
    hosts.restart_ray(1)
    hosts.shape(1000)
    overlap = run_on(hosts, EVEN, batches, 2).overlap
    yield "two preparers, 1 Gbit/s, 50 / 50 ms: overlap", f"{overlap:.3f}", "told", True
    gap_s = run_on(hosts, EVEN, batches + 200, 2, lambda: hosts.lose_power(2)).gap_s
    yield "a host loses its power: gap", f"{gap_s:.2f} s", "<= 6 s", gap_s <= 6


def _kill_actor(hosts: Hosts) -> None:
    killed = sum(hosts.kill(number, "ray::Preparer") for number in (1,))
    assert killed, "there is no preparer on host 1"


def _cut_for(hosts: Hosts, number: int, seconds: float) -> None:
    hosts.cut(number)
    time.sleep(seconds)
    hosts.mend(number)


def main(words: Sequence[str]) -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("address", nargs="?", help=argparse.SUPPRESS)
    parser.add_argument("--train", type=json.loads, help=argparse.SUPPRESS)
    parser.add_argument("--count", type=int, default=1, help=argparse.SUPPRESS)
    parser.add_argument("--told", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--batches", type=int, default=300, help="in each scenario (default: 300)")
    arguments = parser.parse_args(words)
    if arguments.train is not None:
        with open(arguments.told, "w", encoding="utf-8") as file:

            def tell(line: dict[str, Any]) -> None:
                file.write(json.dumps(line) + "\n")
                file.flush()

            train_paced(arguments.address, Pace(**arguments.train), arguments.batches, arguments.count, tell)
        return
    obstacle = find_obstacle()
    if obstacle is not None:
        sys.exit(f"There can be no hosts here: {obstacle}.")
    with tell_machine(), open_cluster() as hosts:
        for title, figure, bar, is_met in measure(hosts, arguments.batches):
            print_row(WIDTHS, title, figure, bar, judge(is_met))


if __name__ == "__main__":
    run_bench(main)
