"""`myxtts train`: flags -> configuration -> device plan -> (only then TensorFlow) -> training."""

from __future__ import annotations

import argparse
import os
import shlex
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from myxtts.cli.output import check_cluster, check_corpora, check_models, tell
from myxtts.cli.parser import Parser, spell_command
from myxtts.cluster.ray_setup import LOCAL
from myxtts.cluster.trainers import find_trainer
from myxtts.config import XTTSConfig, resolve_config
from myxtts.config.sources import CONFIGURATION, add_setting_flags, format_config
from myxtts.errors import MachineError, UserError
from myxtts.processes import die_with_parent, enter_private_network

if TYPE_CHECKING:
    from myxtts.errors import RunStoppedError
    from myxtts.training.listening import Spoken
    from myxtts.training.mode import PlannedRun
    from myxtts.training.trainer import XTTSTrainer

PLAYERS = ("paplay", "aplay", "ffplay", "play", "afplay")


def add_flags(parser: Parser) -> None:
    command = " ".join(spell_command(parser.prog, ["--train-data", "my_corpus"]))
    parser.description = (
        "Train XTTS. Without GPU flags: one GPU, or the CPU where there is none. Flags win over YAML, YAML over "
        f"presets.\n\n  {command} --checkpoint-dir runs/voice\n  {command} --data-gpu 0 --model-gpu 1"
    )
    groups = add_setting_flags(parser)
    parser._optionals.title = "the flags that matter in most runs"
    groups[CONFIGURATION].add_argument(
        "--print-config", action="store_true", help="show every setting and where it comes from, and stop"
    )
    groups[CONFIGURATION].add_argument(
        "--print-plan", action="store_true", help="show which device does which job, and stop"
    )


def run(arguments: argparse.Namespace) -> int:
    config = resolve_config(flags=arguments.given, yaml_path=arguments.config)
    if arguments.print_config:
        print(format_config(config))
        return 0
    trainer = find_trainer(os.environ)
    is_worker, command = trainer is not None, arguments.pasted if trainer is None else trainer.command
    if is_worker:
        die_with_parent(sys.stdin.fileno())
    check_cluster(config)
    if config.training.trainers > 1:
        from myxtts.training.resume_rules import refuse_settings

        refuse_settings(config)
        if config.training.cluster == LOCAL and not is_worker and not arguments.print_plan:
            # Now: what follows imports NumPy, which starts threads.
            enter_private_network()
    if not arguments.print_plan:
        from myxtts.training.run_folder import check_run_folder

        check_corpora(config)
        check_models(config)
        # Of a cluster only the chief keeps the folder of the run.
        if not is_worker:
            check_run_folder(config)
    if config.training.trainers > 1 and not is_worker and not arguments.print_plan:
        return _drive(config, arguments.words, command)
    # Not imported above: --help needs none of it.
    from myxtts.cli.devices import format_plan
    from myxtts.devices.machine import prepare_environment
    from myxtts.errors import RunStoppedError
    from myxtts.training.mode import format_choice, plan_run
    from myxtts.training.stopping import stops_politely

    prepare_environment(os.environ)
    try:
        with stops_politely(config, command, "while the mode was chosen"):
            planned = plan_run(config, command, tell=tell)
    except RunStoppedError as stopped:
        return _report_stop(stopped, is_worker)
    if planned.choice is not None:
        print(f"{format_choice(planned.choice)}\n")
    print(format_plan(planned.plan), flush=True)
    if arguments.print_plan:
        return 0
    return _train(config, planned, command, is_worker=is_worker)


def _drive(config: XTTSConfig, words: Sequence[str], command: Sequence[str]) -> int:
    """Trains with several trainers of a cluster."""
    from myxtts.cluster.trainers import train_on_cluster
    from myxtts.training.stopping import StopNow, StopRequests, explain_stop

    print(f"Mode    cluster: {config.training.trainers} trainers share every batch, on the machines of Ray", flush=True)
    resume = f"Resume  {shlex.join(word for word in command if word != '--reset-training')}"
    try:
        with StopRequests() as stop:
            code = train_on_cluster(config, words, command, lambda at, line: print(f"[{at}] {line}", flush=True), stop)
    except StopNow:
        assert stop.signal is not None
        # Like those of its trainers, its code tells a job that moves from one that is done.
        return _report_stop(explain_stop(config, command, stop.signal, doing="while trainers started"), is_worker=True)
    except MachineError:
        print(resume, flush=True)
        raise
    # The very command cannot go on where what it asks for was refused.
    if code not in (0, UserError.exit_code):
        print(resume, flush=True)
    return code


