"""The configuration as a person reads it: valid YAML, with the origin of every value behind it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from myxtts.config.config import XTTSConfig
from myxtts.config.resolve import dump_sections
from myxtts.config.yaml_file import format_value


def format_config(config: XTTSConfig, fixed: Mapping[str, tuple[Any, str]] | None = None) -> str:
    """Every setting as a line of YAML, its origin as a comment. The text can be saved and used as `--config`.

    Args:
        fixed: dotted key -> the value in force and what decides it, for settings that are not this configuration's to choose.
            Their lines are comments, so that the saved text asks for the same as this configuration.
    """
    rows: list[tuple[str, str]] = []
    for section, values in dump_sections(config).items():
        rows.append((f"{section}:", ""))
        for name, value in values.items():
            if fixed and f"{section}.{name}" in fixed:
                decided, by = fixed[f"{section}.{name}"]
                rows.append((f"  # {name}: {format_value(decided)}", by))
                continue
            origin = config.origins[f"{section}.{name}"]
            if section == "data" and name == "prefetch_buffer_size" and value == "auto":
                origin += f", is {config.data.prefetch_depth}"
            rows.append((f"  {name}: {format_value(value)}", origin))
    width = min(48, max(len(line) for line, _ in rows))
    return "\n".join(f"{line:<{width}}  # {origin}" if origin else line for line, origin in rows)
