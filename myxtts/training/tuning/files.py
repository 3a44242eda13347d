"""What the configurator writes: a YAML file for `--config`, and variables to source, each line with its evidence."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from myxtts.config import XTTSConfig
from myxtts.config.config import SECTIONS
from myxtts.config.yaml_file import format_value
from myxtts.training.tuning.search import Answer

HEADER = "# Written by `myxtts configure`. Use it with: myxtts train --config FILE"


@dataclass(frozen=True)
class Line:
    """A setting or a variable, and why it is what it is."""

    key: str
    value: Any
    evidence: str


def list_lines(answers: Sequence[Answer], rules: Sequence[tuple[str, Any, str]]) -> list[Line]:
    """The settings that were chosen, by trying or by rule."""
    tried = [
        Line(key, value, answer.evidence)
        for answer in answers
        if answer.taken is not None
        for key, value in answer.taken.settings.items()
    ]
    return [*tried, *(Line(*rule) for rule in rules)]


def list_variables(answers: Sequence[Answer]) -> list[Line]:
    """The variables that were chosen."""
    return [
        Line(name, value, answer.evidence)
        for answer in answers
        if answer.taken is not None
        for name, value in answer.taken.environ.items()
    ]


def format_yaml(config: XTTSConfig, lines: Sequence[Line], notes: Sequence[str]) -> str:
    """The user's own settings and the lines, as a file that gives the same configuration.

    Args:
        notes: sentences on how it came about, for the head of the file.
    """
    rows: dict[str, dict[str, tuple[Any, str]]] = {section: {} for section in SECTIONS}
    for section, values in config.given_values().items():
        for name, value in values.items():
            rows[section][name] = (value, f"given by you ({config.origins[f'{section}.{name}']})")
    for line in lines:
        section, _, name = line.key.partition(".")
        rows[section][name] = (line.value, line.evidence)
    text = [HEADER, *(f"# {note}" for note in notes)]
    for section, entries in rows.items():
        if entries:
            text.append(f"{section}:")
        for name, (value, evidence) in entries.items():
            text += [f"  # {evidence}", f"  {name}: {format_value(value)}"]
    return "\n".join(text) + "\n"


def format_variables(lines: Sequence[Line], name: str) -> str:
    """A file for a shell to source."""
    text = [f"# Written by `myxtts configure`. Use it with: source {name}"]
    for line in lines:
        text += [f"# {line.evidence}", f"export {line.key}={line.value}"]
    return (
        "\n".join(text if lines else [*text, "# Nothing is to be set: TensorFlow's own choices were not slower."])
        + "\n"
    )
