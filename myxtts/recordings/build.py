"""From recordings to a corpus, and from a corpus to what is doubtful in it.

Three passes, each of which goes on where a killed one was: speech is found in the recordings; each clip is taken out, measured and
heard by a recogniser; and when all is known, texts are found in the script and clips are judged beside each other.
"""

from __future__ import annotations

import io
import logging
import os
import re
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import soundfile

from myxtts.audio.reading import inspect_clip, read_clip
from myxtts.audio.resampling import resample_clip
from myxtts.data.ljspeech import read_metadata
from myxtts.data.scan import LONGEST_DECODED_SECONDS
from myxtts.errors import ClipError, CorpusError, DropReason, JudgeFailedError
from myxtts.evaluation.judges import JUDGE_RATE_HZ, Judge
from myxtts.evaluation.sentences import write_wav
from myxtts.files import open_file_atomically, open_scratch_folder, read_text, recover_folder, require_free_folder
from myxtts.hashing import digest64
from myxtts.inference.speech import to_pcm16
from myxtts.recordings.book import (
    ASIDE_FOLDER,
    BOOK_NAME,
    LOCK_NAME,
    BookedClip,
    BookedRecording,
    ClipBook,
    hold_corpus,
    read_book,
    write_book,
    write_corpus,
)
from myxtts.recordings.cutting import ClipSpan, choose_spans, hear_speech, read_spans
from myxtts.recordings.judging import (
    Samples,
    compare_text,
    describe_voice,
    even_level,
    find_odd_rates,
    judge_clip,
    measure_sound,
    measure_voices,
)
from myxtts.recordings.transcribing import align_script
from myxtts.units import SAMPLE_RATE_HZ

_log = logging.getLogger(__name__)

SAVE_SECONDS = 15.0
"""So much work is lost at most when the process is killed."""
MOST_SCRIPT_BYTES = 64 << 20

Progress = Callable[[str, int, int], None]
"""What is being done, how much of it is done, and of how much: seconds or clips."""


@dataclass(frozen=True, kw_only=True)
class CorpusRequest:
    """What a corpus is to be made of."""

    recordings: tuple[Path, ...]
    out: Path
    script: Path | None = None
    language: str = "en"


def build_corpus(request: CorpusRequest, recogniser: Judge | None, progress: Progress) -> ClipBook:
    """Makes a corpus, or goes on with one that was begun; one that is complete is left as it is.

    A recording that cannot be read is set aside like a clip. Raises `CorpusError` where no clip can be used.
    """
    script = None if request.script is None else read_text(request.script, MOST_SCRIPT_BYTES)
    recordings = [_find_recording(path) for path in request.recordings]
    words = [str(script), *(f"{each.path}\t{each.size_bytes}\t{each.mtime_ns}" for each in recordings)]
    path = None if request.script is None else str(request.script)
    book = ClipBook(_identify(words), request.language, recogniser.name if recogniser else None, path, recordings)
    with _open_book(request.out, book) as (book, save):
        if not book.complete:
            for number, recording in enumerate(book.recordings, start=1):
                if not recording.is_heard:
                    _cut_recording(book, number, recording, progress)
                    save(True)
            _listen(book, _take_out(book), recogniser, save, request.out, progress)
            _choose_texts(book, script)
            judge_clips(book)
        write_corpus(request.out, book)
    if not any(clip.kept for clip in book.clips):
        raise CorpusError(
            f"{request.out}: no clip can be used as it is.\n{book.make_report().format_table()}\n"
            f"What was cut is in {ASIDE_FOLDER}/, and {BOOK_NAME} says why."
        )
    return book


