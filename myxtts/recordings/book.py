"""The book of a corpus that is made of recordings: every clip, where it comes from, what speaks against it, and whether it is kept.

It is `clips.json` in the corpus's folder. Kept clips lie in `wavs/` and stand in `metadata.csv`, as LJSpeech has them; the others
wait in `aside/`. Whoever changes a text, or keeps or drops a clip, changes the book and calls `write_corpus`.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path

from filelock import FileLock, Timeout

from myxtts.data.drops import Drop, DropReport
from myxtts.errors import CorpusError, DropReason
from myxtts.files import FileError, open_file_atomically, read_json

BOOK_NAME, METADATA_NAME, DROPS_NAME = "clips.json", "metadata.csv", "set_aside.json"
KEPT_FOLDER, ASIDE_FOLDER = "wavs", "aside"
LOCK_NAME = ".lock"
VERSION = 1
MOST_BOOK_BYTES = 1 << 30
LOCK_SECONDS = 1.0
"""So long a lock is waited for: whoever only asks whether it is held has it for a moment."""
_CLIP_ID = re.compile(r"\w[\w.-]{0,99}")
"""It becomes a file's name, and a column of the metadata."""


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
    if not clip.figures.get("clipped_share"):
        names[DropReason.CLIPPED] = "flat_tops", "times as many peaks stop at one height as below it"
    name, unit = names.get(reason, ("", ""))
    value = clip.figures.get(name)
    return "" if value is None else f"{value:.3g} {unit}"


def find_wav(folder: Path, clip: BookedClip) -> Path:
    """Where the sound of a clip is by now, or should be."""
    own, other = (folder / name / f"{clip.id}.wav" for name in (KEPT_FOLDER, ASIDE_FOLDER)[:: 1 if clip.kept else -1])
    return other if other.exists() and not own.exists() else own


@contextmanager
def hold_corpus(folder: Path) -> Iterator[None]:
    """Makes the folder, and keeps other processes from making a corpus there for the block. Raises `CorpusError` where one does.

    The kernel frees the lock when the process ends, however it ends; the file that stays behind means nothing.
    """
    folder.mkdir(parents=True, exist_ok=True)
    lock = FileLock(folder / LOCK_NAME, timeout=LOCK_SECONDS, thread_local=False, fallback_to_soft=False)
    try:
        lock.acquire()
    except Timeout:
        raise CorpusError(
            f"{folder}: another process makes a corpus in this folder. Wait for it or stop it, or give another --out."
        ) from None
    except OSError as error:
        raise CorpusError(f"{folder / LOCK_NAME} cannot be locked ({error.strerror}). Give another --out.") from error
    try:
        yield
    finally:
        lock.release()


def read_book(folder: Path, *, is_check: bool = False) -> ClipBook:
    """The book of a corpus, or of a corpus that was only looked at, whose clips' ids are paths. Raises `FileError`."""
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
    if not is_check:
        _check_names(folder, book)
    return book


def _check_names(folder: Path, book: ClipBook) -> None:
    """Raises `FileError` where a clip would lie outside of the corpus, or be written over another."""
    seen = set[str]()
    for clip in book.clips:
        if not _CLIP_ID.fullmatch(clip.id) or clip.id in seen:
            raise FileError(
                folder / BOOK_NAME,
                f"each clip's id must be one of its own, of at most 100 letters, digits, _, - and dots behind the first, but one is {clip.id[:120]!r}.",
            )
        seen.add(clip.id)
    for name in (KEPT_FOLDER, ASIDE_FOLDER):
        if (folder / name).is_symlink():
            raise FileError(folder / name, "must be a folder, but is a link. Put the folder itself there.")


def _write_json(book: ClipBook) -> bytes:
    return json.dumps(asdict(book), ensure_ascii=False, indent=1).encode("utf-8", "backslashreplace")


def write_book(folder: Path, book: ClipBook) -> None:
    with open_file_atomically(folder / BOOK_NAME, follows_link=False) as file:
        file.write(_write_json(book))


def write_corpus(folder: Path, book: ClipBook) -> None:
    """Writes the book, moves each clip to where it belongs, and writes the metadata of those that are kept.

    All is as it was where that fails. Killed in between, it is to be called again. Raises `FileError` and `WriteError`.
    """
    _check_names(folder, book)
    lines = [f"{clip.id}|{text}|{text}\n" for clip in book.clips if clip.kept for text in [_flatten(clip.text)]]
    report = json.dumps(book.make_report().to_json(), ensure_ascii=False, indent=1) + "\n"
    contents = {
        DROPS_NAME: report.encode("utf-8", "backslashreplace"),
        METADATA_NAME: "".join(lines).encode("utf-8", "backslashreplace"),
        BOOK_NAME: _write_json(book),
    }
    with ExitStack() as files:
        # Each takes its place when all of them are on the disk: then nothing needs room any more.
        for name, content in contents.items():
            file = files.enter_context(open_file_atomically(folder / name, follows_link=False))
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        _move_clips(folder, book)


def _move_clips(folder: Path, book: ClipBook) -> None:
    """Each clip to where it belongs, or none of them."""
    for name in (KEPT_FOLDER, ASIDE_FOLDER):
        (folder / name).mkdir(exist_ok=True)
    with ExitStack() as moves:
        for clip in book.clips:
            target = folder / (KEPT_FOLDER if clip.kept else ASIDE_FOLDER) / f"{clip.id}.wav"
            found = find_wav(folder, clip)
            if found != target:
                os.replace(found, target)
                moves.callback(os.replace, target, found)
        moves.pop_all()


def _flatten(text: str) -> str:
    """A text on one line, without what parts columns."""
    return " ".join(text.replace("|", " ").split())
