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
    from myxtts.training.benches.planner import PlannerOutcome


def build_parser(prog: str) -> Parser:
    parser = Parser(
        prog=prog,
        description="Let the planner of --mode auto choose from a short measurement, then try every mode and compare. Stages hold "
        "their device for a set time without using the CPU, so no GPU is needed. Takes about five minutes on an idle machine.",
    )
    parser.add_argument("--json", metavar="FILE", type=Path, help="also write all figures")
    return parser


def run(words: Sequence[str], prog: str) -> int:
    arguments = build_parser(prog).parse_all(words)
    # Not imported above: --help needs none of it.
    from myxtts.cli.bench_pipeline import describe_machine
    from myxtts.cli.files import check_writable, write_text
    from myxtts.cli.pipeline_page import format_load, format_machine
    from myxtts.training.benches.planner import PlannerCases, bench_planner

    figures: dict[str, Any] = {"machine": describe_machine(), "load_average_before": os.getloadavg()}
    check_writable(arguments.json)
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
            "Prepare, copy and train hold their device for so many ms per batch; half:",
            "training with half the clips; exch: the exchange of gradients, where both",
            "devices train. Codes are a part of preparing that is done in the first of ep",
            "epochs only, if they are kept (*). The planner takes a mode from a short",
            "measurement; then every mode runs for longer. Lost: what its choice costs over",
            "the fastest.",
            "",
            "                                            a batch, ms",
            "prep codes copy train half exch  ep  takes predict reached  fastest lost",
        ]
    )


def format_row(outcome: PlannerOutcome) -> str:
    """A workload in a line of the table."""
    from myxtts.cli.pipeline_page import judge
    from myxtts.training.benches.planner import MOST_REGRET

    work, chosen = outcome.workload, outcome.chosen
    verdict = judge(outcome.regret <= MOST_REGRET, outcome.is_quiet)
    return (
        f"{work.prepare_ms:>4g}{work.codes_ms:>6g}{work.transfer_ms:>5g}{work.train_ms:>6g}{work.train_ms * work.half_share:>5g}"
        f"{work.exchange_ms:>5g}{work.epochs:>4}  {_shorten(chosen):<6}{outcome.predicted_ms[chosen]:>7.1f}{outcome.reached_ms[chosen]:>8.1f}"
        f"  {_shorten(outcome.best):<7}{outcome.regret:>5.1%} {verdict}"
    )


def _shorten(name: str) -> str:
    """A candidate in few letters; a star stands for kept codes."""
    layout, _, codes = name.partition(", ")
    return f"{'parallel' if layout == 'data-parallel' else layout:.4}{'*' if codes else ''}"


def format_foot(outcomes: Sequence[PlannerOutcome]) -> str:
    """What the table says, and how quiet the machine was."""
    from myxtts.data.throughput import MOST_STEAL
    from myxtts.training.benches.planner import MOST_REGRET

    judged = [outcome for outcome in outcomes if outcome.is_quiet]
    met = sum(outcome.regret <= MOST_REGRET for outcome in judged)
    return "\n".join(
        [
            f"Target   at most {MOST_REGRET:.0%} lost: {met} of {len(judged)} met, worst "
            f"{max((outcome.regret for outcome in judged), default=0.0):.1%}",
            f"Windows  {sum(outcome.discarded for outcome in outcomes)} discarded for more than {MOST_STEAL:.0%} steal",
        ]
    )
