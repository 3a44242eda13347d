"""`myxtts profile`: where the time of a training step goes, and which stage limits it."""

from __future__ import annotations

import argparse
import os
from pathlib import Path

from myxtts.cli.output import check_corpora, check_models, check_writable, tell, write_asked
from myxtts.cli.parser import Parser
from myxtts.config import resolve_config
from myxtts.config.sources import add_setting_flags

STEPS = 100
FEWEST_STEPS = 5
SHOWN = {
    "data.train_data", "data.batch_size", "data.data_gpu", "data.model_gpu", "data.enable_memory_isolation",
    "data.data_gpu_memory", "data.model_gpu_memory", "data.num_workers", "data.pipeline_buffer_size", "data.cache",
    "data.mixed_precision", "data.enable_xla", "model.size", "training.mode", "training.codec",
    "training.init_from", "training.stage",
}  # fmt: skip
"""Settings whose flags stand in the help; those of all others are taken too."""


def add_flags(parser: Parser) -> None:
    parser.description = (
        "Profile your model on your data through the real pipeline, in a folder that is thrown away. All flags of "
        "`myxtts train` are taken, and none is needed."
    )
    parser.add_argument(
        "--num-steps", type=_read_steps, default=STEPS, metavar="N", help=f"batches to measure (default: {STEPS})"
    )
    parser.add_argument("--json", type=Path, metavar="FILE", help="write all figures as JSON; unknown values are null")
    parser.add_argument(
        "--html", type=Path, metavar="FILE", help="write the report as a page, with a timeline and a histogram"
    )
    parser.add_argument("--trace", type=Path, metavar="FILE", help="write a Chrome trace, for ui.perfetto.dev")
    add_setting_flags(parser, SHOWN)


def run(arguments: argparse.Namespace) -> int:
    config = resolve_config(flags=arguments.given, yaml_path=arguments.config)
    check_writable(arguments.json, arguments.html, arguments.trace)
    # Not imported above: --help needs none of it.
    from myxtts.cli.devices import format_plan
    from myxtts.devices.machine import prepare_environment, read_machine
    from myxtts.tuning import profile as profiling

    profiling.refuse_decoder(config)
    check_corpora(config)
    check_models(config)
    prepare_environment(os.environ)
    machine = read_machine()
    planned = profiling.plan_profile(config, machine, tell, arguments.pasted)
    print(f"{format_plan(planned.plan)}\n", flush=True)
    profile, verdict = profiling.measure_and_judge(planned, machine, arguments.num_steps, tell)
    print(f"\n{profiling.format_profile(profile, verdict)}")
    write_asked(arguments.json, "Figures ", lambda: profiling.format_json(profile, verdict) + "\n")
    write_asked(arguments.html, "Page    ", lambda: profiling.format_page(profile, verdict))
    where = " (open it at https://ui.perfetto.dev)"
    write_asked(arguments.trace, "Trace   ", lambda: profiling.format_trace(profile) + "\n", where)
    return 0


def _read_steps(text: str) -> int:
    if text.isascii() and text.isdigit() and int(text) >= FEWEST_STEPS:
        return int(text)
    raise argparse.ArgumentTypeError(f"must be a whole number of at least {FEWEST_STEPS}, but is {text!r}")