def _train(config: XTTSConfig, planned: PlannedRun, command: Sequence[str], *, is_worker: bool) -> int:
    from myxtts.devices.machine import read_machine, reuse_compiled
    from myxtts.devices.plan import choose_xla
    from myxtts.errors import RunFinishedError, RunStoppedError, choose_exit_code
    from myxtts.monitoring.summary import format_summary
    from myxtts.training.stopping import stops_politely
    from myxtts.utils.commons import setup_logging

    if choose_xla(config, planned.plan) and planned.plan.serves_xla:
        for card in read_machine().cards:
            if card.physical_id == planned.plan.model.physical_id:
                reuse_compiled(os.environ, card)
    try:
        with stops_politely(config, command, "while TensorFlow was imported"):
            trainer = import_trainer()
        setup_logging()
        result = trainer(config, plan=planned.plan, command=command, choice=planned.choice).train()
    except RunFinishedError as finished:
        # No failure: a job that is started again has nothing left to do.
        print(finished)
        _tell_sound(finished.folder)
        return 0
    except RunStoppedError as stopped:
        return _report_stop(stopped, is_worker)
    stage = result.stage
    print(f"\n{format_summary(stage.summary)}\n")
    print(f"Run     {stage.folder}: {stage.ending.reason} ({stage.step} updates)")
    print(f"Report  {stage.report}")
    print(f"Curves  {spell_program('tensorboard')} --logdir {shlex.quote(str(stage.board))}")
    _tell_sound(stage.folder, result.spoken)
    if result.is_finished:
        return 0
    print(f"Resume  {result.resume_command}")
    return choose_exit_code(stage.ending.signal, is_worker=is_worker)


def spell_program(name: str) -> str:
    """How a program is started that was installed with this one: in an environment that is not active, by its path."""
    beside = Path(sys.executable).with_name(name)
    if shutil.which(name) or not beside.exists():
        return name
    return shlex.quote(str(beside.relative_to(Path.cwd()) if beside.is_relative_to(Path.cwd()) else beside))


def _tell_sound(folder: Path, spoken: Spoken | None = None) -> None:
    """Where a run's sound is, how to hear it here, and how to have something else said."""
    from myxtts.reports.pages import LISTENING_PAGE
    from myxtts.training.listening import SPOKEN_NAME

    path = folder / SPOKEN_NAME
    if spoken is not None:
        print(f'Spoken  {path}: "{spoken.text}"\n        {spoken.how}')
    if path.exists():
        player = next((name for name in PLAYERS if shutil.which(name)), None)
        quoted = shlex.quote(str(path))
        print(f"Play    {player} {quoted}" if player else f"Play    {path}, in any player: none was found here")
    if spoken is not None:
        words = ["--checkpoint", str(folder), "--reference", str(spoken.reference), "--text", "Good morning."]
        print(f"Say     {spell_program('myxtts')} synthesize {shlex.join(words)}")
    if (folder / LISTENING_PAGE).exists():
        print(f"Listen  {folder / LISTENING_PAGE}")


def import_trainer() -> type[XTTSTrainer]:
    """The trainer, with TensorFlow, which takes seconds."""
    from myxtts.training.trainer import XTTSTrainer

    return XTTSTrainer


def _report_stop(stopped: RunStoppedError, is_worker: bool) -> int:
    """Says where a signal stopped the run and how it goes on; returns the exit code."""
    from myxtts.errors import choose_exit_code

    print(f"\n{stopped}")
    if stopped.resume_command is not None:
        print(f"Resume  {stopped.resume_command}")
    return choose_exit_code(stopped.signal, is_worker=is_worker)
