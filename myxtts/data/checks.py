"""What a scan asks about one clip and one text: facts, not verdicts, so that other limits need no other scan."""

from __future__ import annotations

import hashlib
from pathlib import Path

from myxtts.audio.clip_errors import ClipError
from myxtts.audio.reading import check_clip, inspect_clip
from myxtts.data.workers import Task, Work
from myxtts.files import read_bytes
from myxtts.text.errors import MissingLanguageTagError, UnsupportedLanguageError
from myxtts.text.languages import CHARACTER_LIMITS
from myxtts.text.tokenizer import Tokenizer

LONGEST_DECODED_SECONDS = 120.0
"""Longer than any model's limit: such a file is too long whatever is in it, and may not fit into memory."""

CLIP_TASK = Task("myxtts.data.checks:make_clip_check")
"""Takes a path; gives frames, rate in Hz, and a `ClipProblem` or nothing."""

CHARACTER_TASK = Task("myxtts.data.checks:make_character_check")
"""Takes a text and its language; gives its length in tokens, and the first character the vocabulary lacks or nothing.

For want of a vocabulary every character is a token, and none is lacking."""

NO_LANGUAGE = -1
"""Given as a text's length where the vocabulary has no tag for its language, or nobody can clean it."""


def make_vocabulary_task(vocabulary: Path) -> Task:
    """The same with a model's vocabulary."""
    # A file that is no vocabulary is refused here, once, and not by every worker.
    Tokenizer(vocabulary)
    digest = hashlib.blake2b(read_bytes(vocabulary), digest_size=8).hexdigest()
    return Task("myxtts.data.checks:make_vocabulary_check", {"vocabulary": str(vocabulary)}, identity=digest)


def make_clip_check() -> Work:
    """The work of `CLIP_TASK`."""
    return check_audio


def check_audio(path: str) -> list[int | str]:
    """Frames, rate in Hz, and the problem (empty: none) of one audio file."""
    try:
        info = inspect_clip(path)
        if info.seconds <= LONGEST_DECODED_SECONDS:
            check_clip(path)
    except ClipError as error:
        return [0, 0, error.problem.value]
    return [info.frames, info.rate_hz, ""]


def make_character_check() -> Work:
    """The work of `CHARACTER_TASK`."""

    def check_text(item: list[str]) -> list[int | str]:
        text, language = item
        return [len(text) if language in CHARACTER_LIMITS else NO_LANGUAGE, ""]

    return check_text


def make_vocabulary_check(vocabulary: str) -> Work:
    """The work of `make_vocabulary_task`."""
    tokenizer = Tokenizer(vocabulary)

    def check_text(item: list[str]) -> list[int | str]:
        text, language = item
        try:
            cleaned = tokenizer.clean(text, language)
            tokens = len(tokenizer.encode_cleaned(cleaned, language)) if cleaned else 0
        except (UnsupportedLanguageError, MissingLanguageTagError):
            return [NO_LANGUAGE, ""]
        return [tokens, *(tokenizer.find_unknown_characters(cleaned)[:1] or ("",))]

    return check_text
