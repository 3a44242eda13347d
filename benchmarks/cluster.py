"""Several trainers: one against two that share its batches, sums between two processes, what it takes to ask 1,000 preparers, and
what larger clusters would do.

One process trains on one core, two that share their batches on two, and two that do not know each other on two, in turn: the last is
what two cores of this machine can do. Takes some minutes. `--predict` prints what is arithmetic, and nothing else.
"""

from __future__ import annotations

import argparse
import itertools
import os
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from types import SimpleNamespace
from typing import Any, NamedTuple

from benchmarks.measuring import print_row, report_result, run_bench, run_together, tell_machine
from myxtts.cluster.preparer import Made
from myxtts.cluster.preparers import PreparerPool
from myxtts.cluster.trainers import TRAINER, TrainerSpec
from myxtts.errors import ClusterError
from myxtts.monitoring.metrics import TrainRow, read_metrics
from myxtts.pipeline.recipe import Kit
from myxtts.pipeline.threads import TimeLimits
from myxtts.processes import enter_private_network, make_importable
from myxtts.units import SAMPLE_RATE_HZ

PAIR = 2
SUM_MB, SUM_ROUNDS = (0, 1, 16, 64), 7
MYXTTS = "myxtts.cli.main"
SIMULATED_WORKERS, SIMULATED_GIGABITS = (1, 2, 4, 8, 16), (1, 10, 100)
BIG_GRADIENT_BYTES, BIG_STEP_S = 4 * 441e6, 2.0
"""Of the published GPT, in float32, and an assumed time of one worker for a batch of it."""
LATENCY_S = 50e-6
SCALES = ((1, 10), (10, 100), (100, 1000))
"""Trainers and preparers, each on a machine of its own."""
BATCH_BYTES, ACCUMULATION = 5e6, 8
"""Of what 32 clips become, as estimated; and batches of an update, as --grad-accum has it."""
PREPARER_LIFE_S, TRAINER_LIFE_S = 10 * 86400.0, 30 * 86400.0
"""Between two deaths of one machine, assumed."""
GAP_S, RESTART_S = 4.2, 120.0
"""Of the whole training: after a host of preparers lost its power, as measured once; after a trainer died, assumed, with half of the time
between two checkpoints."""
NODE_MESSAGES_PER_S, LOOK_S = 11.0, 3.0
"""From each node to the head: Ray's health check, here each second, and its report of resources, ten times a second at most. And how
often a trainer looks whether the head is there."""
ASKED_PREPARERS, ASKED_BATCHES = (1, 10, 100, 1000), 1000
_FIRST_PORT = 15000
"""In a network of its own all are free."""
TRAIN = ("train", "--rehearsal", "--mode", "single", "--no-speak", "--cache", "off", "--set", "data.num_workers=0",
         "--model-size", "tiny")  # fmt: skip
ROWS = "16"
"""Clips of a step, to each trainer."""
MOST_UNEVEN = 1.05
PIN = f"""\
import json, os
if told := os.environ.get("{TRAINER}"):
    cores = sorted(os.sched_getaffinity(0))
    os.sched_setaffinity(0, {{cores[json.loads(told)[1] % len(cores)]}})
"""
"""Run by every Python at its start: gives each trainer that Ray starts a core of its own, and so one thread, before anything counts them."""
RARE = ("--log-interval", "1", "--validation-interval", "100000", "--checkpoint-interval", "100000")


def main(words: Sequence[str]) -> None:
    if words[:1] == ["sum"]:
        time_sums(*words[1:])
        return
    parser = argparse.ArgumentParser(prog="benchmarks.cluster", description=__doc__)
    parser.add_argument("--steps", type=int, default=40, metavar="N", help="updates of each run (default: 40)")
    parser.add_argument("--rounds", type=int, default=2, metavar="N", help="runs of each kind (default: 2)")
    parser.add_argument("--predict", action="store_true", help="only what is computed and not measured")
    arguments = parser.parse_args(words)
    if arguments.predict:
        print_simulation()
        return
    enter_private_network()
    with tell_machine(), TemporaryDirectory(prefix="myxtts-bench-") as name:
        bench_trainers(Path(name), arguments.steps, arguments.rounds)
        bench_sums()
        bench_asking()
        print_simulation()


