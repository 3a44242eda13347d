"""What was set aside, and why: nothing is lost without a word."""

from __future__ import annotations

import itertools
import json
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from myxtts.errors import CorpusError, DropReason
from myxtts.files import open_file_atomically

_ADVICE = {
    DropReason.MISSING: "clips must be files beside the metadata file, or in wavs/ beside it",
    DropReason.UNREADABLE: "check their permissions, and the disk or the mount they are on",
    DropReason.UNSUPPORTED: "convert them: ffmpeg -i INPUT OUTPUT.flac",
    DropReason.LANGUAGE: "it must be one that MyXTTS reads and the vocabulary has a tag for; `myxtts vocabulary` adds tags",
    DropReason.UNKNOWN_CHARACTERS: "correct the text, or extend the vocabulary",
}
"""What helps where the reason alone does not tell."""


@dataclass(frozen=True, slots=True)
class Drop:
    """A clip that was set aside."""

    reason: DropReason
    file: str
    """The audio file as found or, where there is none, as the metadata names it."""
    where: str
    """Metadata file and line, or the place in the run."""
    detail: str = ""
    """What was found, where the reason alone does not say it."""


@dataclass(kw_only=True, eq=False)
class DropReport:
    """All clips set aside from one corpus, and those that failed later, during training."""

    lines: int
    """Clips the metadata names."""
    kept_seconds: float
    drops: tuple[Drop, ...] = ()
    replaced: list[Drop] = field(default_factory=list)
    """What was replaced during training, in the order it happened."""

    def group_by_reason(self) -> dict[DropReason, list[Drop]]:
        """The drops of each reason that occurs, in the order of `DropReason`."""
        order = list(DropReason)
        drops = sorted(self.drops, key=lambda drop: order.index(drop.reason))
        return {reason: list(group) for reason, group in itertools.groupby(drops, key=lambda drop: drop.reason)}

    def format_table(self) -> str:
        """The report as plain text: a line per reason with the first files, then the sum."""
        kept, duration = self.lines - len(self.drops), _format_duration(self.kept_seconds)
        total = f"{kept} of {self.lines} clips can be used ({duration}); {len(self.drops)} set aside."
        if self.replaced:
            total += f"\n{len(self.replaced)} replaced during training: {_list_files(self.replaced)}"
        groups = self.group_by_reason()
        if not groups:
            return total
        width = max(len(reason) for reason in groups)
        rows = [f"{reason:<{width}}  {len(drops):>7}  {_list_files(drops)}" for reason, drops in groups.items()]
        advice = [f"{reason}: {_ADVICE[reason]}." for reason in groups if reason in _ADVICE]
        return "\n".join([f"{'reason':<{width}}  {'clips':>7}  files", *rows, *advice, total])

    def to_json(self) -> dict[str, Any]:
        return {
            "lines": self.lines,
            "kept": self.lines - len(self.drops),
            "kept_seconds": round(self.kept_seconds, 3),
            "dropped": {
                reason: [{name: text for name, text in asdict(drop).items() if name != "reason"} for drop in drops]
                for reason, drops in self.group_by_reason().items()
            },
            "replaced": [asdict(drop) for drop in self.replaced],
        }

    def write_json(self, path: Path) -> None:
        with open_file_atomically(path, follows_link=False) as file:
            text = json.dumps(self.to_json(), ensure_ascii=False, indent=1) + "\n"
            file.write(text.encode("utf-8", "backslashreplace"))

    def refuse_drops(self) -> None:
        """Raise `CorpusError` if anything was set aside: what `--strict` asks for."""
        if self.drops:
            raise CorpusError(
                f"--strict allows no clip to be set aside, but there are some:\n{self.format_table()}\n"
                "Correct or remove them, or leave --strict out."
            )


def _list_files(drops: list[Drop], most: int = 3) -> str:
    names = [f"{drop.file} ({drop.detail})" if drop.detail else drop.file for drop in drops[:most]]
    more = len(drops) - len(names)
    return ", ".join(names) + (f" and {more} more" if more else "")


def _format_duration(seconds: float) -> str:
    if seconds < 60:
        return f"{seconds:.1f} s"
    return f"{seconds / 60:.1f} min" if seconds < 3600 else f"{seconds / 3600:.1f} h"
