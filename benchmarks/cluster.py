"""Several trainers: one against two that share its batches, sums between two processes, and what larger clusters would do.

The same batches are trained by one process on one core and by two on two cores, in turn. Takes some minutes.
"""

from __future__ import annotations

import argparse
import itertools
import os
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory

from benchmarks.measuring import print_row, report_result, run_bench, run_together, tell_machine
from myxtts.cluster.trainers import TrainerSpec, enter_private_network
from myxtts.errors import ClusterError
from myxtts.monitoring.metrics import TrainRow, read_metrics
from myxtts.processes import make_importable

PAIR = 2
SUM_MB, SUM_ROUNDS = (0, 1, 16, 64), 7
MYXTTS = "myxtts.cli.main"
SIMULATED_WORKERS, SIMULATED_GIGABITS = (1, 2, 4, 8, 16), (1, 10, 100)
BIG_GRADIENT_BYTES, BIG_STEP_S = 4 * 441e6, 2.0
"""Of the published GPT, in float32, and an assumed time of one worker for a batch of it."""
LATENCY_S = 50e-6
_FIRST_PORT = 15000
"""In a network of its own all are free."""
TRAIN = ("train", "--rehearsal", "--mode", "single", "--no-speak", "--cache", "off", "--set", "data.num_workers=0",
         "--model-size", "tiny", "--batch-size", "16")  # fmt: skip
RARE = ("--log-interval", "1", "--validation-interval", "100000", "--checkpoint-interval", "100000")


def main(words: Sequence[str]) -> None:
    if words[:1] == ["sum"]:
        time_sums(*words[1:])
        return
    parser = argparse.ArgumentParser(prog="benchmarks.cluster", description=__doc__)
    parser.add_argument("--steps", type=int, default=40, metavar="N", help="updates of each run (default: 40)")
    parser.add_argument("--rounds", type=int, default=2, metavar="N", help="runs of each kind (default: 2)")
    arguments = parser.parse_args(words)
    enter_private_network()
    with tell_machine(), TemporaryDirectory(prefix="myxtts-bench-") as name:
        bench_trainers(Path(name), arguments.steps, arguments.rounds)
        bench_sums()
        print_simulation()


def bench_trainers(folder: Path, steps: int, rounds: int) -> None:
    codec = str(folder / "codec")
    run_together(MYXTTS, [[*TRAIN, "--stage", "codec", "--max-steps", "20", "--checkpoint-dir", codec]])
    flags = [*TRAIN, *RARE, "--codec", codec, "--max-steps", str(steps)]
    steps_s: dict[int, list[float]] = {1: [], PAIR: []}
    for number in range(rounds):
        # In turn: what else the machine does falls on both.
        for workers, found in steps_s.items():
            found.append(time_steps(folder / f"run-{workers}-{number}", flags, workers))
    print("measured: the same global batch\ntrainers   step, each run")
    for workers, found in steps_s.items():
        print(f"{workers:>8}   {', '.join(f'{step_s * 1e3:.0f} ms' for step_s in found)}")
    print(f"speed-up   {median(steps_s[1]) / median(steps_s[PAIR]):.2f}x of at most {PAIR}x\n", flush=True)


def time_steps(run: Path, flags: Sequence[str], workers: int) -> float:
    """Median seconds of a step."""
    words = [*flags, "--checkpoint-dir", str(run)]
    if workers == 1:
        run_together(MYXTTS, [words])
    else:
        cluster = [sys.executable, "-P", "-m", MYXTTS, *words, "--cluster", "local", "--trainers", str(workers)]
        subprocess.run(cluster, check=True, env=make_importable(os.environ), stdout=subprocess.DEVNULL)
    rows = read_metrics(run / "metrics.jsonl").rows
    times_s = [time_s for row in rows if isinstance(row, TrainRow) for time_s in row.step_times_s]
    if not times_s:
        raise ClusterError("None of the steps counts: the first ones trace their shapes. Give a larger --steps.")
    return median(times_s)


def bench_sums() -> None:
    ports = [str(_FIRST_PORT + number) for number in range(PAIR)]
    found = run_together("benchmarks.cluster", [["sum", str(number), *ports] for number in range(PAIR)])
    print("measured: a sum over two processes by gRPC")
    for what, seconds in found.items():
        print_row((42, 10), what, f"{seconds * 1e3:.2f}", " ms")


def time_sums(index: str, *ports: str) -> None:
    """A trainer of two: median seconds of sums, and of a round of small numbers."""
    from myxtts.devices.machine import read_machine
    from myxtts.devices.plan import PlanRequest
    from myxtts.devices.planning import plan_devices
    from myxtts.devices.runtime import apply_plan

    apply_plan(plan_devices(PlanRequest(rehearsal=True), read_machine()))
    import tensorflow as tf

    from myxtts.cluster.exchange import Exchange

    spec = TrainerSpec(tuple(f"127.0.0.1:{port}" for port in ports), int(index), ())
    exchange, found = Exchange(spec, has_gpu=False), {}
    for size in SUM_MB:
        tensor = tf.zeros([max(1, size * 1_000_000 // 4)])
        found[f"{size} MB of gradients"] = time_rounds(lambda _, each=tensor: exchange.sum([each])[0].numpy())
    found["six numbers by the coordination service"] = time_rounds(lambda number: exchange.gather([1.0] * 6))
    if spec.is_chief:
        report_result(found)


def time_rounds(work: Callable[[int], object]) -> float:
    """Median seconds of a call."""
    # The first one traces.
    work(0)
    moments = [time.perf_counter()]
    for number in range(1, SUM_ROUNDS + 1):
        work(number)
        moments.append(time.perf_counter())
    return median(end - start for start, end in itertools.pairwise(moments))


def print_simulation() -> None:
    """Arithmetic only: with a fixed global batch, n workers compute an n-th of the rows each, and then add up the gradients in a
    ring: each sends and receives 2 (n - 1) / n times their size, in 2 (n - 1) messages. Nothing overlaps."""
    print(f"\nSIMULATED, not measured: speed-up of a model of {BIG_GRADIENT_BYTES / 1e9:.1f} GB of gradients")
    print(f"whose batch takes one worker {BIG_STEP_S:g} s (assumed), one update per batch")
    widths = (8, 13, 13, 13)
    print_row(widths, "workers", *(f"{gigabits} Gbit/s" for gigabits in SIMULATED_GIGABITS))
    for workers in SIMULATED_WORKERS:
        gains = (predict_speed_up(workers, gigabits) for gigabits in SIMULATED_GIGABITS)
        print_row(widths, f"{workers:>7}", *(f"{gain:.2f}x" for gain in gains))


def predict_speed_up(workers: int, gigabits_per_s: float) -> float:
    carried_s = 2 * (workers - 1) / workers * BIG_GRADIENT_BYTES * 8 / (gigabits_per_s * 1e9)
    return BIG_STEP_S / (BIG_STEP_S / workers + carried_s + 2 * (workers - 1) * LATENCY_S)


if __name__ == "__main__":
    run_bench(main)
