"""Small corpora, made by hand."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import soundfile

from myxtts.data.corpus import Corpus, NameColumnBuilder, TextColumnBuilder, TextIds


def make_tone(seconds: float = 1.0, rate_hz: int = 22050) -> np.ndarray:
    return 0.3 * np.sin(np.arange(round(seconds * rate_hz)) * 0.05)


def write_clips(folder: Path, names: Iterable[str], seconds: float = 1.0) -> None:
    """Write a tone to `wavs/` for each name."""
    (folder / "wavs").mkdir(parents=True, exist_ok=True)
    for name in names:
        soundfile.write(folder / "wavs" / f"{name}.wav", make_tone(seconds), 22050)


def write_metadata(folder: Path, *lines: str, name: str = "metadata.csv") -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / name
    path.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    return path


def make_clips(root: Path, audio: Sequence[str], **columns: Any) -> Corpus:
    """A corpus without files. Columns that are not given are the same for all clips."""
    count = len(audio)

    def build(builder: Any, entries: Iterable[str]) -> Any:
        for entry in entries:
            builder.append(entry)
        return builder.build()

    return Corpus(
        root=root,
        audio=build(TextColumnBuilder(), audio),
        text=build(TextColumnBuilder(), columns.get("text", audio)),
        speaker=build(NameColumnBuilder(), columns.get("speaker", ["a"] * count)),
        language=build(NameColumnBuilder(), columns.get("language", ["en"] * count)),
        samples=np.array(columns.get("samples", [22050] * count), np.int64),
        tokens=np.array(columns.get("tokens", [5] * count), np.int32),
        ids=TextIds(np.zeros(0, np.uint16), np.zeros(count + 1, np.int64)),
        size_bytes=np.full(count, 44, np.int64),
        mtime_ns=np.full(count, 1 << 60, np.int64),
    )
