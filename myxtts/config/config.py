"""What a run is asked to do: `XTTSConfig` and its three sections.

A setting is declared once, with its default, range, flags and help; the command line, YAML files, the printed
configuration and the reference pages are all derived from that. TensorFlow is never imported.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pydantic import Field, PrivateAttr, model_validator

from myxtts.config import presets, rules
from myxtts.config.data import DataConfig
from myxtts.config.model import ModelConfig
from myxtts.config.settings import NOT_A_SETTING, Section, nearest_name
from myxtts.config.training import TrainingConfig
from myxtts.errors import ConfigError

__all__ = ["SECTIONS", "DataConfig", "ModelConfig", "TrainingConfig", "XTTSConfig", "setting_keys"]


class XTTSConfig(Section):
    """A whole, valid configuration.

    Example:
        config = XTTSConfig(model={"size": "tiny"}, data={"batch_size": 4})
        config.training.learning_rate        # 1e-3, from the preset of the size
        config.origins["data.batch_size"]    # "given"
    """

    model: ModelConfig = Field(default_factory=ModelConfig)
    data: DataConfig = Field(default_factory=DataConfig)
    training: TrainingConfig = Field(default_factory=TrainingConfig)

    _origins: dict[str, str] = PrivateAttr(default_factory=dict)

    def __init__(self, **values: Any):
        try:
            super().__init__(**values)
        except ConfigError as error:
            raise ConfigError(*((key, _point_to_name(key, text)) for key, text in error.problems)) from None

    @model_validator(mode="wrap")
    @classmethod
    def _fill_presets(cls, values: Any, handler: Any) -> Any:
        if isinstance(values, cls):
            return values
        sections, given = _flatten_sections(values)
        filled = presets.preset_values(given)
        for key, (value, _) in filled.items():
            section, _, name = key.partition(".")
            # The model section fills in its size by itself.
            if section != "model" and isinstance(sections.get(section, {}), dict):
                sections[section] = {**sections.get(section, {}), name: value}
        config = handler(sections)
        config._origins = dict.fromkeys(setting_keys(), "default")
        config._origins |= {key: preset for key, (_, preset) in filled.items()}
        config._origins |= dict.fromkeys(given, "given")
        return config

    @model_validator(mode="after")
    def _check_rules(self) -> XTTSConfig:
        problems = rules.find_problems(self)
        if problems:
            raise ConfigError(*problems)
        return self

    def __eq__(self, other: object) -> bool:
        # Same values are the same configuration, wherever they come from.
        return isinstance(other, XTTSConfig) and self._values == other._values

    def __hash__(self) -> int:
        return hash(self._values)

    @property
    def _values(self) -> tuple[Section, ...]:
        return self.model, self.data, self.training

    @property
    def origins(self) -> dict[str, str]:
        """Where each value comes from, by dotted key."""
        return dict(self._origins)

    def given_values(self) -> dict[str, dict[str, Any]]:
        """Only what was given explicitly, by section: what a preset filled in stays open to another preset."""
        given: dict[str, dict[str, Any]] = {}
        for key, origin in self._origins.items():
            if origin != "default" and not origin.startswith("preset "):
                section, _, name = key.partition(".")
                given.setdefault(section, {})[name] = getattr(getattr(self, section), name)
        return given

    def replace(self, **sections: Mapping[str, Any]) -> XTTSConfig:
        """A new configuration with these values given on top: `config.replace(data={"batch_size": 4})`."""
        merged = self.given_values()
        for section, values in sections.items():
            merged[section] = {**merged.get(section, {}), **values}
        return XTTSConfig(**merged)


SECTIONS: Mapping[str, type[Section]] = {"model": ModelConfig, "data": DataConfig, "training": TrainingConfig}


def setting_keys() -> list[str]:
    """Every dotted key, in the order of declaration."""
    return [f"{section}.{name}" for section, cls in SECTIONS.items() for name in cls.model_fields]


def list_names() -> list[str]:
    """Every dotted name that can be given: settings, and the older words for some of them."""
    older = [f"{section}.{name}" for section, cls in SECTIONS.items() for name in cls.aliases]
    return [*setting_keys(), *older]


def suggest_name(key: str) -> str:
    """A sentence that leads from a key that is no setting to the one that was probably meant."""
    section, _, name = key.rpartition(".")
    near = next((known for known in list_names() if known.partition(".")[2] == name), None)
    if near is None and section in SECTIONS:
        found = nearest_name(name, [*SECTIONS[section].model_fields, *SECTIONS[section].aliases])
        near = found and f"{section}.{found}"
    elif near is None:
        near = nearest_name(key, SECTIONS)
    if near is not None:
        return f'Did you mean "{near}"?'
    if section in SECTIONS:
        return f'"{section}" has: {", ".join(SECTIONS[section].model_fields)}.'
    return f"The sections are {', '.join(SECTIONS)}."


def _point_to_name(key: str, text: str) -> str:
    return f"{text} {suggest_name(key)}" if text == NOT_A_SETTING else text


def _flatten_sections(values: Any) -> tuple[dict[str, Any], dict[str, Any]]:
    """Section dictionaries (made from section objects too), and their explicit values by dotted key."""
    sections: dict[str, Any] = dict(values) if isinstance(values, Mapping) else {"": values}
    given: dict[str, Any] = {}
    for name, section in sections.items():
        if isinstance(section, Section):
            sections[name] = section = section.model_dump(exclude_unset=True)
        elif section is None and name in SECTIONS:
            # An empty `data:` heading in a YAML file.
            sections[name] = section = {}
        if isinstance(section, Mapping) and name in SECTIONS:
            sections[name] = dict(section)
            aliases = SECTIONS[name].aliases
            given |= {f"{name}.{aliases.get(key, key)}": value for key, value in section.items()}
    return sections, given
