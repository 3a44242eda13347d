"""A copy of a corpus in the formats that data workers can send as they are, with the samples of the original, bit for bit.

Plain wav files are copied; everything else is decoded, mixed to one channel and resampled once, and written as
floating-point wav. The copy is a corpus like any other.
"""

from __future__ import annotations

import csv
import os
import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any

from myxtts.audio.clip_errors import ClipError
from myxtts.audio.reading import read_clip
from myxtts.data.corpus import Corpus
from myxtts.data.errors import PreparedCorpusError
from myxtts.data.facts import Progress
from myxtts.data.float_wav import write_float_wav
from myxtts.data.pcm_wav import find_samples
from myxtts.data.workers import Crashed, Task, Work, run_task
from myxtts.files import FileError, read_bytes

METADATA_NAME = "metadata.csv"
MARK_NAME = ".myxtts-prepared"
"""In a folder that a copy is written to. A folder with files and without it is somebody's, and left alone."""
_HEADER = ("audio_file", "text", "speaker_name", "language")
_TASK = Task("myxtts.data.prepared_corpus:make_writer")


@dataclass(frozen=True)
class PreparedCorpus:
    """What a copy consists of."""

    clips: int
    converted: int
    """By this call, as they were not plain wav."""
    copied: int
    """By this call."""
    reused: int
    """That an earlier call had written."""
    size_bytes: int


def prepare_corpus(corpus: Corpus, out: Path, *, workers: int, progress: Progress) -> PreparedCorpus:
    """Write a copy of a corpus to a folder. Called again, it goes on where it was, and takes over what was changed.

    Args:
        workers: processes; 0 is this one.
        progress: called after each clip.
    """
    _check_folder(corpus.root, out)
    names = name_copies(list(corpus.audio))
    for folder in {(out / name).parent for name in names}:
        folder.mkdir(parents=True, exist_ok=True)
    items = [[str(corpus.find_file(clip)), str(out / name)] for clip, name in enumerate(names)]
    facts: list[dict[str, Any]] = []
    for position, result in run_task(_TASK, items, workers):
        if isinstance(result, Crashed):
            raise PreparedCorpusError(f"{items[position][0]} cannot be decoded: a process that tried died of signal {result.signal}.")  # fmt: skip
        facts.append(result)
        progress("clips", len(facts), len(items))
    # Last: a folder without it is no corpus yet.
    _write_metadata(out / METADATA_NAME, corpus, names)
    return PreparedCorpus(
        clips=len(facts),
        converted=sum(fact["is_converted"] and not fact["is_reused"] for fact in facts),
        copied=sum(not fact["is_converted"] and not fact["is_reused"] for fact in facts),
        reused=sum(fact["is_reused"] for fact in facts),
        size_bytes=sum(fact["size_bytes"] for fact in facts),
    )


def make_writer() -> Work:
    """The work of a process that writes clips: takes a source and a target, gives what was done."""

    def write(item: list[str]) -> dict[str, Any]:
        source, target = map(Path, item)
        try:
            return write_clip(source, target)
        except (ClipError, FileError) as error:
            raise PreparedCorpusError(f"{error}") from error
        except OSError as error:
            raise PreparedCorpusError(f"{target} cannot be written from {source}: {error.strerror}.") from error

    return write


def write_clip(source: Path, target: Path) -> dict[str, Any]:
    """Write a clip's copy, unless it is there."""
    size_bytes, mtime_ns = (status := source.stat()).st_size, status.st_mtime_ns
    # The time of the original is given to a copy when it is complete.
    is_reused = target.exists() and target.stat().st_mtime_ns == mtime_ns
    is_plain = find_samples(read_bytes(source, size_bytes)) is not None
    if not is_reused:
        if is_plain:
            shutil.copyfile(source, target)
        else:
            write_float_wav(target, read_clip(source))
        os.utime(target, ns=(mtime_ns, mtime_ns))
    return {"is_converted": not is_plain, "is_reused": is_reused, "size_bytes": target.stat().st_size}


def name_copies(names: Sequence[str]) -> list[str]:
    """Where the copies of clips lie: as the originals do, ending in .wav; numbered where two would be the same."""
    taken: set[str] = set()
    copies: list[str] = []
    for name in names:
        path = PurePosixPath(name).with_suffix(".wav")
        copy, number = path, 1
        while str(copy) in taken:
            number += 1
            copy = path.with_stem(f"{path.stem}_{number}")
        taken.add(str(copy))
        copies.append(str(copy))
    return copies


def _check_folder(root: Path, out: Path) -> None:
    if os.path.realpath(out) == os.path.realpath(root):
        raise PreparedCorpusError(f"--out must be another folder than the corpus, but is {out}.")
    try:
        out.mkdir(parents=True, exist_ok=True)
        others = sorted(entry.name for entry in out.iterdir())
        if others and MARK_NAME not in others:
            raise PreparedCorpusError(
                f"--out {out} holds other files ({', '.join(others[:3])}), which could be overwritten. Give a new or empty folder, or a copy "
                "that an earlier call has begun."
            )
        (out / MARK_NAME).touch()
    except OSError as error:
        raise PreparedCorpusError(f"--out {out} cannot be made: {error.strerror}. Give a folder on storage that all machines share.") from None  # fmt: skip


def _write_metadata(path: Path, corpus: Corpus, names: Sequence[str]) -> None:
    partial = path.with_name(f".{path.name}.partial")
    with partial.open("w", encoding="utf-8", errors="surrogateescape", newline="") as file:
        writer = csv.writer(file, delimiter="|", lineterminator="\n")
        writer.writerow(_HEADER)
        for clip, name in enumerate(names):
            writer.writerow([name, corpus.text[clip], corpus.speaker[clip], corpus.language[clip]])
    partial.replace(path)