def check_corpus(path: Path, out: Path | None, language: str, recogniser: Judge | None, progress: Progress) -> ClipBook:
    """Looks at a corpus that exists, and writes nothing but the book, where a folder for it is given."""
    metadata = read_metadata(path, language=language)
    clips = [
        BookedClip(
            metadata.audio[row],
            metadata.speaker[row],
            0.0,
            0.0,
            0.0,
            metadata.text[row],
            language=metadata.language[row],
        )
        for row in range(len(metadata))
    ]
    for row, clip in enumerate(clips):
        clip.reasons = [DropReason.DUPLICATE] if metadata.is_repeated[row] else []
    clips += [
        BookedClip(drop.file, "", 0.0, 0.0, 0.0, reasons=[drop.reason], figures={"line": None})
        for drop in metadata.malformed
    ]
    words = [str(path), *(f"{clip.id}\t{clip.text}" for clip in clips)]
    words += [*map(str, metadata.size_bytes.tolist()), *map(str, metadata.mtime_ns.tolist())]
    book = ClipBook(_identify(words), language, recogniser.name if recogniser else None, None, clips=clips)
    with _open_book(out, book) as (book, save):
        if not book.complete:
            _listen(book, _read_clips(metadata.root, book), recogniser, save, None, progress)
            judge_clips(book)
            save(True)
    return book


def _identify(words: Sequence[str]) -> str:
    return f"{digest64(chr(0).join(words).encode('utf-8', 'surrogateescape')) & (1 << 64) - 1:016x}"


@contextmanager
def _open_book(out: Path | None, fresh: ClipBook) -> Iterator[tuple[ClipBook, Callable[[bool], None]]]:
    """The book that was begun in a folder, or the fresh one, and what saves it: at once, or now and then.

    Raises `CorpusError` where the folder holds another's book, and `OutputFolderError` where it holds something else.
    """
    if out is None:
        yield fresh, lambda _: None
        return
    recover_folder(out)
    if not (out / BOOK_NAME).exists():
        require_free_folder(out, [LOCK_NAME])
    with hold_corpus(out):
        book = _begin_book(out, fresh)
        saved = time.monotonic()

        def save(at_once: bool) -> None:
            nonlocal saved
            if at_once or time.monotonic() - saved > SAVE_SECONDS:
                write_book(out, book)
                saved = time.monotonic()

        yield book, save


def _begin_book(out: Path, fresh: ClipBook) -> ClipBook:
    book = fresh
    if not (out / BOOK_NAME).exists():
        write_book(out, book)
    else:
        book = read_book(out, is_check=not fresh.recordings)
        if (book.identity, book.language, book.recogniser) != (fresh.identity, fresh.language, fresh.recogniser):
            was = ", ".join(each.path for each in book.recordings[:3]) + (", ..." if len(book.recordings) > 3 else "")
            raise CorpusError(
                f"{out} holds what was made of something else, or otherwise ({was or 'a check'}; language {book.language}, recogniser "
                f"{book.recogniser}, script {book.script}), or of files that have changed. Give the same again to go on with it, or a new folder."
            )
    return book


def _listen(
    book: ClipBook,
    sounds: Iterator[tuple[BookedClip, Samples]],
    recogniser: Judge | None,
    save: Callable[[bool], None],
    out: Path | None,
    progress: Progress,
) -> None:
    """Measures each sound and has it heard; where a folder is given, the clip is written there."""
    with open_scratch_folder("corpus", out) as scratch:
        for clip, samples in sounds:
            figures = measure_sound(samples)
            samples = even_level(samples, figures)
            if out is not None:
                _write_clip(out / ASIDE_FOLDER / f"{clip.id}.wav", samples)
            clip.heard = _hear(recogniser, samples, clip, scratch / "clip.wav")
            clip.figures, clip.voice = figures, describe_voice(samples)
            save(False)
            progress("Writing down clip", sum(bool(each.figures) for each in book.clips), len(book.clips))


def _find_recording(path: Path) -> BookedRecording:
    # What is not there is told with what cannot be read: it does not end the run.
    try:
        status = os.stat(path)
    except OSError:
        return BookedRecording(str(path))
    return BookedRecording(str(path), status.st_size, status.st_mtime_ns)


def _cut_recording(book: ClipBook, number: int, recording: BookedRecording, progress: Progress) -> None:
    """Adds the clips of a recording to the book, or what is wrong with it."""
    name = re.sub(r"[^\w.-]+", "_", Path(recording.path).stem).strip("._")[:60]
    what = f"Listening to recording {number} of {len(book.recordings)}, second"
    recording.is_heard = True
    try:
        total = round(inspect_clip(recording.path).seconds)
        speech = hear_speech(Path(recording.path), lambda done: progress(what, min(round(done), total), total))
    except ClipError as error:
        recording.reason, recording.problem = error.reason, str(error).removeprefix(f"{error.path}: ")
        _log.warning("%s", error)
        return
    recording.seconds = round(speech.seconds, 3)
    for place, span in enumerate(choose_spans(speech), start=1):
        # The number of the recording, because two may have the same name.
        clip_id = f"r{number:02d}_{name}_{place:05d}"
        seconds = round(span.end - span.start, 3)
        book.clips.append(
            BookedClip(
                clip_id, recording.path, round(span.start, 4), round(span.end, 4), seconds,
                language=book.language, is_forced=span.is_forced,
            )
        )  # fmt: skip


