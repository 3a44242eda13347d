"""How a setting is declared: its default, its range, its flags and its one line of help, in one place; and what is said of a wrong value."""

from __future__ import annotations

import difflib
import types
import typing
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError, ValidationInfo, field_validator, model_validator
from pydantic.fields import FieldInfo
from pydantic_core import ErrorDetails

from myxtts.errors import ConfigError

GIVEN: Any = object()
"""Marks a flag that takes its value from the command line, in contrast to one that stands for a fixed value."""


@dataclass(frozen=True)
class Flag:
    """One command-line spelling of a setting."""

    name: str
    metavar: str = "N"
    """What stands for its value in the help, where that has no choices."""
    value: Any = GIVEN
    """What the flag stands for (`--disable-static-shapes` stands for False); `GIVEN` when a value follows it."""
    bare: Any = GIVEN
    """For flags whose value may be left out: what the bare flag means."""
    help: str | None = None
    """Overrides the setting's help, for a second flag of the same setting."""


def setting(
    default: Any, help: str, *flags: Flag | str, within: tuple[float, float] | None = None, **limits: Any
) -> Any:
    """A configuration field: default, one line of help, flags (as in "--val-data PATH"), the least and the greatest of its numbers,
    and other limits that pydantic knows."""
    extra: dict[str, Any] = {"flags": [Flag(*flag.split()) if isinstance(flag, str) else flag for flag in flags]}
    if within is not None and default == "auto":
        # Of two kinds of values one alone has limits.
        extra["within"] = within
    elif within is not None:
        limits |= {"ge": within[0], "le": within[1]}
    return Field(default=default, description=help, json_schema_extra=extra, **limits)


def switch(default: bool | Auto, help: str, on: str, off: str) -> Any:
    """A yes/no field with a flag for each answer, so that a flag can also undo what YAML says."""
    return setting(default, help, Flag(on, value=True), Flag(off, value=False))


def spell_value(field: FieldInfo, flag: Flag) -> str:
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


def list_flags(field: FieldInfo) -> list[Flag]:
    """The flags a field was declared with."""
    extra: Any = field.json_schema_extra
    flags: list[Flag] = extra["flags"]
    return flags


Auto = Literal["auto"]
"""A value the program computes; it stays `auto` in files so that it is computed anew on another machine."""
WholeOrAuto = Annotated[int | Auto, Field(union_mode="left_to_right")]


NOT_A_SETTING = "is not a setting."
"""What is said of an unknown key; the whole configuration, which knows all keys, adds the one that was meant."""

_LIKENESS = 0.7
"""Less than this, and a suggestion misleads more often than it helps: at 0.6 --nope was taken for --no-speak."""
_SHORTEST_BEGINNING = 3


class Section(BaseModel):
    """Settings that belong together. Making one raises `ConfigError` for whatever is wrong with the values."""

    model_config = ConfigDict(
        extra="forbid", frozen=True, allow_inf_nan=False, str_strip_whitespace=True, str_min_length=1
    )

    aliases: ClassVar[Mapping[str, str]] = {}
    """Older words that are accepted -> the setting they stand for. The section's own validators translate them."""

    def __init__(self, **values: Any):
        try:
            super().__init__(**values)
        except ValidationError as error:
            raise ConfigError(*describe_errors(error, type(self))) from None

    @model_validator(mode="before")
    @classmethod
    def _read_plain_words(cls, values: Any) -> Any:
        if not isinstance(values, dict):
            return values
        read = dict(values)
        for key, value in values.items():
            field = cls.model_fields.get(key)
            if field is None:
                continue
            # Python's True is the number 1, so pydantic would read `batch_size: true` as a batch of one clip.
            if isinstance(value, bool) and _takes(field.annotation, int, float):
                raise ConfigError((key, f"must be {describe_type(field.annotation)}, but is {_show(value)}."))
            # A flag can only say it in letters.
            if value == "null" and _takes(field.annotation, type(None)):
                read[key] = None
        return read

    @field_validator("*")
    @classmethod
    def _check_range(cls, value: Any, info: ValidationInfo) -> Any:
        extra: Any = cls.model_fields[str(info.field_name)].json_schema_extra
        if not extra or "within" not in extra or value == "auto":
            return value
        low, high = extra["within"]
        if not low <= value <= high:
            raise ValueError(f'must be "auto" or a whole number from {low} to {high}, but is {value}.')
        return value


