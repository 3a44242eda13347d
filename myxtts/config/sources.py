"""From flags, environment and YAML to one configuration: flags > environment > YAML > presets > defaults."""

from __future__ import annotations

import argparse
import os
import re
from collections.abc import Collection, Container, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml
from pydantic.fields import FieldInfo

from myxtts.config.config import SECTIONS, XTTSConfig, list_names, suggest_name
from myxtts.config.model import SHAPE_NAMES
from myxtts.config.settings import GIVEN, NOT_A_SETTING, Flag, list_flags, spell_value
from myxtts.errors import CommandLineError, ConfigError
from myxtts.files import FileError, read_text

MOST_YAML_BYTES = 1 << 18
"""Hundreds of times what all settings take; the parser needs seconds for it."""


class _Loader(yaml.SafeLoader):
    """YAML 1.2 scalars. In 1.1, which PyYAML reads, `cache: off` is False, `1e-4` is text and `1:30` is 90."""

    def compose_node(self, parent: yaml.Node | None, index: Any) -> yaml.Node | None:
        """The next node. A list of lists that stand for each other is a few lines, and more values than memory has room for."""
        if self.check_event(yaml.AliasEvent):
            event: Any = self.peek_event()  # type: ignore[no-untyped-call]
            if isinstance(self.anchors.get(event.anchor), yaml.CollectionNode):
                raise yaml.MarkedYAMLError(
                    problem=f"*{event.anchor:.80} stands for a list or a table. Write it out.",
                    problem_mark=event.start_mark,
                )
        node: yaml.Node | None = super().compose_node(parent, index)
        return node


_Loader.yaml_implicit_resolvers = {}

_Loader.add_implicit_resolver("tag:yaml.org,2002:null", re.compile(r"^(?:~|null|Null|NULL|)$"), ["~", "n", "N", ""])
_Loader.add_implicit_resolver(
    "tag:yaml.org,2002:bool", re.compile(r"^(?:true|True|TRUE|false|False|FALSE)$"), list("tTfF")
)
_Loader.add_implicit_resolver("tag:yaml.org,2002:int", re.compile(r"^[-+]?[0-9]+$"), list("-+0123456789"))
_Loader.add_implicit_resolver(
    "tag:yaml.org,2002:float",
    re.compile(r"^(?:[-+]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][-+]?[0-9]+)?|[-+]?\.(?:inf|Inf|INF)|\.(?:nan|NaN|NAN))$"),
    list("-+.0123456789"),
)


def _construct_int(loader: _Loader, node: yaml.ScalarNode) -> int | str:
    # Read as decimal ("010" is ten), and leave what Python refuses to convert (thousands of digits) to validation.
    try:
        return int(node.value)
    except ValueError:
        return str(node.value)


_Loader.add_constructor("tag:yaml.org,2002:int", _construct_int)


@dataclass(frozen=True)
class GivenValue:
    """An explicit value and where it was given: a flag, a variable, or a file and its line."""

    value: Any
    origin: str


def read_yaml(path: Path) -> dict[str, GivenValue]:
    """What a YAML file gives by dotted key, and by its name what should be a section, not validated yet. Raises `ConfigError`."""
    try:
        text = read_text(path, MOST_YAML_BYTES)
    except FileError as error:
        raise ConfigError(("", f"{error} Give a YAML file that you may read, saved as UTF-8.")) from None
    try:
        loader = _Loader(text)
        try:
            node = loader.get_single_node()
            lines = _collect_lines(node, path)
            content = loader.construct_document(node) if node is not None else {}
        finally:
            loader.dispose()
    except ConfigError:
        # Ours, with its line, and a ValueError like those below.
        raise
    except yaml.YAMLError as error:
        raise ConfigError(("", f"{path}: is not valid YAML. {' '.join(str(error).split())[:300]}")) from None
    except (RecursionError, ValueError, TypeError, OverflowError, LookupError, AttributeError) as error:
        # PyYAML's own constructors fail in all these ways on explicit tags such as `!!bool maybe`.
        raise ConfigError(
            ("", f"{path}: holds a value that cannot be read ({type(error).__name__}: {error}).")
        ) from None
    if not isinstance(content, dict | None):
        raise ConfigError(
            ("", f"{path}: must hold the sections model, data and training, but holds {type(content).__name__}.")
        )
    given: dict[str, GivenValue] = {}
    for section, values in (content or {}).items():
        place = f"{path}:{lines.get(str(section), 1)}"
        if "." in str(section):
            heading, _, name = str(section).partition(".")
            advice = f'Write "{name}" indented under "{heading}:".'
            raise ConfigError((f"{section} ({place})", f"is not a section. {advice}"))
        if isinstance(values, dict):
            for name, value in values.items():
                key = f"{section}.{name}"
                given[key] = GivenValue(value, f"{path}:{lines[key]}" if key in lines else place)
        elif values is not None or section not in SECTIONS:
            given[str(section)] = GivenValue(values, place)
    return given


