"""`myxtts train`: flags -> configuration -> device plan -> (only then TensorFlow) -> training."""

from __future__ import annotations

import json
import os
import shlex
from collections.abc import Sequence
from typing import TYPE_CHECKING

from myxtts.cli.parser import Parser
from myxtts.cli.telling import tell
from myxtts.cluster.spec import LAUNCH_COMMAND, find_cluster
from myxtts.config import XTTSConfig, resolve_config
from myxtts.config.display import format_config
from myxtts.config.flags import add_setting_flags

if TYPE_CHECKING:
    from myxtts.training.auto_mode import PlannedRun


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
    command = _find_command(words, prog)
    is_worker = _check_cluster(config)
    if config.training.model_gpus is not None and not arguments.print_plan and not is_worker:
        return _train_parallel(config, config.training.model_gpus, words, command)
    # Not imported above: --help needs none of it.
    from myxtts.cli.plan_view import format_plan
    from myxtts.devices.environment import prepare_environment
    from myxtts.training.auto_mode import plan_run
    from myxtts.training.mode_choice import format_choice

    prepare_environment(os.environ)
    planned = plan_run(config, command, tell=tell)
    if planned.choice is not None:
        print(f"{format_choice(planned.choice)}\n")
    print(format_plan(planned.plan), flush=True)
    return 0 if arguments.print_plan else _train(config, planned, command)


def _find_command(words: Sequence[str], prog: str) -> tuple[str, ...]:
    """The words that started the run, with whatever started this worker of it."""
    launched_as = os.environ.get(LAUNCH_COMMAND)
    if launched_as is not None:
        return tuple(json.loads(launched_as))
    return (*(["python"] if prog.endswith(".py") else []), *prog.split(), *words)


def _check_cluster(config: XTTSConfig) -> bool:
    """Whether this process is to be a worker of a cluster. What such a run cannot be is refused before TensorFlow is loaded."""
    from myxtts.training.cluster_rules import refuse_settings

    training = config.training
    is_worker = find_cluster(training.cluster, training.worker_index, os.environ) is not None
    if is_worker or training.model_gpus is not None:
        refuse_settings(config)
    return is_worker


def _train_parallel(config: XTTSConfig, ids: str, words: Sequence[str], command: Sequence[str]) -> int:
    """Data-parallel training on cards of this machine: a worker for each."""
    from myxtts.cli.launch import launch, parse_ids

    gpus = parse_ids(ids)
    is_real = not config.training.rehearsal
    print(f"Mode    parallel: {len(gpus)} workers, one for each of the GPUs {ids}", flush=True)
    return launch(words, len(gpus), gpus=gpus if is_real else None, open_ports=False, launched_as=command)


def _train(config: XTTSConfig, planned: PlannedRun, command: Sequence[str]) -> int:
    from myxtts.devices.import_watch import watch_import
    from myxtts.monitoring.listening_page import PAGE_NAME as LISTENING_PAGE
    from myxtts.monitoring.summary_view import format_summary
    from myxtts.training.errors import RunFinishedError, RunStoppedError, choose_exit_code
    from myxtts.utils.commons import setup_logging

    with watch_import():
        from myxtts.training.trainer import XTTSTrainer

    setup_logging()
    try:
        result = XTTSTrainer(config, plan=planned.plan, command=command, choice=planned.choice).train()
    except RunFinishedError as finished:
        # No failure: a job that is started again has nothing left to do.
        print(finished)
        return 0
    except RunStoppedError as stopped:
        print(f"\n{stopped}")
        if stopped.resume_command is not None:
            print(f"Resume  {stopped.resume_command}")
        return stopped.exit_code
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
    return choose_exit_code(stage.ending.signal)
