"""`myxtts bench cluster`: one trainer against two that share its batches, on this machine, and what larger clusters would do."""

from __future__ import annotations

import json
import os
import shutil
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import median
from typing import Any

from myxtts.cli.parser import Parser
from myxtts.cli.telling import tell
from myxtts.cluster.errors import ClusterError
from myxtts.cluster.loopback import make_cluster_file
from myxtts.cluster.private_network import enter_private_network
from myxtts.cluster.process_group import Command, ProcessGroup
from myxtts.cluster.scaling import Network, predict_speed_up
from myxtts.devices.child_environment import make_importable

PAIR = 2
SIMULATED_WORKERS = (1, 2, 4, 8, 16)
SIMULATED_GIGABITS = (1, 10, 100)
BIG_GRADIENT_BYTES = 4 * 441e6
"""Of the published GPT, in float32."""
BIG_STEP_S = 2.0
"""An assumed time of one worker for a batch of it."""
_TRAIN = ("--rehearsal", "--mode", "single", "--no-speak", "--cache", "off", "--set", "data.num_workers=0")


def build_parser(prog: str) -> Parser:
    parser = Parser(
        prog=prog,
        description="Train the same batches with one process on one core and with two on two cores, in turn, measure the sums "
        "between two processes, and compute what larger clusters would gain. Takes some minutes.",
    )
    parser.add_argument("--model-size", default="tiny", metavar="SIZE", help="what is trained (default: tiny)")
    parser.add_argument("--batch-size", type=int, default=16, metavar="N", help="clips of a batch (default: 16)")
    parser.add_argument("--steps", type=int, default=40, metavar="N", help="updates of each run (default: 40)")
    parser.add_argument("--rounds", type=int, default=2, metavar="N", help="runs of each kind (default: 2)")
    parser.add_argument(
        "--open-ports",
        action="store_true",
        help="use the machine's own network, where a container allows no other",
    )
    parser.add_argument("--json", metavar="FILE", type=Path, help="also write all figures")
    return parser


def run(words: Sequence[str], prog: str) -> int:
    from myxtts.checkpoints.atomic_directory import open_scratch_folder

    arguments = build_parser(prog).parse_all(words)
    from myxtts.cli.bench_pipeline import describe_machine
    from myxtts.cli.files import check_writable, write_text
    from myxtts.cli.pipeline_page import format_machine

    if shutil.which("taskset") is None or len(os.sched_getaffinity(0)) < PAIR:
        raise ClusterError(
            "This bench gives every trainer a core of its own: it needs two cores and the program taskset."
        )
    if not arguments.open_ports:
        enter_private_network()
    figures: dict[str, Any] = {"machine": describe_machine(), "load_average_before": os.getloadavg()}
    check_writable(arguments.json)
    print(f"{format_machine(figures['machine'], figures['load_average_before'])}\n", flush=True)
    flags = ["--model-size", arguments.model_size, "--batch-size", str(arguments.batch_size)]
    with open_scratch_folder("bench") as folder:
        bench = _Bench(folder, [*_TRAIN, *flags], arguments.steps)
        figures |= bench.measure(arguments.rounds)
    if arguments.json:
        write_text(arguments.json, json.dumps(figures, indent=1) + "\n")
    print(format_figures(figures))
    return 0