def _collect_lines(node: yaml.Node | None, path: Path) -> dict[str, int]:
    """The line of each key, counted from 1."""
    lines: dict[str, int] = {}
    found: list[tuple[str, yaml.Node]] = []
    for key, value in node.value if isinstance(node, yaml.MappingNode) else ():
        found.append((str(key.value), key))
        if isinstance(value, yaml.MappingNode):
            found += [(f"{key.value}.{inner.value}", inner) for inner, _ in value.value]
    for name, place in found:
        line = place.start_mark.line + 1
        if name in lines:
            raise ConfigError((name, f"stands twice in {path}, in lines {lines[name]} and {line}. Keep one of them."))
        lines[name] = line
    return lines


class _Dumper(yaml.SafeDumper):
    """Quotes whatever either this loader or a YAML 1.1 reader would take for something else than text."""


for _first, _resolvers in _Loader.yaml_implicit_resolvers.items():
    for _tag, _pattern in _resolvers:
        _Dumper.add_implicit_resolver(_tag, _pattern, [_first])


def format_value(value: Any) -> str:
    """A value as it would stand in a YAML file, on one line, such that reading it back gives the same value."""
    if isinstance(value, float):
        # Not PyYAML's spelling: it writes 1e-06, which YAML 1.1 readers take for text.
        text = repr(value)
        return text if "e" not in text or "." in text else text.replace("e", ".0e")
    text = yaml.dump(value, Dumper=_Dumper, default_flow_style=True, width=10**6, allow_unicode=True)
    return text.removesuffix("\n").removesuffix("\n...").strip()


def dump_yaml(sections: dict[str, dict[str, Any]]) -> str:
    """Sections as the text of a YAML file."""
    lines: list[str] = []
    for section, values in sections.items():
        lines.append(f"{section}:")
        lines += [f"  {name}: {format_value(value)}" for name, value in values.items()]
    return "\n".join(lines) + "\n"


REHEARSAL_VARIABLE = "MYXTTS_REHEARSAL"
RETIRED = frozenset({"data.data_service", "data.data_service_timeout", "training.worker_index"})
"""Settings that models of 0.1.0 were saved with, and that say nothing about a model."""


def resolve_config(
    flags: Mapping[str, GivenValue] | None = None,
    yaml_path: Path | None = None,
    environ: Mapping[str, str] | None = None,
    *,
    ignored: Collection[str] = (),
) -> XTTSConfig:
    """The valid configuration these sources give together, without keys of the file that are ignored; `config.origins` tells which
    source won for each key."""
    given = {} if yaml_path is None else read_yaml(yaml_path)
    given = {key: entry for key, entry in given.items() if key not in ignored}
    if rehearsal := (os.environ if environ is None else environ).get(REHEARSAL_VARIABLE, "").strip():
        given["training.rehearsal"] = GivenValue(rehearsal, REHEARSAL_VARIABLE)
    given |= flags or {}
    if flags and "data.cache" in flags:
        # The old spelling in a file must not contradict a flag for the new one.
        given.pop("data.enable_caching", None)
    sections: dict[str, Any] = {}
    for key, entry in given.items():
        section, dot, name = key.partition(".")
        target = sections.setdefault(section, {} if dot else entry.value)
        # A section that is not a mapping (`data: 3`) stays as it is, for validation to refuse.
        if dot and isinstance(target, dict):
            target[name] = entry.value
    try:
        config = XTTSConfig(**sections)
    except ConfigError as error:
        raise ConfigError(*(_add_origin(key, text, given) for key, text in error.problems)) from None
    for key, entry in given.items():
        section, _, name = key.partition(".")
        config._origins[f"{section}.{SECTIONS[section].aliases.get(name, name)}"] = entry.origin
    return config


def dump_sections(config: XTTSConfig) -> dict[str, dict[str, Any]]:
    """Every value, by section and name."""
    return {section: getattr(config, section).model_dump() for section in SECTIONS}


