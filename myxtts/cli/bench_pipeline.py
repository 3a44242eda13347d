"""`myxtts bench pipeline`: what the hand-offs, the ring, the modes and the watch cost on this machine."""

from __future__ import annotations

import json
import os
import platform
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from myxtts.cli.parser import Parser

if TYPE_CHECKING:
    from myxtts.training.benches.pipeline import ModelCases, ModelOutcome, WatchOutcome

PARTS = {
    "a": "hand-offs, with stages that only take time",
    "b": "the tiny model on two cores: series, dual, isolated, tf.data",
    "c": "the ring in shared memory",
    "d": "the cost of watching a run",
}


def build_parser(prog: str) -> Parser:
    parser = Parser(
        prog=prog,
        description="Measure the pipeline. "
        + "; ".join(f"{part}: {what}" for part, what in PARTS.items())
        + ". All parts take about six minutes on an idle machine with two cores.",
    )
    parser.add_argument(
        "--part", action="append", choices=sorted(PARTS), help="measure only this part; may be given more than once"
    )
    parser.add_argument("--json", metavar="FILE", type=Path, help="also write all figures")
    return parser


def run(words: Sequence[str], prog: str) -> int:
    arguments = build_parser(prog).parse_all(words)
    parts = set(arguments.part or PARTS)
    # Not imported above: --help needs none of it.
    from myxtts.cli import pipeline_page as page
    from myxtts.cli.files import check_writable, write_text
    from myxtts.devices.environment import VISIBLE_DEVICES
    from myxtts.training.benches.pipeline import ModelCases

    # Rehearsal needs no GPU, and the processes started here must not take the memory of one.
    os.environ[VISIBLE_DEVICES] = ""
    figures: dict[str, Any] = {"machine": describe_machine(), "load_average_before": os.getloadavg()}
    check_writable(arguments.json)
    _show(page.format_machine(figures["machine"], figures["load_average_before"]))
    if "a" in parts:
        figures["a"] = _bench_hand_offs()
    if parts & {"b", "d"}:
        model, watch = _bench_model(ModelCases(), parts)
        if model is not None:
            figures["b"] = {**asdict(model), **page.list_model_figures(model)}
            _show(page.format_model(model))
        if watch is not None:
            figures["d"] = {**asdict(watch), "cost": watch.cost}
            _show(page.format_watch(watch))
    if "c" in parts:
        figures["c"] = _bench_ring()
    figures["load_average_after"] = os.getloadavg()
    _show(page.format_load("after", figures["load_average_after"]))
    if arguments.json:
        write_text(arguments.json, json.dumps(figures, indent=1) + "\n")
        print(f"Figures  {arguments.json}")
    return 0


def describe_machine() -> dict[str, Any]:
    """What the figures depend on, besides how busy the machine is."""
    from importlib.metadata import version

    return {
        "system": platform.platform(),
        "processor": _read_processor_name(),
        "cores": len(os.sched_getaffinity(0)),
        "python": platform.python_version(),
        "tensorflow": version("tensorflow"),
        "numpy": version("numpy"),
    }


def _bench_hand_offs() -> list[dict[str, Any]]:
    from myxtts.cli import pipeline_page as page
    from myxtts.pipeline.paced_bench import PacedCases, bench_pacing

    cases = PacedCases()
    print(page.format_paced_head(cases), flush=True)
    outcomes = []
    for outcome in bench_pacing(cases):
        outcomes.append(outcome)
        print(page.format_paced_row(outcome), flush=True)
    print(page.format_paced_foot(outcomes), flush=True)
    return [{**asdict(outcome), "efficiency": outcome.efficiency} for outcome in outcomes]


def _bench_model(cases: ModelCases, parts: set[str]) -> tuple[ModelOutcome | None, WatchOutcome | None]:
    from myxtts.checkpoints.atomic_directory import open_scratch_folder
    from myxtts.training.benches.pipeline import ModelBench

    with open_scratch_folder("bench") as folder, ModelBench(folder) as bench:
        model = bench.measure_pipelines(cases) if "b" in parts else None
        watch = bench.measure_watch(cases) if "d" in parts else None
    return model, watch


def _bench_ring() -> dict[str, Any]:
    from myxtts.cli import pipeline_page as page
    from myxtts.pipeline.ring_bench import bench_ring

    speed = bench_ring()
    _show(page.format_ring(speed))
    return asdict(speed)


def _show(text: str) -> None:
    print(f"{text}\n", flush=True)


def _read_processor_name() -> str | None:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return None
    return next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), None)
