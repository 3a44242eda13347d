"""The command-line flags of all settings, derived from their declarations."""

from __future__ import annotations

import argparse
from collections.abc import Container, Iterator
from pathlib import Path
from typing import Any

from myxtts.config.config import SECTIONS
from myxtts.config.resolve import GivenValue, parse_assignment
from myxtts.config.setting import GIVEN, Flag, read_setting_info
from myxtts.errors import CommandLineError

GROUP_TITLES = {"model": "model", "data": "data and devices", "training": "training"}


def iterate_flags() -> Iterator[tuple[str, Flag, str]]:
    """Every flag as (dotted key, flag, help with the default)."""
    for section, cls in SECTIONS.items():
        for name, field in cls.model_fields.items():
            info = read_setting_info(field)
            for flag in info.flags:
                yield f"{section}.{name}", flag, flag.help or _describe(info.help, flag, field.default)


def _describe(help: str, flag: Flag, default: Any) -> str:
    says_default = "(default" in help or flag.value is not GIVEN or default is None
    return help if says_default else f"{help} (default: {default})"


class _CollectValue(argparse.Action):
    """Keeps (key -> value, flag) apart for each setting: values stay text here, the configuration validates them."""

    def __init__(self, *args: Any, key: str, value: Any = GIVEN, **kwargs: Any):
        self.key = key
        self.value = value
        super().__init__(*args, **kwargs)

    def __call__(self, parser: Any, namespace: Any, values: Any, option_string: str | None = None) -> None:
        value = values if self.value is GIVEN else self.value
        flag = option_string or self.option_strings[0]
        earlier = namespace.given.get(self.key)
        if earlier is not None and earlier.origin != flag and earlier.value != value:
            raise CommandLineError(f"{earlier.origin} and {flag} contradict each other. Give one of them.")
        namespace.given[self.key] = GivenValue(value, flag)


class _CollectAssignment(argparse.Action):
    def __call__(self, parser: Any, namespace: Any, values: Any, option_string: str | None = None) -> None:
        key, value = parse_assignment(values)
        namespace.given[key] = GivenValue(value, f"--set {key}")


def add_setting_flags(parser: argparse.ArgumentParser, show: Container[str] | None = None) -> None:
    """Adds `--config`, `--set` and every setting's flags.

    What was given ends up in `namespace.given`: dotted key -> `GivenValue`.

    Args:
        show: dotted keys whose flags stand in the help; all of them unless given. The others are taken all the same, so
            that every command understands the flags of a run.
    """
    parser.set_defaults(given={})
    groups = {section: parser.add_argument_group(title) for section, title in GROUP_TITLES.items()}
    for key, flag, help in iterate_flags():
        hidden = flag.hidden or (show is not None and key not in show)
        options: dict[str, Any] = {
            "action": _CollectValue,
            "key": key,
            "dest": "given",
            "default": argparse.SUPPRESS,
            "help": argparse.SUPPRESS if hidden else help.replace("%", "%%"),
        }
        if flag.value is not GIVEN:
            options |= {"nargs": 0, "value": flag.value}
        elif flag.bare is not GIVEN:
            options |= {"nargs": "?", "const": flag.bare, "metavar": flag.metavar}
        else:
            options["metavar"] = flag.metavar
        groups[key.partition(".")[0]].add_argument(flag.name, **options)
    parser.add_argument("--config", metavar="FILE", type=Path, help="YAML file with the sections model, data, training")
    parser.add_argument(
        "--set",
        action=_CollectAssignment,
        dest="given",
        default=argparse.SUPPRESS,
        metavar="KEY=VALUE",
        help="any setting by its YAML name, for example --set model.dropout=0.05",
    )
