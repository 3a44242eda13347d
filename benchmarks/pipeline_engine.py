"""How much of the slowest stage's speed the pipeline keeps: `python benchmarks/pipeline_engine.py [--json FILE]`.

The stages are paced: each holds its place for a set time without using a processor, as a GPU would. So this measures the
hand-offs alone, and says nothing about what preparing or training costs.

Pipeline efficiency is the slowest stage's time alone, divided by the time per batch in the running pipeline.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import platform
import statistics
import subprocess
import sys
import time
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

import numpy as np  # noqa: E402  the project need not be installed, so its folder comes first

from myxtts.pipeline.checksum import compute_checksum  # noqa: E402
from myxtts.pipeline.handoff import EndOfStream, Handoff  # noqa: E402
from myxtts.pipeline.messages import TaskSpec  # noqa: E402
from myxtts.pipeline.producer_process import ProducerProcess  # noqa: E402
from myxtts.pipeline.ring import Ring, copy_arrays  # noqa: E402
from myxtts.pipeline.stage import Feed, Stage, stop_stages  # noqa: E402

BATCH_BYTES = 5 << 20
RATIOS = (0.5, 1.0, 2.0)
SLOWEST_S = (0.050, 0.010)
WARM_UP_BATCHES = 10
ALONE_ITEMS = 100
RING_ROUNDS = 40


@dataclass(frozen=True)
class Outcome:
    """One paced run."""

    engine: str
    slowest_ms: float
    ratio: float
    """Preparation time by training time."""
    alone_ms: float
    per_batch_ms: float
    efficiency: float
    variation: float
    """Of the time per batch: standard deviation by mean."""
    steal_percent: float


def hold(seconds: float) -> None:
    """Takes this long without using a processor."""
    time.sleep(seconds)


def make_batch() -> dict[str, np.ndarray]:
    generator = np.random.default_rng(0)
    codes = generator.integers(0, 1024, (32, 200), dtype=np.int32)
    mel = generator.standard_normal((BATCH_BYTES - codes.nbytes) // 4, dtype=np.float32)
    return {"codes": codes, "mel": mel}


class PacedTask:
    """A producer's task that takes a set time for each batch."""

    def __init__(self, settings: Mapping[str, Any], report_stage: Callable[[str], None]):
        self._seconds = settings["seconds"]
        self._batch = make_batch()

    def warm_up(self) -> None:
        pass

    def prepare(self, position: int) -> dict[str, np.ndarray]:
        if self._seconds:
            hold(self._seconds)
        return self._batch

    def count_rows(self, position: int) -> int:
        return 1

    def probe(self, position: int, rows: Sequence[int]) -> None:
        pass

    def set_aside(self, position: int, row: int) -> str:
        raise AssertionError("no batch of this task does harm")


def measure_alone(seconds: float) -> float:
    """The mean time a paced stage takes when nothing else runs."""
    started = time.perf_counter()
    for _ in range(ALONE_ITEMS):
        hold(seconds)
    return (time.perf_counter() - started) / ALONE_ITEMS


def consume(last: Handoff[Any], seconds: float) -> list[float]:
    """Takes everything, holding each batch for a time; the moments at which batches were done."""
    done = []
    while True:
        try:
            last.take()
        except EndOfStream:
            return done
        hold(seconds)
        last.release()
        done.append(time.perf_counter())


def run_in_process(prepare_s: float, train_s: float, batches: int) -> list[float]:
    """Prepare and transfer as threads of this process."""
    batch = make_batch()
    prepared: Handoff[dict[str, np.ndarray]] = Handoff("prepared")
    transferred: Handoff[dict[str, np.ndarray]] = Handoff("transferred")

    def prepare(_: int) -> dict[str, np.ndarray]:
        hold(prepare_s)
        return batch

    stages: list[Stage[Any, Any]] = [
        Stage("prepare", prepare, Feed(iter(range(batches))), prepared),
        Stage("transfer", lambda arrays: copy_arrays(arrays, np.array), prepared, transferred),
    ]
    return _run_stages(stages, transferred, train_s)


def run_isolated(prepare_s: float, train_s: float, batches: int) -> list[float]:
    """Prepare in a process of its own, transfer as a thread of this one."""
    transferred: Handoff[dict[str, np.ndarray]] = Handoff("transferred")
    with start_producer(prepare_s, batches) as producer:
        stage = Stage("transfer", lambda batch: copy_arrays(batch.arrays, np.array), producer, transferred)
        return _run_stages([stage], transferred, train_s)


def start_producer(prepare_s: float, batches: int) -> ProducerProcess:
    return ProducerProcess(
        TaskSpec("benchmarks.pipeline_engine:PacedTask", {"seconds": prepare_s}),
        slot_bytes=BATCH_BYTES + 4096,
        end_position=batches,
        environment={**os.environ, "PYTHONPATH": str(ROOT)},
    )


def _run_stages(stages: list[Stage[Any, Any]], last: Handoff[Any], train_s: float) -> list[float]:
    for stage in stages:
        stage.start()
    try:
        return consume(last, train_s)
    finally:
        stop_stages(stages)


ENGINES = {"in process": run_in_process, "isolated": run_isolated}


