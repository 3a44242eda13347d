"""`myxtts diagnose`: why the GPU is not busy. The exit code is 1 when something serious was found."""

from __future__ import annotations

import argparse
import os
from pathlib import Path
from typing import TYPE_CHECKING

from myxtts.cli.data import list_parts, scan_corpora
from myxtts.cli.output import check_writable, quiet_scan, tell, write_asked
from myxtts.cli.parser import Parser
from myxtts.cli.profile import SHOWN
from myxtts.config import XTTSConfig, resolve_config
from myxtts.config.sources import add_setting_flags

if TYPE_CHECKING:
    from myxtts.data.buckets import BucketPlan
    from myxtts.data.scan import ScanResult


def add_flags(parser: Parser) -> None:
    parser.description = (
        "Find out why the GPU is not busy: software, devices, settings, corpus, and a speed test of your own run. "
        "All flags of `myxtts train` are taken, and none is needed. Exit code 1: something serious was found."
    )
    parser.add_argument("--skip-speed-test", action="store_true", help="look only; nothing is built or trained")
    parser.add_argument(
        "--json",
        type=Path,
        metavar="FILE",
        help="also write all facts, for a bug report: nothing private is in it, and unknown values are null",
    )
    add_setting_flags(parser, SHOWN)


def run(arguments: argparse.Namespace) -> int:
    config = resolve_config(flags=arguments.given, yaml_path=arguments.config)
    check_writable(arguments.json)
    # Not imported above: --help needs none of it.
    from myxtts.devices.machine import prepare_environment
    from myxtts.monitoring.machine_facts import redact
    from myxtts.tuning.diagnose import diagnose, format_diagnosis, format_diagnosis_json

    environ = dict(os.environ)
    prepare_environment(os.environ)
    command, tests_speed = arguments.pasted, not arguments.skip_speed_test
    diagnosis = diagnose(config, environ, scan=_scan, tests_speed=tests_speed, tell=tell, command=command)
    print(format_diagnosis(diagnosis))
    write_asked(arguments.json, "Facts  ", lambda: redact(format_diagnosis_json(diagnosis), environ) + "\n")
    return 1 if diagnosis.is_serious else 0


def _scan(config: XTTSConfig) -> tuple[ScanResult, BucketPlan]:
    from myxtts.data.overview import describe_corpus

    with quiet_scan():
        found, validation = scan_corpora(config)
    return found, describe_corpus(found.corpus, *list_parts(config, found, validation), config).plan
