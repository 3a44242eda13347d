"""How a setting is declared: its default, its range, its flags and its one line of help, in one place."""

from __future__ import annotations

import types
import typing
from dataclasses import dataclass
from typing import Any, Literal

from pydantic import Field
from pydantic.fields import FieldInfo

GIVEN: Any = object()
"""Marks a flag that takes its value from the command line, in contrast to one that stands for a fixed value."""


@dataclass(frozen=True)
class Flag:
    """One command-line spelling of a setting."""

    name: str
    value: Any = GIVEN
    """What the flag stands for (`--disable-static-shapes` stands for False); `GIVEN` when a value follows it."""
    bare: Any = GIVEN
    """For flags whose value may be left out: what the bare flag means."""
    metavar: str | None = None
    help: str | None = None
    """Overrides the setting's help, for a second flag of the same setting."""


@dataclass(frozen=True)
class SettingInfo:
    """What a setting's declaration says beyond its type and default."""

    help: str
    flags: tuple[Flag, ...]


def setting(default: Any, help: str, *flags: Flag, **limits: Any) -> Any:
    """A configuration field: default, one line of help, its flags, and pydantic limits (`ge`, `le`, ...)."""
    extra: dict[str, Any] = {"flags": flags}
    return Field(default=default, description=help, json_schema_extra=extra, **limits)


def switch(default: bool, help: str, on: str, off: str) -> Any:
    """A yes/no field with a flag for each answer, so that a flag can also undo what YAML says."""
    return setting(default, help, Flag(on, value=True), Flag(off, value=False))


def spell_value(field: FieldInfo, flag: Flag) -> str | None:
    """What stands for the value of a flag in help: its choices, else its kind."""
    members = [member for member in split_union(field.annotation) if member is not type(None)]
    if all(typing.get_origin(member) is Literal for member in members):
        return "{" + ",".join(str(choice) for member in members for choice in typing.get_args(member)) + "}"
    return flag.metavar


def split_union(annotation: Any) -> tuple[Any, ...]:
    """The types that an annotation allows."""
    if typing.get_origin(annotation) in (typing.Union, types.UnionType):
        return typing.get_args(annotation)
    if typing.get_origin(annotation) is typing.Annotated:
        return split_union(typing.get_args(annotation)[0])
    return (annotation,)


def read_setting_info(field: FieldInfo) -> SettingInfo:
    """The help and flags a field was declared with."""
    extra: Any = field.json_schema_extra
    return SettingInfo(help=field.description or "", flags=extra["flags"])


Auto = Literal["auto"]
"""A value the program computes; it stays `auto` in files so that it is computed anew on another machine."""