def bench_trainers(folder: Path, steps: int, rounds: int) -> None:
    codec = str(folder / "codec")
    run_together(
        MYXTTS, [[*TRAIN, "--batch-size", ROWS, "--stage", "codec", "--max-steps", "20", "--checkpoint-dir", codec]]
    )
    flags = [*TRAIN, *RARE, "--codec", codec, "--max-steps", str(steps)]
    (folder / "sitecustomize.py").write_text(PIN)
    rates: dict[str, list[float]] = {"one": [], "two runs": [], "two": []}
    for number in range(rounds):
        # In turn: what else the machine does falls on all.
        for kind, found in rates.items():
            found.append(time_trainers(folder, folder / f"{kind}-{number}", flags, kind))
    print(
        f"measured: sound trained on, with its padding; {ROWS} clips to a trainer and step, and a core to each trainer"
    )
    titles = {
        "one": "one trainer",
        "two runs": "two that do not know each other",
        "two": "two that share their batches",
    }
    for kind, found in rates.items():
        print_row((34, 0), titles[kind], ", ".join(f"{rate:.1f} s/s" for rate in found))
    gain, most = (median(rates[kind]) / median(rates["one"]) for kind in ("two", "two runs"))
    print(f"speed-up   {gain:.2f}x, where two cores have {most:.2f}x the work of one done", flush=True)
    if not most <= PAIR * MOST_UNEVEN or gain > most * MOST_UNEVEN:
        print("void       more than is possible: other work on the machine fell on one side more than on the other")
    print(flush=True)


def time_trainers(folder: Path, run: Path, flags: Sequence[str], kind: str) -> float:
    """Seconds of sound, with its padding, that are trained on in a second."""
    runs = [run] if kind != "two runs" else [run.with_name(f"{run.name}-{number}") for number in range(PAIR)]
    words = [[*flags, "--batch-size", ROWS, "--checkpoint-dir", str(each)] for each in runs]
    if kind == "two":
        shared = ["--batch-size", str(PAIR * int(ROWS)), "--cluster", "local", "--trainers", str(PAIR)]
        environ = make_importable({**os.environ, "PYTHONPATH": str(folder)})
        command = [sys.executable, "-P", "-m", MYXTTS, *words[0], *shared]
        subprocess.run(command, check=True, env=environ, stdout=subprocess.DEVNULL)
    else:
        run_together(MYXTTS, words)
    return sum(map(read_rate, runs))


def read_rate(run: Path) -> float:
    """Of the steps of a run that count."""
    rows = [row for row in read_metrics(run / "metrics.jsonl").rows if isinstance(row, TrainRow) and row.step_times_s]
    if not rows:
        raise ClusterError("None of the steps counts: the first ones trace their shapes. Give a larger --steps.")
    return sum(row.padded_samples for row in rows) / SAMPLE_RATE_HZ / sum(sum(row.step_times_s) for row in rows)


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


class PretendRay:
    """Actors that have made everything at once: what is left is the trainer's own work of asking and choosing."""

    exceptions = SimpleNamespace(RayError=RuntimeError)

    def __init__(self, head: str) -> None:
        self.answers: dict[int, Any] = {}
        actor = SimpleNamespace(
            begin=self._answer(lambda kit, rows: ("host", "a device")),
            prepare=self._answer(lambda number, replaced: Made({}, 0.0, 0.0)),
            close=self._answer(lambda: None),
        )
        self.remote = lambda kind: SimpleNamespace(options=lambda **needs: SimpleNamespace(remote=lambda: actor))
        self.get_runtime_context = lambda: SimpleNamespace(gcs_address=head)
        self.put = self.kill = lambda given: given
        self.get = self.answers.pop

    def _answer(self, make: Callable[..., Any]) -> Any:
        def ask(*given: Any) -> int:
            self.answers[ref := next(self._refs)] = make(*given)
            return ref

        return SimpleNamespace(remote=ask)

    _refs = itertools.count()

    def wait(self, refs: list[int], timeout: float, num_returns: int = 1) -> tuple[list[int], list[int]]:
        return refs[:num_returns], refs[num_returns:]


