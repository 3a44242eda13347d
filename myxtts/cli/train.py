"""`myxtts train`: flags -> configuration -> device plan -> (only then TensorFlow) -> training."""

from __future__ import annotations

import os
import shlex
import signal
from collections.abc import Sequence
from typing import TYPE_CHECKING

from myxtts.cli.parser import Parser
from myxtts.config import XTTSConfig, resolve_config
from myxtts.config.display import format_config
from myxtts.config.flags import add_setting_flags

if TYPE_CHECKING:
    from myxtts.devices.plan import DevicePlan


def build_parser(prog: str) -> Parser:
    """The parser of all training flags; none of them needs TensorFlow."""
    parser = Parser(
        prog=prog,
        description="Train XTTS. Without GPU flags: one GPU, or the CPU where there is none. Flags win over YAML, YAML over "
        "presets. What a yes/no flag turns on, its --no- form turns off.",
    )
    parser.add_argument(
        "--print-config", action="store_true", help="show every setting and where it comes from, and stop"
    )
    parser.add_argument("--print-plan", action="store_true", help="show which device does which job, and stop")
    add_setting_flags(parser)
    return parser


def run(words: Sequence[str], prog: str) -> int:
    arguments = build_parser(prog).parse_all(words)
    config = resolve_config(flags=arguments.given, yaml_path=arguments.config)
    if arguments.print_config:
        print(format_config(config))
        return 0
    command = (*(["python"] if prog.endswith(".py") else []), *prog.split(), *words)
    # Not imported above: --help needs none of it.
    from myxtts.cli.plan_view import format_plan
    from myxtts.devices.environment import prepare_environment
    from myxtts.devices.machine import read_machine
    from myxtts.devices.plan import PlanRequest, plan_devices

    prepare_environment(os.environ)
    plan = plan_devices(PlanRequest.from_config(config, command), read_machine())
    print(format_plan(plan), flush=True)
    return 0 if arguments.print_plan else _train(config, plan, command)


def _train(config: XTTSConfig, plan: DevicePlan, command: Sequence[str]) -> int:
    from myxtts.monitoring.listening_page import PAGE_NAME as LISTENING_PAGE
    from myxtts.monitoring.summary_view import format_summary
    from myxtts.training.errors import RunFinishedError
    from myxtts.training.trainer import XTTSTrainer
    from myxtts.utils.commons import setup_logging

    setup_logging()
    try:
        result = XTTSTrainer(config, plan=plan, command=command).train()
    except RunFinishedError as finished:
        # No failure: a job that is started again has nothing left to do.
        print(finished)
        return 0
    stage = result.stage
    print(f"\n{format_summary(stage.summary)}\n")
    print(f"Run     {stage.folder}: {stage.ending.reason} ({stage.step} updates)")
    print(f"Report  {stage.folder / 'report.html'}")
    if (stage.folder / LISTENING_PAGE).exists():
        print(f"Listen  {stage.folder / LISTENING_PAGE}")
    if result.spoken is not None:
        print(f'Spoken  {result.spoken.path}: "{result.spoken.text}"')
        print(f"        {result.spoken.how}")
    curves = config.training.tensorboard_log_dir or stage.folder / "tensorboard"
    print(f"Curves  tensorboard --logdir {shlex.quote(str(curves))}")
    if result.is_finished:
        return 0
    print(f"Resume  {result.resume_command}")
    return 0 if stage.ending.signal == signal.SIGTERM else 128 + signal.SIGINT
