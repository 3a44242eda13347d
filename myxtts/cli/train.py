"""`myxtts train`: flags -> configuration -> device plan -> (only then TensorFlow) -> training."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence

from myxtts.cli.parser import Parser
from myxtts.config import XTTSConfig, resolve_config
from myxtts.config.display import format_config
from myxtts.config.flags import add_setting_flags
from myxtts.errors import NotBuiltYetError


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


def _plan(config: XTTSConfig, command: Sequence[str]) -> str:
    # Not imported above: --help needs none of it.
    from myxtts.cli.plan_view import format_plan
    from myxtts.devices.environment import prepare_environment
    from myxtts.devices.machine import read_machine
    from myxtts.devices.plan import PlanRequest, plan_devices

    prepare_environment(os.environ)
    return format_plan(plan_devices(PlanRequest.from_config(config, command), read_machine()))


def run(words: Sequence[str], prog: str) -> int:
    arguments = build_parser(prog).parse_all(words)
    config = resolve_config(flags=arguments.given, yaml_path=arguments.config)
    if arguments.print_config:
        print(format_config(config))
        return 0
    command = (*(["python"] if prog.endswith(".py") else []), *prog.split(), *words)
    print(_plan(config, command))
    if arguments.print_plan:
        return 0
    sys.stdout.flush()
    raise NotBuiltYetError(
        "training is not built yet: this version reads settings, plans devices and prints both. Nothing was trained."
    )