def bench_asking() -> None:
    print("\nmeasured: a trainer's own work for a batch of so many preparers, without Ray's and the network's")
    for count in ASKED_PREPARERS:
        print_row((42, 10), f"{count} preparers", f"{time_asking(count) * 1e3:.2f}", " ms")


def time_asking(count: int, batches: int = ASKED_BATCHES) -> float:
    """Seconds of a batch, once all preparers are ready."""
    with socket.create_server(("127.0.0.1", 0)) as head:
        ray = PretendRay(f"127.0.0.1:{head.getsockname()[1]}")
        pool = PreparerPool(ray, Kit({}, None, ""), range(batches), count, uses_gpu=False, limits=TimeLimits())
        while len(pool.list_preparers()) < count:
            pool._listen()
        began_s = time.perf_counter()
        for number in range(batches):
            assert pool.take().position == number
            pool.release()
        took_s = time.perf_counter() - began_s
        pool.close()
    return took_s / batches


class Scale(NamedTuple):
    """What a cluster would see, by arithmetic."""

    fed_mb_per_s: float
    """Batches that come to one trainer through the object store."""
    most_preparing_s: float
    """That a batch may take to prepare without anybody waiting."""
    gradients_gb: float
    """That one trainer sends for an update, and as much that it receives."""
    efficiency: float
    """Share of the time in which trainers compute, where every one has batches of its own."""
    lost_to_deaths: float
    """Share of the time."""
    head_messages_per_s: float


def predict_scale(trainers: int, preparers: int, gigabits_per_s: float) -> Scale:
    """Every trainer has batches of its own, of which several make an update; gradients are added up in a ring, then, and overlap nothing."""
    gradients = 2 * (trainers - 1) / trainers * BIG_GRADIENT_BYTES
    computed_s = ACCUMULATION * BIG_STEP_S
    update_s = computed_s + gradients * 8 / (gigabits_per_s * 1e9) + 2 * (trainers - 1) * LATENCY_S
    return Scale(
        fed_mb_per_s=ACCUMULATION * BATCH_BYTES / update_s / 1e6,
        most_preparing_s=preparers / trainers * update_s / ACCUMULATION,
        gradients_gb=gradients / 1e9,
        efficiency=computed_s / update_s,
        lost_to_deaths=preparers / PREPARER_LIFE_S * GAP_S + trainers / TRAINER_LIFE_S * RESTART_S,
        head_messages_per_s=(trainers + preparers) * NODE_MESSAGES_PER_S + trainers / LOOK_S,
    )


def print_scales() -> None:
    print(
        f"\nSIMULATED, not measured: the same model, {ACCUMULATION} batches of {BATCH_BYTES / 1e6:g} MB to each trainer for an update"
    )
    widths = (30, *[18] * len(SCALES))
    print_row(widths, "", *(f"{trainers} and {preparers}" for trainers, preparers in SCALES))
    for gigabits in SIMULATED_GIGABITS[1:]:
        scales = [predict_scale(*each, gigabits) for each in SCALES]
        print(f"{gigabits} Gbit/s to each machine")
        print_row(widths, "batches to one trainer", *(f"{each.fed_mb_per_s:.2f} MB/s" for each in scales))
        print_row(widths, "preparing may take", *(f"{each.most_preparing_s:.0f} s a batch" for each in scales))
        print_row(widths, "one trainer sends", *(f"{each.gradients_gb:.2f} GB an update" for each in scales))
        print_row(widths, "trainers compute", *(f"{each.efficiency:.1%}" for each in scales))
    print_row(widths, "lost to deaths", *(f"{each.lost_to_deaths:.2%}" for each in scales))
    print_row(widths, "the head hears", *(f"{each.head_messages_per_s:.0f} a second" for each in scales))


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
    print_scales()


def predict_speed_up(workers: int, gigabits_per_s: float) -> float:
    carried_s = 2 * (workers - 1) / workers * BIG_GRADIENT_BYTES * 8 / (gigabits_per_s * 1e9)
    return BIG_STEP_S / (BIG_STEP_S / workers + carried_s + 2 * (workers - 1) * LATENCY_S)


if __name__ == "__main__":
    run_bench(main)
