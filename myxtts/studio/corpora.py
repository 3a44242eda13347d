"""Corpora of a workspace: made by `myxtts corpus`, then listened to clip by clip, mended, kept or dropped."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from markupsafe import Markup
from numpy.typing import NDArray

from myxtts.audio.reading import read_clip
from myxtts.errors import DropReason
from myxtts.files import open_file_atomically
from myxtts.recordings.book import BOOK_NAME, BookedClip, ClipBook, find_wav, read_book, write_corpus
from myxtts.serving.request import ApiError
from myxtts.studio.door import CONFLICT, refuse_unknown
from myxtts.studio.jobs import Jobs
from myxtts.studio.workspace import Recording, Workspace

PAGE_CLIPS = 60
"""Sent at a time: the first can be played before the others have come."""
WAVE_BARS = 120
WAVE_HEIGHT = 40
MOST_TEXT = 2000
VIEWS = ("all", "doubtful", "kept", "dropped")


@dataclass(frozen=True)
class CorpusState:
    """How a corpus is."""

    name: str
    status: str
    """making, ready, or failed."""
    clips: int = 0
    kept: int = 0
    """While it is made, those that were judged so far."""
    kept_seconds: float = 0.0
    problem: str = ""


class Corpora:
    """The corpora of a workspace. Books are read again when their file has changed."""

    def __init__(self, workspace: Workspace, jobs: Jobs):
        self._workspace, self._jobs = workspace, jobs
        # Of the few that somebody looks at.
        self._read = functools.lru_cache(maxsize=4)(lambda folder, changed: read_book(folder))

    def describe(self, name: str) -> CorpusState:
        folder, job = self._workspace.corpora / name, f"corpus-{name}"
        is_begun, is_running = (folder / BOOK_NAME).is_file(), self._jobs.is_running(job)
        book = self._open(folder) if is_begun else None
        if is_running:
            clips = [] if book is None else book.clips
            return CorpusState(name, "making", len(clips), sum(bool(clip.figures) for clip in clips))
        if book is None or not book.complete:
            return CorpusState(name, "failed", problem=self._jobs.read_log(job))
        kept = [clip.seconds for clip in book.clips if clip.kept]
        return CorpusState(name, "ready", len(book.clips), len(kept), sum(kept))

    def list_all(self) -> list[CorpusState]:
        return [self.describe(name) for name in self._workspace.list_names(self._workspace.corpora)]

    def make(self, name: str, recordings: Sequence[Recording], language: str, flags: Iterable[str] = ()) -> None:
        """Begins to make a corpus. Where all recordings were read from a script, that is taken instead of what is heard."""
        if not recordings:
            raise ApiError("Choose one recording or more.")
        folder = self._workspace.name_new(self._workspace.corpora, name)
        paths = [str(self._workspace.find_recording(each.id)[1]) for each in recordings]
        words = ["corpus", *paths, "--out", str(folder), "--language", language, *flags]
        if all(each.text for each in recordings):
            script = self._workspace.jobs / f"{name}.script.txt"
            with open_file_atomically(script) as file:
                file.write("\n".join(each.text for each in recordings).encode())
            words += ["--script", str(script)]
        folder.mkdir(exist_ok=True)
        self._jobs.start(f"corpus-{name}", words)

    def go_on(self, name: str) -> None:
        """Starts again what was interrupted."""
        if (job := self._jobs.find(f"corpus-{name}")) is None:
            raise ApiError(f"{name} was not made here, so it cannot go on here.", CONFLICT)
        self._jobs.start(f"corpus-{name}", job.words)

    def read_language(self, name: str) -> str:
        """What is spoken in a corpus."""
        return self._open(self._find(name)).language

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
        clip = next((each for each in self._open(folder).clips if each.id == id), None)
        if clip is None:
            raise refuse_unknown("clip")
        return clip, self._workspace.keep_inside(find_wav(folder, clip), "clip")

    def change_clip(self, name: str, id: str, *, text: str | None = None, is_kept: bool | None = None) -> BookedClip:
        """Mends the text of a clip, keeps or drops it, and writes the corpus anew."""
        folder, (clip, _) = self._find(name), self.find_clip(name, id)
        if self._jobs.is_running(f"corpus-{name}"):
            raise ApiError(f"{name} is still being made. Wait for that.", CONFLICT)
        before = clip.text, clip.kept, list(clip.reasons)
        if text is not None:
            if not text.strip() or len(text) > MOST_TEXT:
                raise ApiError(f"A text must have 1 to {MOST_TEXT} characters. Drop a clip that says nothing.", param="text")  # fmt: skip
            clip.text = " ".join(text.split())
        if is_kept is not None:
            clip.kept = is_kept
            if not is_kept and not clip.reasons:
                clip.reasons.append(DropReason.BY_HAND)
            elif is_kept:
                clip.reasons = [each for each in clip.reasons if each != DropReason.BY_HAND]
        try:
            write_corpus(folder, self._open(folder))
        except BaseException:
            clip.text, clip.kept, clip.reasons = before
            raise
        return clip

    def _find(self, name: str) -> Path:
        return self._workspace.find(self._workspace.corpora, name, "corpus")

    def _open(self, folder: Path) -> ClipBook:
        try:
            status = (folder / BOOK_NAME).stat()
        except OSError:
            raise refuse_unknown("corpus") from None
        return self._read(folder, (status.st_mtime_ns, status.st_ino))


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
