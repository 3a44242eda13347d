"""From flags, environment and YAML to one configuration: flags > environment > YAML > presets > defaults."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from myxtts.config.config import SECTIONS, XTTSConfig, list_names, suggest_name
from myxtts.config.section import NOT_A_SETTING
from myxtts.config.yaml_file import YamlSettings, read_yaml
from myxtts.errors import ConfigError

REHEARSAL_VARIABLE = "MYXTTS_REHEARSAL"


@dataclass(frozen=True)
class GivenValue:
    """An explicit value and where it was given: a flag, a variable, or a file and its line."""

    value: Any
    origin: str


def resolve_config(
    flags: Mapping[str, GivenValue] | None = None,
    yaml_path: Path | None = None,
    environ: Mapping[str, str] | None = None,
) -> XTTSConfig:
    """The valid configuration these sources give together; `config.origins` tells which source won for each key.

    Args:
        flags: dotted key -> value from the command line.
        yaml_path: a configuration file.
        environ: environment variables; the process's own unless given.
    """
    yaml_settings = read_yaml(yaml_path) if yaml_path is not None else None
    given = _read_given_yaml(yaml_settings) if yaml_settings is not None else {}
    given |= _read_environment(os.environ if environ is None else environ)
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
        raise ConfigError([_add_origin(key, text, given) for key, text in error.problems]) from None
    config._origins |= {_main_key(key): entry.origin for key, entry in given.items()}
    return config


def dump_sections(config: XTTSConfig) -> dict[str, dict[str, Any]]:
    """Every value, by section and name."""
    return {section: getattr(config, section).model_dump() for section in SECTIONS}


def parse_assignment(text: str) -> tuple[str, str]:
    """`data.batch_size=4` as its key and value; the key is checked, the value is left to validation."""
    key, equals, value = text.partition("=")
    key = key.strip()
    if not equals:
        raise ConfigError([("", f"--set takes KEY=VALUE, for example data.batch_size=4, but got {text!r}.")])
    if key not in list_names():
        raise ConfigError([(f"--set {key}", f"{NOT_A_SETTING} {suggest_name(key)}")])
    return key, value.strip()


def _read_given_yaml(settings: YamlSettings) -> dict[str, GivenValue]:
    given: dict[str, GivenValue] = {}
    for section, values in settings.sections.items():
        if "." in section:
            heading, _, name = section.partition(".")
            advice = f'Write "{name}" indented under "{heading}:".'
            raise ConfigError([(f"{section} ({settings.locate(section)})", f"is not a section. {advice}")])
        if isinstance(values, dict):
            for name, value in values.items():
                given[f"{section}.{name}"] = GivenValue(value, settings.locate(f"{section}.{name}"))
        elif values is not None or section not in SECTIONS:
            given[section] = GivenValue(values, settings.locate(section))
    return given


def _read_environment(environ: Mapping[str, str]) -> dict[str, GivenValue]:
    text = environ.get(REHEARSAL_VARIABLE, "").strip()
    return {"training.rehearsal": GivenValue(text, REHEARSAL_VARIABLE)} if text else {}


def _main_key(key: str) -> str:
    section, _, name = key.partition(".")
    cls = SECTIONS.get(section)
    return f"{section}.{cls.aliases.get(name, name)}" if cls else key


def _add_origin(key: str, text: str, given: Mapping[str, GivenValue]) -> tuple[str, str]:
    # An unknown section is where its first key stands.
    entry = given.get(key) or next((entry for name, entry in given.items() if name.startswith(f"{key}.")), None)
    return (f"{key} ({entry.origin})", text) if entry else (key, text)
