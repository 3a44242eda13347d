"""Corpora of a workspace: made by `myxtts corpus`, then listened to clip by clip, mended, kept or dropped."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from markupsafe import Markup
from numpy.typing import NDArray

from myxtts.audio.reading import read_clip
from myxtts.errors import DropReason
from myxtts.files import open_file_atomically
from myxtts.recordings.book import (
    BOOK_NAME,
    METADATA_NAME,
    BookedClip,
    ClipBook,
    find_wav,
    read_book,
    write_corpus,
)
from myxtts.serving.request import ApiError
from myxtts.studio.door import CONFLICT, refuse_unknown
from myxtts.studio.jobs import Jobs
from myxtts.studio.workspace import LOCK_NAME, Recording, Workspace, is_held

PAGE_CLIPS = 60
"""Sent at a time: the first can be played before the others have come."""
WAVE_BARS = 120
WAVE_HEIGHT = 40
MOST_TEXT = 2000
MOST_BOOKS = 4
"""Kept in memory: of the few corpora that somebody looks at."""
VIEWS = ("all", "doubtful", "kept", "dropped")


@dataclass(frozen=True)
class CorpusState:
    """How a corpus is."""

    name: str
    status: str
    """making, ready, stopped, or failed."""
    clips: int = 0
    kept: int = 0
    """While it is made, those that were judged so far."""
    kept_seconds: float = 0.0
    problem: str = ""


class Corpora:
    """The corpora of a workspace. A book is read again when somebody else has changed its file."""

    def __init__(self, workspace: Workspace, jobs: Jobs):
        self._workspace, self._jobs = workspace, jobs
        self._books: dict[Path, tuple[tuple[int, int], ClipBook]] = {}
        self._reading = threading.Lock()
        # Changes of two threads would overwrite each other; who only reads does not wait for them.
        self._changing = threading.Lock()

    def describe(self, name: str) -> CorpusState:
        folder, job = self._workspace.corpora / name, f"corpus-{name}"
        book = self._open(folder) if (folder / BOOK_NAME).is_file() else None
        if self._is_made(name):
            clips = [] if book is None else book.clips
            return CorpusState(name, "making", len(clips), sum(bool(clip.figures) for clip in clips))
        if book is None or not book.complete:
            record = self._jobs.find(job)
            # Of one that was made in a shell nobody knows why it does not go on.
            if record is None or record.is_stopped:
                return CorpusState(name, "stopped")
            return CorpusState(name, "failed", problem=self._jobs.read_log(job))
        kept = [clip.seconds for clip in book.clips if clip.kept]
        return CorpusState(name, "ready", len(book.clips), len(kept), sum(kept))

    def list_all(self) -> list[CorpusState]:
        """All but those that somebody has put there without a book: of these there is nothing to listen to."""
        names, usable = self._workspace.list_names(self._workspace.corpora), self.list_usable()
        is_booked = {name: (self._workspace.corpora / name / BOOK_NAME).is_file() for name in names}
        return [self.describe(name) for name in names if is_booked[name] or name not in usable]

    def list_usable(self) -> list[str]:
        """Those to train on or to measure with: also a corpus that somebody has put there without a book."""
        names, folder = self._workspace.list_names(self._workspace.corpora), self._workspace.corpora
        return [name for name in names if self._is_usable(folder / name)]

    def find_usable(self, name: str) -> Path:
        """The folder of such a corpus. Raises `ApiError`."""
        folder = self._find(name)
        if not self._is_usable(folder):
            raise ApiError(f"The corpus {name} is not made to its end. Let it go on first.", CONFLICT, param="corpus")
        return folder

    def _is_usable(self, folder: Path) -> bool:
        if (folder / BOOK_NAME).is_file():
            return self._open(folder).complete
        return (folder / METADATA_NAME).is_file()

    def _is_made(self, name: str) -> bool:
        """Whether somebody makes a corpus now."""
        return self._jobs.is_running(f"corpus-{name}") or is_held(self._workspace.corpora / name / LOCK_NAME)

    def make(
        self, name: str, recordings: Sequence[Recording], language: str, flags: Iterable[str] = (), *, hears_all: bool
    ) -> None:
        """Begins to make a corpus. What was read from a script is taken from it, unless all is to be heard."""
        if not recordings:
            raise ApiError("Choose one recording or more.")
        folder = self._workspace.name_new(self._workspace.corpora, name)
        paths = [str(self._workspace.find_recording(each.id)[1]) for each in recordings]
        words = ["corpus", *paths, "--out", str(folder), "--language", language, *flags]
        read = [] if hears_all else [each.text for each in recordings if each.text]
        if read and len(read) < len(recordings):
            raise ApiError(
                f"{len(read)} of the {len(recordings)} recordings were read from a script and the others were not, but a script is "
                "that of all recordings of a corpus. Make two corpora, or let all be written down as it is heard.",
                CONFLICT,
            )
        if read:
            script = self._workspace.jobs / f"{name}.script.txt"
            with open_file_atomically(script) as file:
                file.write("\n".join(read).encode())
            words += ["--script", str(script)]
        folder.mkdir(exist_ok=True)
        self._jobs.start(f"corpus-{name}", words)

    def go_on(self, name: str) -> None:
        """Starts again what was interrupted."""
        if (job := self._jobs.find(f"corpus-{name}")) is None:
            raise ApiError(f"{name} was not made here, so it cannot go on here. Give the command again with which it was made.", CONFLICT)  # fmt: skip
        self._jobs.start(f"corpus-{name}", job.words)

    def read_language(self, name: str) -> str | None:
        """What is spoken in a corpus; None for one without a book, of which nobody knows."""
        folder = self._find(name)
        return self._open(folder).language if (folder / BOOK_NAME).is_file() else None

    def list_clips(self, name: str, view: str, first: int) -> tuple[list[BookedClip], int]:
        """A page of clips, the doubtful ones first, and how many there are in that view."""
        tests: Mapping[str, Callable[[BookedClip], bool]] = {
            "all": lambda clip: True,
            "doubtful": lambda clip: bool(clip.reasons),
            "kept": lambda clip: clip.kept,
            "dropped": lambda clip: not clip.kept,
        }
        if view not in tests:
            raise refuse_unknown("view")
        found = [clip for clip in self._open(self._find(name)).clips if tests[view](clip)]
        # What is wrong with a clip stays known when somebody has decided, so nothing moves under the reader's eyes.
        found.sort(key=lambda clip: not clip.reasons)
        return found[first : first + PAGE_CLIPS], len(found)

    def find_clip(self, name: str, id: str) -> tuple[BookedClip, Path]:
        """A clip and its sound. Raises `ApiError`."""
        folder = self._find(name)
        clip = _pick(self._open(folder), id)
        return clip, self._workspace.keep_inside(find_wav(folder, clip), "clip")

    def change_clip(self, name: str, id: str, *, text: str | None = None, is_kept: bool | None = None) -> BookedClip:
        """Mends the text of a clip, keeps or drops it, and writes the corpus anew."""
        if text is not None and (not text.strip() or len(text) > MOST_TEXT):
            raise ApiError(f"A text must have 1 to {MOST_TEXT} characters. Drop a clip that says nothing.", param="text")  # fmt: skip
        if self._is_made(name):
            raise ApiError(f"{name} is still being made. Wait for that.", CONFLICT)
        folder = self._find(name)
        with self._changing:
            book = self._open(folder)
            clip = _pick(book, id)
            if text is not None:
                clip.text = " ".join(text.split())
            if is_kept is not None:
                clip.kept = is_kept
                others = [each for each in clip.reasons if each != DropReason.BY_HAND]
                clip.reasons = others if is_kept or others else [DropReason.BY_HAND]
            try:
                write_corpus(folder, book)
            except BaseException:
                # What holds is then in the file.
                self._keep(folder, None)
                raise
            self._keep(folder, (_stamp(folder), book))
            return clip

    def _find(self, name: str) -> Path:
        return self._workspace.find(self._workspace.corpora, name, "corpus")

    def _open(self, folder: Path) -> ClipBook:
        with self._reading:
            stamp, known = _stamp(folder), self._books.get(folder)
            if known is None or known[0] != stamp:
                known = stamp, read_book(folder)
            self._keep(folder, known)
            return known[1]

    def _keep(self, folder: Path, known: tuple[tuple[int, int], ClipBook] | None) -> None:
        """Makes a book the latest of those in memory, or forgets it."""
        self._books.pop(folder, None)
        if known is not None:
            self._books[folder] = known
        for oldest in list(self._books)[:-MOST_BOOKS]:
            self._books.pop(oldest, None)


def _pick(book: ClipBook, id: str) -> BookedClip:
    if (clip := next((each for each in book.clips if each.id == id), None)) is None:
        raise refuse_unknown("clip")
    return clip


def _stamp(folder: Path) -> tuple[int, int]:
    """Differs when the book of a corpus was written again."""
    try:
        status = (folder / BOOK_NAME).stat()
    except OSError:
        raise refuse_unknown("corpus") from None
    return status.st_mtime_ns, status.st_ino


def draw_wave(path: Path) -> Markup:
    """The loudness of a clip over its time, as an SVG file."""
    samples = read_clip(path)
    bars = measure_bars(samples)
    top = max(float(bars.max()), 1e-3)
    lines = "".join(
        f"M{x + 0.5} {WAVE_HEIGHT / 2 - size:.1f}v{2 * size:.1f}"
        for x, bar in enumerate(bars)
        for size in [max(0.5, bar / top * (WAVE_HEIGHT / 2 - 1))]
    )
    return Markup(
        '<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {} {}" preserveAspectRatio="none"><style>path{{stroke:#2f6db5}}'
        '@media(prefers-color-scheme:dark){{path{{stroke:#72aae8}}}}</style><path d="{}" stroke-width=".7"/></svg>'
    ).format(WAVE_BARS, WAVE_HEIGHT, lines)


def measure_bars(samples: NDArray[np.float32]) -> NDArray[np.float64]:
    """The loudest sample of each of so many equal parts."""
    edges = np.linspace(0, len(samples), WAVE_BARS, endpoint=False).astype(np.int64)
    return np.maximum.reduceat(np.abs(samples).astype(np.float64), edges)
