"""`myxtts diagnose`: why the GPU is not busy. The exit code is 1 when something serious was found."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from myxtts.cli.data import list_parts, scan_corpora
from myxtts.cli.files import check_writable, write_text
from myxtts.cli.parser import Parser, spell_command
from myxtts.cli.profile import SHOWN
from myxtts.cli.telling import quiet_scan, tell
from myxtts.config import XTTSConfig, resolve_config
from myxtts.config.flags import add_setting_flags
from myxtts.config.gpu_ids import parse_gpu_ids
from myxtts.devices.environment import VARIABLES
from myxtts.errors import MyXTTSError

if TYPE_CHECKING:
    from myxtts.devices.machine import Machine
    from myxtts.devices.nvml import Card
    from myxtts.devices.topology import Link
    from myxtts.monitoring.corpus_checks import CorpusFacts
    from myxtts.monitoring.diagnosis import Diagnosis
    from myxtts.monitoring.health import Issue
    from myxtts.monitoring.machine_sampler import MachineSample
    from myxtts.monitoring.profile_facts import Profile
    from myxtts.monitoring.software_facts import SoftwareFacts

STEPS = 20
"""Of the speed test."""
LIVE_S = 2.0
"""How long cards are looked at where no speed test is run."""


def build_parser(prog: str) -> Parser:
    parser = Parser(
        prog=prog,
        description="Find out why the GPU is not busy: software, devices, settings, corpus, and a speed test of your own run. "
        "All flags of `myxtts train` are taken, and none is needed. Exit code 1: something serious was found.",
    )
    parser.add_argument("--skip-speed-test", action="store_true", help="look only; nothing is built or trained")
    parser.add_argument("--json", type=Path, metavar="FILE", help="also write all facts; unknown values are null")
    add_setting_flags(parser, SHOWN)
    return parser


def run(words: Sequence[str], prog: str) -> int:
    arguments = build_parser(prog).parse_all(words)
    config = resolve_config(flags=arguments.given, yaml_path=arguments.config)
    check_writable(arguments.json)
    # Not imported above: --help needs none of it.
    from myxtts.devices.environment import prepare_environment
    from myxtts.monitoring.diagnosis import format_diagnosis, format_diagnosis_json

    environ = dict(os.environ)
    prepare_environment(os.environ)
    command = spell_command(prog, words)
    diagnosis = diagnose(config, environ, tests_speed=not arguments.skip_speed_test, command=command)
    print(format_diagnosis(diagnosis))
    if arguments.json is not None:
        write_text(arguments.json, format_diagnosis_json(diagnosis) + "\n")
        print(f"\nFacts   {arguments.json}")
    return 1 if diagnosis.is_serious else 0


def diagnose(
    config: XTTSConfig, environ: dict[str, str], *, tests_speed: bool, command: Sequence[str] = ()
) -> Diagnosis:
    """Everything that can be found out about a configuration on this machine.

    Args:
        environ: variables as the user has them, before MyXTTS sets its own.
        tests_speed: whether to profile a few batches.
        command: the words that started the program, for advice that can be pasted.
    """
    from myxtts.devices.machine import read_machine
    from myxtts.devices.topology import read_links
    from myxtts.monitoring.card_summary import summarise_cards
    from myxtts.monitoring.diagnosis import Diagnosis
    from myxtts.monitoring.health import rank_issues
    from myxtts.monitoring.software_facts import read_software
    from myxtts.monitoring.speed_checks import check_cards

    tell("looking at software and devices")
    machine, software = read_machine(environ), read_software()
    links = read_links([card.physical_id for card in machine.cards])
    issues = list(_check_set_up(config, machine, software, links))
    corpus = _look_at_corpus(config, issues)
    # Without TensorFlow there is no run to test; that is an issue already.
    has_run = tests_speed and software.tensorflow is not None
    profile = _test_speed(config, issues, command) if has_run else None
    samples, card_problem = (profile.samples, profile.card_problem) if profile is not None else _look_at_cards(machine)
    issues += check_cards(summarise_cards(samples))
    return Diagnosis(
        software=software,
        machine=machine,
        links=tuple(links),
        settings=_describe_settings(config, environ, profile is not None),
        corpus=corpus,
        profile=profile,
        samples=samples,
        card_problem=card_problem,
        issues=tuple(rank_issues(issues)),
    )


def _check_set_up(
    config: XTTSConfig, machine: Machine, software: SoftwareFacts, links: Sequence[Link]
) -> Iterator[Issue]:
    """What can be said before anything is read or run."""
    from myxtts.monitoring.config_checks import check_config
    from myxtts.monitoring.settings_in_force import Surroundings
    from myxtts.monitoring.software_checks import (
        check_devices,
        check_environment,
        check_links,
        check_software,
        check_tensorflow,
    )

    around = Surroundings.of_machine(machine)
    yield from check_tensorflow(software, machine)
    cards: Sequence[Card] = ()
    # In a rehearsal no card is wanted: that there is none, or that one does not work, is no matter then.
    if not config.training.rehearsal:
        yield from check_software(software, machine)
        yield from check_devices(machine)
        yield from check_links(links, *_list_asked_cards(config))
        cards = [card for card in machine.cards if card.physical_id in (around.cards or ())]
    yield from check_environment(machine.environ)
    yield from check_config(config, cards, around.processors or 1)


def _list_asked_cards(config: XTTSConfig) -> tuple[list[int], str]:
    """Physical ids of the cards that a configuration names, and the flags it names them by."""
    if config.training.model_gpus is not None:
        return parse_gpu_ids(config.training.model_gpus), "--model-gpus"
    both = [id for id in (config.data.data_gpu, config.data.model_gpu) if id is not None]
    return both, "--data-gpu and --model-gpu"


def _look_at_corpus(config: XTTSConfig, issues: list[Issue]) -> CorpusFacts | None:
    """Facts of the corpus; a corpus that cannot be read is an issue, and the rest is still looked at."""
    from myxtts.data.overview import describe_corpus
    from myxtts.monitoring.corpus_checks import check_corpus, describe_speed_of_corpus

    tell("looking at the corpus")
    try:
        with quiet_scan():
            found, validation = scan_corpora(config)
    except MyXTTSError as error:
        issues.append(_explain_failure("The corpus cannot be used", str(error)))
        return None
    parts = list_parts(config, found, validation)
    plan = describe_corpus(found.corpus, *parts, config.data.batch_size).plan
    facts = describe_speed_of_corpus(found.corpus, plan, len(found.drops.drops))
    issues += check_corpus(facts, config.data.batch_size, config.training.gradient_accumulation_steps)
    return facts


def _test_speed(config: XTTSConfig, issues: list[Issue], command: Sequence[str]) -> Profile | None:
    from myxtts.cli.launch_obstacle import find_launch_obstacle
    from myxtts.cli.profile import measure
    from myxtts.devices.machine import read_machine
    from myxtts.monitoring.profile_verdict import judge_profile
    from myxtts.monitoring.settings_in_force import Settings, Surroundings
    from myxtts.monitoring.speed_checks import check_speed
    from myxtts.training.profiling.plan import plan_profile

    # Read anew: by now the variables are those that a run has.
    machine = read_machine()
    try:
        planned = plan_profile(config, machine, command=command, tell=tell, find_launch_obstacle=find_launch_obstacle)
        profile = measure(planned, STEPS)
    except MyXTTSError as error:
        issues.append(_explain_failure("The speed test could not be run", str(error)))
        return None
    except ImportError as error:
        # TensorFlow is installed, but one of its libraries is not, or is another version's.
        issues.append(_explain_failure("The speed test could not be run: a package does not load", str(error)))
        return None
    settings = Settings.of_config(planned.config, Surroundings.of_machine(machine))
    issues += check_speed(judge_profile(profile, settings), is_rehearsal=config.training.rehearsal)
    return profile


def _look_at_cards(machine: Machine) -> tuple[tuple[MachineSample, ...], str | None]:
    """What cards and host do while we do nothing, which is the work of others, and why cards could not be looked at."""
    from myxtts.monitoring.machine_sampler import MachineSampler

    tell("looking at what is running")
    with MachineSampler([card.physical_id for card in machine.cards]) as sampler:
        time.sleep(LIVE_S)
    problem = sampler.problem
    if problem is None and not machine.cards:
        problem = machine.scan.problem or "this machine has no NVIDIA GPU"
    return tuple(sampler.samples), problem


def _describe_settings(config: XTTSConfig, environ: dict[str, str], has_run: bool) -> dict[str, str]:
    """What decides about speed; TensorFlow's own part is read back where it was used."""
    data, training = config.data, config.training
    settings = {
        "model size": config.model.size,
        "batch": f"{data.batch_size} clips x {training.gradient_accumulation_steps}",
        "precision": data.mixed_precision,
        "XLA": "on" if data.enable_xla else "off",
        "static shapes": "on" if data.pad_to_fixed_length else "off",
        "readers": str(data.num_workers),
        "batches ahead": str(data.pipeline_buffer_size),
        "cache": data.cache,
    }
    if has_run:
        from myxtts.devices.runtime import list_logical_devices, read_execution

        execution = read_execution()
        settings["TensorFlow's devices"] = ", ".join(list_logical_devices())
        settings["threads"] = (
            f"{execution.intra_op or 'automatic'} within an operation, {execution.inter_op or 'automatic'} between"
        )
    changed = [f"{name}={environ[name]}" for name in VARIABLES if name in environ]
    settings["environment"] = ", ".join(changed) or "nothing set"
    return settings


def _explain_failure(observation: str, evidence: str) -> Issue:
    from myxtts.monitoring.health import Issue, Severity

    return Issue(Severity.SERIOUS, observation, evidence, "do what the evidence says, then diagnose again", "it runs")