def _take_out(book: ClipBook) -> Iterator[tuple[BookedClip, Samples]]:
    """The clips of the recordings that were not measured yet."""
    for recording in book.recordings:
        clips = [clip for clip in book.clips if clip.source == recording.path and not clip.figures]
        spans = [ClipSpan(clip.start, clip.end) for clip in clips]
        if clips:
            yield from zip(clips, read_spans(Path(recording.path), spans), strict=True)


def _read_clips(root: Path, book: ClipBook) -> Iterator[tuple[BookedClip, Samples]]:
    """The clips of a corpus that were not measured yet; what cannot be read is said in the book."""
    for clip in book.clips:
        if clip.figures:
            continue
        try:
            inspect_clip(root / clip.id, most_seconds=LONGEST_DECODED_SECONDS)
            samples = read_clip(root / clip.id)
        except ClipError as error:
            clip.reasons = [*clip.reasons, error.reason]
            clip.figures = {"snr_db": None}
            continue
        clip.end = clip.seconds = round(len(samples) / SAMPLE_RATE_HZ, 3)
        yield clip, samples


def _write_clip(path: Path, samples: Samples) -> None:
    content = io.BytesIO()
    soundfile.write(content, np.frombuffer(to_pcm16(samples), "<i2"), SAMPLE_RATE_HZ, format="WAV")
    with open_file_atomically(path, follows_link=False) as file:
        file.write(content.getvalue())


def _hear(recogniser: Judge | None, samples: Samples, clip: BookedClip, scratch: Path) -> str | None:
    if recogniser is None:
        return None
    write_wav(scratch, resample_clip(samples, SAMPLE_RATE_HZ, JUDGE_RATE_HZ), JUDGE_RATE_HZ)
    try:
        return str(recogniser.ask(scratch, clip.language))
    except JudgeFailedError as error:
        _log.warning("%s: %s", clip.id, error)
        return None


def _choose_texts(book: ClipBook, script: str | None) -> None:
    """What is said in each clip, where it was heard or stands in the script."""
    for clip in book.clips:
        clip.text, clip.reasons = clip.heard or "", []
    if script is not None:
        readings = align_script(script, [clip.heard or "" for clip in book.clips], book.language)
        for clip, reading in zip(book.clips, readings, strict=True):
            clip.text = reading.text
            clip.reasons = [] if reading.is_sure else [DropReason.NOT_IN_SCRIPT]


def judge_clips(book: ClipBook) -> None:
    """Says of every clip of a book what speaks against it, beside what is said already, and keeps the others."""
    for source in {clip.source for clip in book.clips}:
        clips = [clip for clip in book.clips if clip.source == source and clip.voice]
        for clip, distance in zip(clips, measure_voices([clip.voice for clip in clips]), strict=True):
            clip.figures["voice_distance"] = distance
    # A text that is the recogniser's own proves nothing.
    is_heard = bool(book.recordings) and book.script is None
    for clip in book.clips:
        clip.figures |= compare_text(clip.text, None if is_heard else clip.heard, clip.language, clip.seconds)
    odd_rates = find_odd_rates([clip.figures["characters_per_s"] for clip in book.clips])
    order = list(DropReason)
    for clip, has_odd_rate in zip(book.clips, odd_rates, strict=True):
        found = {*map(DropReason, clip.reasons), *judge_clip(clip.figures, clip.seconds, clip.text)}
        found |= {DropReason.NO_PAUSE} if clip.is_forced else set()
        found |= {DropReason.SPEAKING_RATE} if has_odd_rate else set()
        clip.reasons = [*sorted(found, key=order.index)]
        clip.kept = not clip.reasons
    book.complete = True