def measure_run(engine: str, slowest_s: float, ratio: float, batches: int) -> Outcome:
    prepare_s, train_s = (slowest_s, slowest_s / ratio) if ratio >= 1 else (slowest_s * ratio, slowest_s)
    ticks = read_ticks()
    before_s = measure_alone(slowest_s)
    done = ENGINES[engine](prepare_s, train_s, batches)[WARM_UP_BATCHES:]
    alone_s = (before_s + measure_alone(slowest_s)) / 2
    intervals = np.diff(done)
    per_batch_s = float(intervals.mean())
    return Outcome(
        engine=engine,
        slowest_ms=slowest_s * 1000,
        ratio=ratio,
        alone_ms=alone_s * 1000,
        per_batch_ms=per_batch_s * 1000,
        efficiency=alone_s / per_batch_s,
        variation=float(intervals.std()) / per_batch_s,
        steal_percent=compute_steal_percent(ticks, read_ticks()),
    )


def measure_ring() -> dict[str, float]:
    """Speed of each part of a hand-over, in GB/s, and of whole hand-overs between two processes."""
    batch = make_batch()
    reader = Ring.create(3, BATCH_BYTES + 4096)
    writer = Ring.attach(os.dup(reader.fileno()), reader.slots, reader.slot_bytes)
    content = writer.pack(0, batch)
    content_bytes = np.zeros(BATCH_BYTES, np.uint8)
    figures = {
        "CRC-32, for comparison": time_gb_per_s(lambda: zlib.crc32(content_bytes)),
        "checksum": time_gb_per_s(lambda: compute_checksum(content_bytes)),
        "pack (copy and checksum)": time_gb_per_s(lambda: writer.pack(0, batch)),
        "read (verify)": time_gb_per_s(lambda: reader.read(0, content)),
        "read and copy out": time_gb_per_s(lambda: copy_arrays(reader.read(0, content), np.array)),
    }
    reader.close()
    writer.close()
    with start_producer(0.0, 10 * RING_ROUNDS) as producer:
        moments = []
        for _ in range(10 * RING_ROUNDS):
            copy_arrays(producer.take().arrays, np.array)
            producer.release()
            moments.append(time.perf_counter())
    figures["process to process"] = BATCH_BYTES / statistics.median(np.diff(moments)) / 1e9
    return figures


def time_gb_per_s(action: Callable[[], Any]) -> float:
    """The median speed of an action on one batch."""
    seconds = []
    for _ in range(RING_ROUNDS):
        started = time.perf_counter()
        action()
        seconds.append(time.perf_counter() - started)
    return BATCH_BYTES / statistics.median(seconds) / 1e9


def read_ticks() -> list[int]:
    return [int(word) for word in Path("/proc/stat").read_text().split("\n", 1)[0].split()[1:9]]


def compute_steal_percent(before: list[int], after: list[int]) -> float:
    """Share of processor time that the host gave to other machines."""
    spent = [late - early for early, late in zip(before, after, strict=True)]
    return 100.0 * spent[7] / max(1, sum(spent))


@contextlib.contextmanager
def keep_busy(processes: int) -> Iterator[None]:
    """Keeps this many processors busy meanwhile."""
    spinners = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(processes)]
    try:
        yield
    finally:
        for spinner in spinners:
            spinner.kill()
            spinner.wait()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--batches", type=int, default=200)
    parser.add_argument("--busy", type=int, default=0, metavar="N", help="busy processes beside it (default: 0)")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the figures here as well")
    arguments = parser.parse_args()

    outcomes = []
    with keep_busy(arguments.busy):
        print(
            f"{'engine':<12} {'max(p,t)':>9} {'p/t':>5} {'alone':>9} {'per batch':>10} {'efficiency':>11} {'variation':>10} {'steal':>6}"
        )
        for slowest_s in SLOWEST_S:
            for ratio in RATIOS:
                for engine in ENGINES:
                    outcome = measure_run(engine, slowest_s, ratio, arguments.batches)
                    outcomes.append(outcome)
                    print(
                        f"{engine:<12} {outcome.slowest_ms:>6.0f} ms {ratio:>5} {outcome.alone_ms:>6.2f} ms {outcome.per_batch_ms:>7.2f} ms "
                        f"{outcome.efficiency:>11.3f} {outcome.variation:>10.3f} {outcome.steal_percent:>4.1f} %",
                        flush=True,
                    )
        ring = measure_ring()
    for name, speed in ring.items():
        print(f"{name:<26} {speed:6.2f} GB/s")
    load = os.getloadavg()
    print(
        f"load average {load[0]:.2f}, {load[1]:.2f}, {load[2]:.2f} on {os.cpu_count()} processors; {arguments.busy} busy processes"
    )
    if arguments.json:
        facts = {
            "machine": platform.platform(), "processors": os.cpu_count(), "python": platform.python_version(),
            "numpy": np.__version__, "load_average": load, "busy_processes": arguments.busy,
            "batch_bytes": BATCH_BYTES, "batches": arguments.batches,
            "paced": [asdict(outcome) for outcome in outcomes], "ring_gb_per_s": ring,
        }  # fmt: skip
        arguments.json.write_text(json.dumps(facts, indent=2) + "\n")


if __name__ == "__main__":
    main()
