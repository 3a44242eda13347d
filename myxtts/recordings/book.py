"""The book of a corpus that is made of recordings: every clip, where it comes from, what speaks against it, and whether it is kept.

It is `clips.json` in the corpus's folder. Kept clips lie in `wavs/` and stand in `metadata.csv`, as LJSpeech has them; the others
wait in `aside/`. Whoever changes a text, or keeps or drops a clip, changes the book and calls `write_corpus`.
"""

from __future__ import annotations

import json
import os
from dataclasses import asdict, dataclass, field
from pathlib import Path

from myxtts.data.drops import Drop, DropReport
from myxtts.errors import DropReason
from myxtts.files import FileError, open_file_atomically, read_json

BOOK_NAME, METADATA_NAME, DROPS_NAME = "clips.json", "metadata.csv", "set_aside.json"
KEPT_FOLDER, ASIDE_FOLDER = "wavs", "aside"
VERSION = 1
MOST_BOOK_BYTES = 1 << 30


@dataclass
class BookedRecording:
    """A recording as it was found."""

    path: str
    size_bytes: int = 0
    mtime_ns: int = 0
    seconds: float = 0.0
    is_heard: bool = False
    """Whether its clips are known, or it is known that it has none."""
    reason: str | None = None
    """Why it cannot be used, a value of `DropReason`; None for one that can."""
    problem: str = ""
    """The same in words."""


@dataclass
class BookedClip:
    """A clip, whether it is kept or not."""

    id: str
    """Its file's name without `.wav`; in a corpus that was only looked at, its file."""
    source: str
    """The recording it was cut from; in a corpus that was only looked at, its speaker."""
    start: float
    """In the recording, in seconds."""
    end: float
    seconds: float
    text: str = ""
    heard: str | None = None
    """What a recogniser hears; None where none was asked, or it failed."""
    reasons: list[str] = field(default_factory=list)
    """What speaks against it, values of `DropReason`. One that is kept by hand still has them."""
    kept: bool = False
    figures: dict[str, float | None] = field(default_factory=dict)
    """What was measured; empty before that. None is what could not be had."""
    language: str = "en"
    is_forced: bool = False
    """Whether it was cut where there is no pause."""
    voice: list[float] = field(default_factory=list)
    """How it sounds, to compare it with others."""


@dataclass
class ClipBook:
    """All clips of a corpus, and what they were made of and with."""

    identity: str
    """Of recordings, script and settings: a book of others does not go on."""
    language: str
    recogniser: str | None
    script: str | None
    recordings: list[BookedRecording] = field(default_factory=list)
    clips: list[BookedClip] = field(default_factory=list)
    complete: bool = False
    version: int = VERSION

    def make_report(self) -> DropReport:
        """What was set aside, by reason: recordings and clips."""
        drops = [
            Drop(DropReason(each.reason), each.path, each.path, each.problem)
            for each in self.recordings
            if each.reason is not None
        ]
        kept = [clip for clip in self.clips if clip.kept]
        drops += [
            Drop(DropReason(clip.reasons[0]), clip.id, f"{clip.source}, {clip.start:.2f} s", _describe(clip))
            for clip in self.clips
            if not clip.kept
        ]
        return DropReport(
            lines=len(kept) + len(drops), kept_seconds=sum(clip.seconds for clip in kept), drops=tuple(drops)
        )


def _describe(clip: BookedClip) -> str:
    """The figure behind a clip's first reason."""
    names = {
        DropReason.CLIPPED: ("clipped_share", "of its samples"),
        DropReason.NOISY: ("snr_db", "dB"),
        DropReason.MISHEARD: ("misheard_characters", "of its characters"),
        DropReason.SPEAKING_RATE: ("characters_per_s", "characters/s"),
        DropReason.OTHER_VOICE: ("voice_distance", "times the usual distance"),
    }
    reason = DropReason(clip.reasons[0])
    if reason in (DropReason.TOO_SHORT, DropReason.TOO_LONG):
        return f"{clip.seconds:.2f} s"
    name, unit = names.get(reason, ("", ""))
    value = clip.figures.get(name)
    return "" if value is None else f"{value:.3g} {unit}"


def find_wav(folder: Path, clip: BookedClip) -> Path:
    """Where the sound of a clip is by now, or should be."""
    own, other = (folder / name / f"{clip.id}.wav" for name in (KEPT_FOLDER, ASIDE_FOLDER)[:: 1 if clip.kept else -1])
    return other if other.exists() and not own.exists() else own


def read_book(folder: Path) -> ClipBook:
    """The book of a corpus. Raises `FileError`."""
    path = folder / BOOK_NAME
    book = read_json(path, ClipBook, most_bytes=MOST_BOOK_BYTES)
    if book.version != VERSION:
        raise FileError(
            path,
            f"must be of version {VERSION}, but is of {book.version}. Use the MyXTTS that wrote it, or another folder.",
        )
    known = set(DropReason)
    for clip in book.clips:
        if not set(clip.reasons) <= known or (book.complete and not clip.kept and not clip.reasons):
            raise FileError(path, f"clip {clip.id[:80]!r}: its reasons must be some of {', '.join(known)}.")
    return book


def write_book(folder: Path, book: ClipBook) -> None:
    with open_file_atomically(folder / BOOK_NAME, follows_link=False) as file:
        file.write(json.dumps(asdict(book), ensure_ascii=False, indent=1).encode("utf-8", "backslashreplace"))


def write_corpus(folder: Path, book: ClipBook) -> None:
    """Writes the book, moves each clip to where it belongs, and writes the metadata of those that are kept.

    Killed in between, it is to be called again.
    """
    write_book(folder, book)
    for name in (KEPT_FOLDER, ASIDE_FOLDER):
        (folder / name).mkdir(exist_ok=True)
    for clip in book.clips:
        target = folder / (KEPT_FOLDER if clip.kept else ASIDE_FOLDER) / f"{clip.id}.wav"
        found = find_wav(folder, clip)
        if found != target:
            os.replace(found, target)
    lines = [f"{clip.id}|{text}|{text}\n" for clip in book.clips if clip.kept for text in [_flatten(clip.text)]]
    with open_file_atomically(folder / METADATA_NAME, follows_link=False) as file:
        file.write("".join(lines).encode("utf-8", "backslashreplace"))
    book.make_report().write_json(folder / DROPS_NAME)


def _flatten(text: str) -> str:
    """A text on one line, without what parts columns."""
    return " ".join(text.replace("|", " ").split())
