"""YAML in and out, with the line of every value, so that an error can point at it."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from myxtts.config.section import nearest_name
from myxtts.errors import ConfigError
from myxtts.files import FileError, MissingFileError, read_text

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
class YamlSettings:
    """The content of a configuration file."""

    path: Path
    sections: dict[str, Any]
    lines: dict[str, int]
    """Dotted key -> line, counted from 1."""

    def locate(self, key: str) -> str:
        """`file:line` of a key, or of its section, or the file."""
        line = self.lines.get(key) or self.lines.get(key.partition(".")[0])
        return f"{self.path}:{line}" if line else str(self.path)


def read_yaml(path: Path) -> YamlSettings:
    """The settings in a YAML file, not validated yet. Raises `ConfigError` for a file that cannot be read."""
    try:
        text = read_text(path, MOST_YAML_BYTES)
    except MissingFileError:
        raise ConfigError([("", f"{path}: there is no such file. {_suggest_file(path)}")]) from None
    except FileError as error:
        raise ConfigError([("", f"{error} {_suggest_in_folder(path)}")]) from None
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
        raise ConfigError([("", f"{path}: is not valid YAML. {' '.join(str(error).split())[:300]}")]) from None
    except (RecursionError, ValueError, TypeError, OverflowError, LookupError, AttributeError) as error:
        # PyYAML's own constructors fail in all these ways on explicit tags such as `!!bool maybe`.
        raise ConfigError(
            [("", f"{path}: holds a value that cannot be read ({type(error).__name__}: {error}).")]
        ) from None
    if content is None:
        content = {}
    if not isinstance(content, dict):
        raise ConfigError(
            [("", f"{path}: must hold the sections model, data and training, but holds {type(content).__name__}.")]
        )
    return YamlSettings(path=path, sections={str(key): value for key, value in content.items()}, lines=lines)


def _collect_lines(node: yaml.Node | None, path: Path) -> dict[str, int]:
    lines: dict[str, int] = {}
    found: list[tuple[str, yaml.Node]] = []
    for key, value in node.value if isinstance(node, yaml.MappingNode) else ():
        found.append((str(key.value), key))
        if isinstance(value, yaml.MappingNode):
            found += [(f"{key.value}.{inner.value}", inner) for inner, _ in value.value]
    for name, place in found:
        line = place.start_mark.line + 1
        if name in lines:
            raise ConfigError([(name, f"stands twice in {path}, in lines {lines[name]} and {line}. Keep one of them.")])
        lines[name] = line
    return lines


def _suggest_file(path: Path) -> str:
    folder = path.parent
    try:
        # By their stems: an ending that all share would make all names alike.
        names = {entry.stem: entry.name for entry in _list_yaml_files(folder)}
    except OSError:
        return f"The folder {folder} does not exist either."
    near = nearest_name(path.stem, names)
    return f'Did you mean "{folder / names[near]}"?' if near else "Give the path of a YAML file."


def _suggest_in_folder(folder: Path) -> str:
    try:
        files = _list_yaml_files(folder)
    except OSError:
        files = []
    return f"Give a file in it, such as {files[0]}." if files else "Give a YAML file that you may read, saved as UTF-8."


def _list_yaml_files(folder: Path) -> list[Path]:
    return sorted(entry for entry in folder.iterdir() if entry.suffix in (".yaml", ".yml"))


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
