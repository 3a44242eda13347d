"""The command-line flags of all settings, derived from their declarations."""

from __future__ import annotations

import argparse
import re
from collections.abc import Container, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from pydantic.fields import FieldInfo

from myxtts.config.config import SECTIONS
from myxtts.config.resolve import GivenValue, parse_assignment
from myxtts.config.setting import GIVEN, Flag, read_setting_info, spell_value
from myxtts.errors import CommandLineError, MyXTTSError

FIRST = (
    "data.train_data", "data.language", "training.checkpoint_dir", "training.resume", "model.size", "training.init_from",
    "data.batch_size", "training.epochs", "data.data_gpu", "data.model_gpu", "training.mode", "training.rehearsal",
)  # fmt: skip
"""The settings that matter in most runs; their flags stand first in the help."""

TAKEN_EVERYWHERE = "training.rehearsal"
CONFIGURATION, PARALLEL = "configuration", "several cards or machines"
GROUPS: Mapping[str, tuple[str, ...]] = {
    CONFIGURATION: (),
    "corpus": (
        "data.val_data", "data.vocabulary", "data.min_clip_seconds", "data.max_clip_seconds", "data.max_text_length",
        "data.prompt_seconds", "data.prompt_from", "data.strict", "data.follow_symlinks",
    ),
    "reading and batches": (
        "data.num_workers", "data.pipeline_buffer_size", "data.prefetch_buffer_size", "data.model_start_delay",
        "data.pad_to_fixed_length", "data.cache",
    ),
    "memory and precision": (
        "data.enable_memory_isolation", "data.data_gpu_memory", "data.model_gpu_memory", "training.on_oom",
        "model.enable_gradient_checkpointing", "data.mixed_precision", "data.enable_xla", "training.optimization_level",
    ),
    "what is trained, and how": (
        "training.stage", "training.codec", "training.codec_steps", "training.max_steps", "training.learning_rate",
        "training.lr_schedule", "training.warmup_steps", "training.clip_norm", "training.gradient_accumulation_steps",
        "training.ema_decay", "training.seed", "training.deterministic",
    ),
    "validation, checkpoints and logs": (
        "training.validation_interval", "training.early_stopping", "training.speak", "training.checkpoint_interval",
        "training.keep_last", "training.keep_best", "training.best_metric", "training.log_interval",
        "training.tensorboard_log_dir", "training.watchdog_seconds",
    ),
    PARALLEL: (
        "training.model_gpus", "training.cluster", "training.worker_index",
    ),
}  # fmt: skip
"""Where the flags of all other settings stand, in the order in which a person would look for them."""


def iterate_flags() -> Iterator[tuple[str, Flag, str]]:
    """Every flag as (dotted key, flag, help with the default)."""
    for key, field in _list_fields().items():
        info = read_setting_info(field)
        for flag in info.flags:
            yield key, flag, flag.help or _describe(info.help, field.default)


@contextmanager
def names_settings() -> Iterator[None]:
    """Notes on an error what the flags in its message are called in Python. The command line shows messages without notes."""
    try:
        yield
    except MyXTTSError as error:
        words = set(re.findall(r"--[a-z][a-z-]*", str(error)))
        known = {flag.name: key for key, flag, _ in iterate_flags() if flag.name in words}
        if known:
            error.add_note(f"In Python: {', '.join(f'{flag} is {key}' for flag, key in known.items())}.")
        raise


def _list_fields() -> dict[str, FieldInfo]:
    return {f"{section}.{name}": field for section, cls in SECTIONS.items() for name, field in cls.model_fields.items()}


def _describe(help: str, default: Any) -> str:
    if "(default" in help or default is None:
        return help
    return f"{help} (default: {('off', 'on')[default] if isinstance(default, bool) else default})"


class CollectValue(argparse.Action):
    """Keeps (key -> value, flag) apart for each setting: values stay text here, the configuration validates them.

    Args:
        fixed: what each spelling stands for, where it takes no value.
    """

    def __init__(self, *args: Any, key: str, fixed: Mapping[str, Any], **kwargs: Any):
        self.key = key
        self.fixed = fixed
        super().__init__(*args, **kwargs)

    def __call__(self, parser: Any, namespace: Any, values: Any, option_string: str | None = None) -> None:
        flag = option_string or self.option_strings[0]
        value = self.fixed.get(flag, values)
        earlier = namespace.given.get(self.key)
        if earlier is not None and earlier.origin != flag and earlier.value != value:
            raise CommandLineError(f"{earlier.origin} and {flag} contradict each other. Give one of them.")
        namespace.given[self.key] = GivenValue(value, flag)


class _CollectAssignment(argparse.Action):
    def __call__(self, parser: Any, namespace: Any, values: Any, option_string: str | None = None) -> None:
        key, value = parse_assignment(values)
        namespace.given[key] = GivenValue(value, f"--set {key}")


def add_setting_flags(
    parser: argparse.ArgumentParser, show: Container[str] | None = None
) -> dict[str, argparse._ArgumentGroup]:
    """Adds `--config`, `--set` and every setting's flags; returns the groups of the help by title.

    What was given ends up in `namespace.given`: dotted key -> `GivenValue`.

    Args:
        show: dotted keys whose flags stand in the help; all of them unless given. The others are taken all the same, so
            that every command understands the flags of a run.
    """
    parser.set_defaults(given={})
    fields = _list_fields()
    groups = {title: parser.add_argument_group(title) for title in GROUPS}
    for home, keys in ((parser, FIRST), *((groups[title], keys) for title, keys in GROUPS.items())):
        for key in keys:
            is_shown = show is None or key in show or key == TAKEN_EVERYWHERE
            _add_flags(home, key, fields[key], is_shown=is_shown)
    groups[CONFIGURATION].add_argument(
        "--config", metavar="FILE", type=Path, help="YAML file with the sections model, data, training"
    )
    groups[CONFIGURATION].add_argument(
        "--set",
        action=_CollectAssignment,
        dest="given",
        default=argparse.SUPPRESS,
        metavar="KEY=VALUE",
        help="any setting by its YAML name, for example --set model.dropout=0.05",
    )
    return groups


def _add_flags(home: argparse._ActionsContainer, key: str, field: FieldInfo, *, is_shown: bool) -> None:
    info = read_setting_info(field)
    # Both answers of a yes/no setting stand in one line, with the one that holds.
    rows = [info.flags] if isinstance(field.default, bool) else [(flag,) for flag in info.flags]
    for flags in rows:
        options: dict[str, Any] = {"metavar": spell_value(field, flags[0])}
        if flags[0].value is not GIVEN:
            options = {"nargs": 0}
        elif flags[0].bare is not GIVEN:
            options |= {"nargs": "?", "const": flags[0].bare}
        help = flags[0].help or _describe(info.help, field.default)
        home.add_argument(
            *(flag.name for flag in flags),
            action=CollectValue,
            key=key,
            fixed={flag.name: flag.value for flag in flags if flag.value is not GIVEN},
            dest="given",
            default=argparse.SUPPRESS,
            help=help.replace("%", "%%") if is_shown else argparse.SUPPRESS,
            **options,
        )
