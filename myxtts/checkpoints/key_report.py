"""Comparing the tensors of a file with those a model needs, by name and shape."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from myxtts.checkpoints.errors import KeyMismatchError
from myxtts.checkpoints.tensor import Tensor

SHOWN_NAMES = 10


@dataclass(frozen=True)
class MisShaped:
    """A tensor that is there, in another shape."""

    name: str
    expected: tuple[int, ...]
    actual: tuple[int, ...]

    def __str__(self) -> str:
        return f"{self.name}: must be {self.expected}, but is {self.actual}"


@dataclass(frozen=True)
class KeyReport:
    """What differs between the tensors expected and those found. Names are sorted."""

    missing: tuple[str, ...]
    unexpected: tuple[str, ...]
    mis_shaped: tuple[MisShaped, ...]

    @property
    def is_match(self) -> bool:
        """Whether nothing differs."""
        return not (self.missing or self.unexpected or self.mis_shaped)

    def describe(self, shown: int = SHOWN_NAMES) -> str:
        """The differences as lines of text: how many of each kind, and the first of them."""
        groups: list[tuple[str, Sequence[object]]] = [
            ("missing", self.missing),
            ("unexpected", self.unexpected),
            ("of another shape", self.mis_shaped),
        ]
        lines: list[str] = []
        for title, entries in groups:
            if entries:
                lines.append(f"{len(entries)} {title}:")
                # A file may hold a name of any length.
                lines += [f"  {entry!s:.200}" for entry in entries[:shown]]
                if len(entries) > shown:
                    lines.append(f"  ... and {len(entries) - shown} more")
        return "\n".join(lines) or "all tensors are there, in the right shapes"

    def require_match(self, source: str | Path, *, allow_missing: bool = False, allow_unexpected: bool = False) -> None:
        """Raises `KeyMismatchError` unless what differs is allowed. A wrong shape never is."""
        refused = KeyReport(
            missing=() if allow_missing else self.missing,
            unexpected=() if allow_unexpected else self.unexpected,
            mis_shaped=self.mis_shaped,
        )
        if not refused.is_match:
            raise KeyMismatchError(
                f"{source}: its tensors are not those of the model asked for. Check that the model's settings (layers, "
                f"widths, vocabulary) are the file's.\n{refused.describe()}"
            )


def compare_keys(expected_shapes: Mapping[str, Sequence[int]], arrays: Mapping[str, Tensor]) -> KeyReport:
    """What differs between the shapes a model needs and the arrays there are. Reads no values."""
    common = expected_shapes.keys() & arrays.keys()
    shapes = {name: (tuple(expected_shapes[name]), tuple(arrays[name].shape)) for name in sorted(common)}
    return KeyReport(
        missing=tuple(sorted(expected_shapes.keys() - arrays.keys())),
        unexpected=tuple(sorted(arrays.keys() - expected_shapes.keys())),
        mis_shaped=tuple(MisShaped(name, *pair) for name, pair in shapes.items() if pair[0] != pair[1]),
    )