def _add_origin(key: str, text: str, given: Mapping[str, GivenValue]) -> tuple[str, str]:
    # An unknown section is where its first key stands.
    entry = given.get(key) or next((entry for name, entry in given.items() if name.startswith(f"{key}.")), None)
    return (f"{key} ({entry.origin})", text) if entry else (key, text)


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
        "training.stage", "training.lora_rank", "training.lora_alpha", "training.lora_matrices", "training.codec",
        "training.codec_steps", "training.max_steps", "training.learning_rate",
        "training.lr_schedule", "training.warmup_steps", "training.clip_norm", "training.gradient_accumulation_steps",
        "training.ema_decay", "training.seed", "training.deterministic",
    ),
    "validation, checkpoints and logs": (
        "training.validation_interval", "training.early_stopping", "training.speak", "training.checkpoint_interval",
        "training.keep_last", "training.keep_best", "training.best_metric", "training.log_interval",
        "training.tensorboard_log_dir", "training.watchdog_seconds",
    ),
    PARALLEL: (
        "training.model_gpus", "training.cluster", "training.trainers", "training.preparers",
    ),
}  # fmt: skip
"""Where the flags of all other settings stand, in the order in which a person would look for them."""


def iterate_flags() -> Iterator[tuple[str, Flag, str]]:
    """Every flag as (dotted key, flag, help with the default)."""
    for key, field in _list_fields().items():
        for flag in list_flags(field):
            yield key, flag, flag.help or _describe(field)


def _list_fields() -> dict[str, FieldInfo]:
    return {f"{section}.{name}": field for section, cls in SECTIONS.items() for name, field in cls.model_fields.items()}


def _describe(field: FieldInfo) -> str:
    help, default = field.description or "", field.default
    if "(default" in help or default is None:
        return help
    return f"{help} (default: {('off', 'on')[default] if isinstance(default, bool) else default})"


class CollectValue(argparse.Action):
    """Keeps (key -> value, flag) apart for each setting: values stay text here, the configuration validates them."""

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
    """Reads `data.batch_size=4`; the key is checked here, the value by validation."""

    def __call__(self, parser: Any, namespace: Any, values: Any, option_string: str | None = None) -> None:
        key, equals, value = (word.strip() for word in values.partition("="))
        if not equals:
            raise ConfigError(("", f"--set takes KEY=VALUE, for example data.batch_size=4, but got {values!r}."))
        if key not in list_names():
            raise ConfigError((f"--set {key}", f"{NOT_A_SETTING} {suggest_name(key)}"))
        namespace.given[key] = GivenValue(value, f"--set {key}")


def add_setting_flags(
    parser: argparse.ArgumentParser, show: Container[str] | None = None
) -> dict[str, argparse._ArgumentGroup]:
    """Adds `--config`, `--set` and every setting's flags; returns the groups of the help by title.

    What was given ends up in `namespace.given`: dotted key -> `GivenValue`.

    Flags that are not shown in the help are taken all the same, so that every command understands the flags of a run.
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
    # Both answers of a yes/no setting stand in one line, with the one that holds.
    rows = [list_flags(field)] if isinstance(field.default, bool) else [[flag] for flag in list_flags(field)]
    for flags in rows:
        options: dict[str, Any] = {"metavar": spell_value(field, flags[0])}
        if flags[0].value is not GIVEN:
            options = {"nargs": 0}
        elif flags[0].bare is not GIVEN:
            options |= {"nargs": "?", "const": flags[0].bare}
        help = flags[0].help or _describe(field)
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


def format_config(config: XTTSConfig) -> str:
    """Every setting as a line of YAML, its origin as a comment. The text can be saved and used as `--config`.

    What is not this configuration's to choose is a comment, so that the saved text asks for the same.
    """
    decided = _list_decided(config)
    rows: list[tuple[str, str]] = []
    for section, values in dump_sections(config).items():
        rows.append((f"{section}:", ""))
        for name, value in values.items():
            origin = config.origins[f"{section}.{name}"]
            if f"{section}.{name}" in decided:
                rows.append((f"  # {name}:", decided[f"{section}.{name}"]))
                continue
            if name == "prefetch_buffer_size" and value == "auto":
                origin += f", is {config.data.prefetch_depth}"
            rows.append((f"  {name}: {format_value(value)}", origin))
    width = min(48, max(len(line) for line, _ in rows))
    return "\n".join(f"{line:<{width}}  # {origin}" if origin else line for line, origin in rows)


def _list_decided(config: XTTSConfig) -> dict[str, str]:
    """The settings that a model, a codec or a vocabulary decides unless they are given -> which."""
    training, by = config.training, {"model.text_tokens": "of the vocabulary"}
    if training.stage == "decoder" or training.init_from is not None:
        of_model = f"of {training.init_from or training.checkpoint_dir}"
        lengths = ("data.prompt_seconds", "data.max_clip_seconds") if training.stage == "decoder" else ()
        by |= dict.fromkeys(("model.size", *(f"model.{name}" for name in SHAPE_NAMES), *lengths), of_model)
    if training.codec is not None:
        by |= dict.fromkeys(("model.dvae_width", "model.audio_codes"), f"of {training.codec}")
    given = {f"{section}.{name}" for section, values in config.given_values().items() for name in values}
    return {key: origin for key, origin in by.items() if key not in given}