class _Bench:
    """Runs trainers in a folder."""

    def __init__(self, folder: Path, flags: Sequence[str], steps: int):
        self._folder = folder
        self._flags = flags
        self._steps = steps

    def measure(self, rounds: int) -> dict[str, Any]:
        codec = self._folder / "codec"
        self._run([["train", *self._flags, "--stage", "codec", "--max-steps", "20", "--checkpoint-dir", str(codec)]])
        steps_s: dict[int, list[float]] = {1: [], PAIR: []}
        for number in range(rounds):
            # In turn: what else the machine does falls on both.
            for workers, found in steps_s.items():
                tell(f"round {number + 1} of {rounds}, {workers} trainer(s)")
                found.append(self._time_steps(self._folder / f"run-{workers}-{number}", codec, workers))
        tell("sums between two processes")
        return {
            "steps_s": {str(workers): found for workers, found in steps_s.items()},
            "speed_up": median(steps_s[1]) / median(steps_s[PAIR]),
            "exchange_s": self._time_sums(),
        }

    def _time_steps(self, run: Path, codec: Path, workers: int) -> float:
        """Median seconds of a step."""
        from myxtts.monitoring.metrics_log import read_metrics
        from myxtts.monitoring.metrics_rows import TrainRow

        words = [
            "train",
            *self._flags,
            "--codec",
            str(codec),
            "--max-steps",
            str(self._steps),
            "--checkpoint-dir",
            str(run),
        ]
        words += ["--log-interval", "1", "--validation-interval", "100000", "--checkpoint-interval", "100000"]
        flags = [[*words, *flags] for flags in self._list_cluster_flags(workers)]
        self._run(flags)
        rows = read_metrics(run / "metrics.jsonl").rows
        times_s = [time_s for row in rows if isinstance(row, TrainRow) for time_s in row.step_times_s]
        if not times_s:
            raise ClusterError(
                f"None of {self._steps} steps counts: the first ones trace their shapes. Give a larger --steps."
            )
        return median(times_s)

    def _list_cluster_flags(self, workers: int) -> list[list[str]]:
        if workers == 1:
            return [[]]
        path = self._folder / "cluster.yaml"
        path.write_text(make_cluster_file(workers), encoding="utf-8")
        return [["--cluster", str(path), "--worker-index", str(index)] for index in range(workers)]

    def _time_sums(self) -> dict[str, float]:
        from myxtts.cluster import exchange_bench

        path = self._folder / "cluster.yaml"
        path.write_text(make_cluster_file(PAIR), encoding="utf-8")
        commands = [[str(path), str(index)] for index in range(PAIR)]
        said = self._run(commands, module=exchange_bench.__name__)
        line = next(line for line in said if line.startswith(exchange_bench.RESULT_MARK))
        found: dict[str, float] = json.loads(line.removeprefix(exchange_bench.RESULT_MARK))
        return found

    def _run(self, commands: Sequence[Sequence[str]], module: str = "myxtts.cli.main") -> list[str]:
        """What processes say, each of which has a core of its own."""
        cores = sorted(os.sched_getaffinity(0))
        said: list[str] = []
        environ = make_importable(os.environ)
        pinned = [
            Command(["taskset", "-c", str(core), sys.executable, "-P", "-m", module, *words], environ)
            for core, words in zip(cores, commands, strict=False)
        ]
        codes = ProcessGroup(pinned, tell=lambda index, line: said.append(line)).run()
        if any(codes):
            raise ClusterError("A trainer of the bench failed:\n" + "\n".join(said[-20:]))
        return said


def format_figures(figures: Mapping[str, Any]) -> str:
    """What was measured, and behind it, marked as such, what was only computed."""
    steps_s = figures["steps_s"]
    lines = ["measured: the same global batch", "trainers   step, each run"]
    lines += [
        f"{workers:>8}   {', '.join(f'{step_s * 1e3:.0f} ms' for step_s in found)}"
        for workers, found in steps_s.items()
    ]
    lines += [
        f"speed-up   {figures['speed_up']:.2f}x of at most {PAIR}x",
        "",
        "measured: a sum over two processes by gRPC",
    ]
    for size, seconds in figures["exchange_s"].items():
        what = "six numbers over the chief" if size == "link" else f"{size} MB of gradients"
        lines.append(f"{what:<28} {seconds * 1e3:>9.2f} ms")
    lines += ["", f"SIMULATED, not measured: speed-up of a model of {BIG_GRADIENT_BYTES / 1e9:.1f} GB of gradients"]
    lines += [f"whose batch takes one worker {BIG_STEP_S:g} s (assumed), one update per batch"]
    lines += ["workers " + "".join(f"{gigabits:>6} Gbit/s" for gigabits in SIMULATED_GIGABITS)]
    for workers in SIMULATED_WORKERS:
        gains = [
            predict_speed_up(workers, BIG_STEP_S, BIG_GRADIENT_BYTES, Network.from_gigabits(gigabits))
            for gigabits in SIMULATED_GIGABITS
        ]
        lines.append(f"{workers:>7} " + "".join(f"{gain:>12.2f}x" for gain in gains))
    return "\n".join(lines)
