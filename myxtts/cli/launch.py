"""`myxtts launch`: a cluster of several trainers on this machine, started, shown and ended together."""

from __future__ import annotations

import argparse
import json
import os
import shlex
import sys
from collections.abc import Sequence

from myxtts.cli.output import check_run_paths
from myxtts.cli.parser import Parser
from myxtts.cluster.launch import make_cluster_file
from myxtts.cluster.spec import LAUNCH_COMMAND
from myxtts.config import resolve_config
from myxtts.config.settings import parse_gpu_ids
from myxtts.errors import CommandLineError, DevicePlanError, UserError

MOST_WORKERS = 64


def add_flags(parser: Parser) -> None:
    """The launcher's own flags; what follows the dashes is for the workers."""
    parser.description = (
        "Train with several processes of this machine, which share every batch. They talk over a network of their own, "
        "which nobody else can reach. If one dies, all end; started again, the run goes on from its last checkpoint."
    )
    parser.usage = f"{parser.prog} (--workers N | --gpus IDS) [--open-ports] -- train [flags]"
    parser.add_argument("--workers", type=int, metavar="N", help="how many processes train")
    parser.add_argument("--gpus", metavar="IDS", help="GPUs, as in 0,1: one process for each")
    parser.add_argument(
        "--open-ports",
        action="store_true",
        help="use the machine's own network: whoever has a login here can then reach TensorFlow's ports on loopback, which have no "
        "password",
    )
    parser.add_argument("command", nargs=argparse.REMAINDER, metavar="train ...", help="what every process runs")


def run(arguments: argparse.Namespace) -> int:
    prog = "myxtts launch"
    command = [word for place, word in enumerate(arguments.command) if place or word != "--"]
    if command[:1] != ["train"]:
        raise CommandLineError(
            f"`{prog}` starts trainers: give the command behind two dashes, as in `{prog} --workers 2 -- train --train-data DIR`."
        )
    if (arguments.workers is None) == (arguments.gpus is None):
        raise CommandLineError(f"`{prog}` needs either --workers or --gpus.")
    try:
        gpus = None if arguments.gpus is None else parse_gpu_ids(arguments.gpus)
    except ValueError as error:
        raise CommandLineError(f"--gpus {error}") from None
    workers = len(gpus) if gpus is not None else arguments.workers
    given = os.environ.get(LAUNCH_COMMAND)
    launched_as = arguments.pasted if given is None else json.loads(given)
    flags = [*command[1:], *(["--rehearsal"] if arguments.rehearsal else [])]
    return launch(flags, workers, gpus=gpus, open_ports=arguments.open_ports, launched_as=launched_as)


def launch(
    words: Sequence[str], workers: int, *, gpus: Sequence[int] | None, open_ports: bool, launched_as: Sequence[str]
) -> int:
    """Trains with several processes, and returns the exit code of the first that failed, or 0.

    Args:
        words: flags of `myxtts train`.
        gpus: a physical id for each worker; None where they have none, or what the machine's variables say.
        open_ports: whether TensorFlow may listen on the machine's own network.
        launched_as: the command that was given, to be shown as the way to resume.
    """
    from myxtts.cli.main import make_parser
    from myxtts.cluster.launch import Command, ProcessGroup, enter_private_network
    from myxtts.files import open_scratch_folder
    from myxtts.processes import make_importable
    from myxtts.training.resume_rules import refuse_settings

    if not 2 <= workers <= MOST_WORKERS:
        raise CommandLineError(f"The number of workers must be from 2 to {MOST_WORKERS}, but is {workers}.")
    arguments = make_parser("train", "myxtts train").parse_all(words)
    config = resolve_config(flags=arguments.given, yaml_path=arguments.config)
    # In a rehearsal ids only name the workers.
    visible = None if gpus is None or config.training.rehearsal else find_uuids(gpus)
    if gpus is None and not config.training.rehearsal and (cards := _find_cards()):
        raise DevicePlanError(
            f"--workers {workers} would have every worker train on the same cards, as this machine has GPU "
            f"{', '.join(map(str, cards))}. Give --gpus with the ids of different ones, or add --rehearsal behind `train` to rehearse on "
            "the CPU."
        )
    # Once, instead of by every worker.
    refuse_settings(config)
    check_run_paths(config)
    if not open_ports:
        enter_private_network()
    with open_scratch_folder("launch") as folder:
        path = folder / "cluster.yaml"
        path.write_text(make_cluster_file(workers), encoding="utf-8")
        commands = []
        for index in range(workers):
            environ = {**os.environ, "PYTHONUNBUFFERED": "1", LAUNCH_COMMAND: json.dumps(list(launched_as))}
            if visible is not None:
                environ["CUDA_VISIBLE_DEVICES"] = visible[index]
            flags = ["--cluster", str(path), "--worker-index", str(index)]
            python = [sys.executable, "-P", "-m", "myxtts.cli.main", "train"]
            commands.append(Command([*python, *words, *flags], make_importable(environ)))
        group = ProcessGroup(commands, tell=lambda index, line: print(f"[{index}] {line}", flush=True))
        codes = group.run()
    for index in group.failed:
        print(f"worker {index} {_describe_end(codes[index])}", file=sys.stderr)
    if not group.failed:
        return 0
    # The very command cannot go on where what it asks for was refused.
    if all(codes[index] != UserError.exit_code for index in group.failed):
        print(f"To go on: {shlex.join(launched_as)}", file=sys.stderr)
    first = codes[group.failed[0]]
    return 128 - first if first < 0 else first


def find_uuids(gpus: Sequence[int]) -> list[str]:
    """What CUDA knows cards by, whatever is counted anew inside a container. Raises `DevicePlanError` for those that are not there."""
    found = _find_cards()
    missing = [gpu for gpu in gpus if gpu not in found]
    if missing:
        present = ", ".join(f"GPU {gpu}" for gpu in found) or "no GPU"
        raise DevicePlanError(
            f"Asked for GPU {', '.join(map(str, missing))}, but this machine has {present}. Give ids from `nvidia-smi -L`, or "
            "--workers 2 with `train --rehearsal` to rehearse on the CPU."
        )
    return [found[gpu] for gpu in gpus]


def _find_cards() -> dict[int, str]:
    """Physical id -> what CUDA knows it by, of the cards in sight."""
    from myxtts.devices.machine import read_machine, select_visible

    machine = read_machine()
    return {int(card.physical_id): card.uuid for card in select_visible(machine.cards, machine.environ)}


def _describe_end(code: int) -> str:
    if code < 0:
        return f"was ended by signal {-code}"
    return "stopped as it was asked to" if code == os.EX_TEMPFAIL else f"ended with code {code}"