def _takes(annotation: Any, *kinds: type) -> bool:
    return any(member in kinds for member in split_union(annotation))


def describe_type(annotation: Any) -> str:
    """What kind of value a setting takes, in words."""
    words = {int: "a whole number", float: "a number", str: "text", bool: "true or false", type(None): "nothing (null)"}
    parts: list[str] = []
    for member in split_union(annotation):
        if typing.get_origin(member) is typing.Literal:
            parts += [f'"{choice}"' for choice in typing.get_args(member)]
        elif member in words:
            parts.append(words[member])
        elif isinstance(member, type) and issubclass(member, Section):
            parts.append("a group of settings")
        else:
            parts.append(str(member))
    return parts[0] if len(parts) == 1 else ", ".join(parts[:-1]) + " or " + parts[-1]


def nearest_name(name: str, names: Iterable[str]) -> str | None:
    """The most similar of `names`, or None when nothing is close. Flags keep their dashes."""
    # The dashes alone would make short flags alike.
    bare = {each.lstrip("-").lower(): each for each in names}
    word = name.lower().lstrip("-")
    matches = difflib.get_close_matches(word, list(bare), n=1, cutoff=_LIKENESS)
    # --output and --out differ in length only.
    matches += [
        each
        for each in bare
        if min(len(each), len(word)) >= _SHORTEST_BEGINNING and (each.startswith(word) or word.startswith(each))
    ]
    return bare[matches[0]] if matches else None


def describe_errors(error: ValidationError, section: type[Section], prefix: str = "") -> list[tuple[str, str]]:
    """Pydantic's findings as (dotted key, sentence) pairs, one per key."""
    problems: dict[str, str] = {}
    for detail in error.errors(include_url=False):
        for key, text in _describe_detail(detail, section, prefix):
            problems.setdefault(key, text)
    return list(problems.items())


def _describe_detail(detail: ErrorDetails, section: type[Section], prefix: str) -> list[tuple[str, str]]:
    location = [str(part) for part in detail["loc"]]
    cause = detail.get("ctx", {}).get("error")
    if isinstance(cause, ConfigError):
        lead = prefix + ".".join(location) + ("." if location else "")
        return [(lead + key if key else lead.rstrip("."), text) for key, text in cause.problems]
    name = location[0] if location else ""
    field = section.model_fields.get(name)
    if field is not None and isinstance(field.annotation, type) and issubclass(field.annotation, Section):
        inner = {**detail, "loc": tuple(detail["loc"][1:])}
        return _describe_detail(inner, field.annotation, f"{prefix}{name}.")  # type: ignore[arg-type]
    if detail["type"] == "extra_forbidden":
        return [(f"{prefix}{name}", NOT_A_SETTING)]
    if field is None:
        return [(prefix.rstrip("."), f"must be a group of settings, but is {_show(detail['input'])}.")]
    return [(f"{prefix}{name}", _sentence(detail, field.annotation))]


def _sentence(detail: ErrorDetails, annotation: Any) -> str:
    limits = detail.get("ctx", {})
    if detail["type"] == "value_error":
        return str(limits.get("error", detail["msg"]))
    bounds = {
        "greater_than_equal": f"must be at least {limits.get('ge')}",
        "greater_than": f"must be above {limits.get('gt')}",
        "less_than_equal": f"must be at most {limits.get('le')}",
        "less_than": f"must be below {limits.get('lt')}",
        "finite_number": "must be a finite number",
        "string_too_short": "must not be empty",
    }
    must = bounds.get(detail["type"], f"must be {describe_type(annotation)}")
    return f"{must}, but is {_show(detail['input'])}."


def _show(value: Any) -> str:
    text = repr(value) if isinstance(value, str) else str(value)
    return text if len(text) <= 80 else text[:77] + "..."


def parse_gpu_ids(text: str) -> list[int]:
    """The physical ids in a list like 0,1. Raises `ValueError` where it is no list of different ids."""
    words = [word.strip() for word in text.split(",")]
    if all(word.isascii() and word.isdecimal() for word in words):
        ids = [int(word) for word in words]
        if len(set(ids)) == len(ids):
            return ids
    raise ValueError(f"must be a list of different ids as nvidia-smi shows them, like 0,1, but is {text!r}.")
