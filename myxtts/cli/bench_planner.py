"""`myxtts bench planner`: does `--mode auto` choose the fastest mode?"""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from myxtts.cli.parser import Parser

if TYPE_CHECKING:
    from myxtts.training.planner_bench import PlannerOutcome


def build_parser(prog: str) -> Parser:
    parser = Parser(
        prog=prog,
        description="Let the planner of --mode auto choose from a short measurement, then try every mode and compare. Stages hold "
        "their device for a set time without using the CPU, so no GPU is needed. Takes about two minutes on an idle machine.",
    )
    parser.add_argument("--json", metavar="FILE", type=Path, help="also write all figures")
    return parser


def run(words: Sequence[str], prog: str) -> int:
    arguments = build_parser(prog).parse_all(words)
    # Not imported above: --help needs none of it.
    from myxtts.cli.bench_pipeline import describe_machine
    from myxtts.cli.files import write_text
    from myxtts.cli.pipeline_page import format_load, format_machine
    from myxtts.training.planner_bench import PlannerCases, bench_planner

    figures: dict[str, Any] = {"machine": describe_machine(), "load_average_before": os.getloadavg()}
    if arguments.json:
        # Before minutes are spent on figures that could not be written.
        write_text(arguments.json, "")
    print(f"{format_machine(figures['machine'], figures['load_average_before'])}\n\n{format_head()}", flush=True)
    outcomes = []
    for outcome in bench_planner(PlannerCases()):
        outcomes.append(outcome)
        print(format_row(outcome), flush=True)
    figures["load_average_after"] = os.getloadavg()
    print(f"{format_foot(outcomes)}\n{format_load('after', figures['load_average_after'])}")
    if arguments.json:
        figures["workloads"] = [{**asdict(each), "best": each.best, "regret": each.regret} for each in outcomes]
        write_text(arguments.json, json.dumps(figures, indent=1) + "\n")
        print(f"Figures  {arguments.json}")
    return 0


def format_head() -> str:
    """What the table shows."""
    return "\n".join(
        [
            "Prepare, transfer and train hold their device for so many ms per batch. The",
            "planner predicts each mode (left) from a short measurement and takes one; then",
            "all run for longer (right). Lost: what its choice costs over the fastest.",
            "",
            "                      predicted, ms         reached, ms",
            "prep transf train  sing  dual  isol    sing  dual  isol  takes     lost",
        ]
    )


def format_row(outcome: PlannerOutcome) -> str:
    """A workload in a line of the table."""
    from myxtts.cli.pipeline_page import judge
    from myxtts.training.planner_bench import MOST_REGRET, TRIED

    work = outcome.workload
    prepare = f"{work.prepare_ms:g}" if not work.codes_ms else f"{work.prepare_ms:g}*"
    predicted, reached = (
        " ".join(f"{values[str(layout)]:5.1f}" for layout in TRIED)
        for values in (outcome.predicted_ms, outcome.reached_ms)
    )
    verdict = judge(outcome.regret <= MOST_REGRET, outcome.is_quiet)
    return (
        f"{prepare:>4}{work.transfer_ms:>7g}{work.train_ms:>6g} {predicted}   {reached}  {outcome.chosen:<8}"
        f"{outcome.regret:>5.1%} {verdict}"
    )


def format_foot(outcomes: Sequence[PlannerOutcome]) -> str:
    """What the table says, and how quiet the machine was."""
    from myxtts.data.throughput import MOST_STEAL
    from myxtts.training.planner_bench import MOST_REGRET

    judged = [outcome for outcome in outcomes if outcome.is_quiet]
    met = sum(outcome.regret <= MOST_REGRET for outcome in judged)
    kept = [
        f"{each.workload.codes_ms:g} of {each.workload.prepare_ms:g} ms" for each in outcomes if each.workload.codes_ms
    ]
    lines = [f"*        with codes kept, which saves {', then '.join(kept)} of preparing"] if kept else []
    return "\n".join(
        [
            *lines,
            f"Target   at most {MOST_REGRET:.0%} lost: {met} of {len(judged)} met, worst "
            f"{max((outcome.regret for outcome in judged), default=0.0):.1%}",
            f"Windows  {sum(outcome.discarded for outcome in outcomes)} discarded for more than {MOST_STEAL:.0%} steal",
        ]
    )
