"""A long text in pieces short enough to be spoken in one go, cut where a speaker would breathe."""

from __future__ import annotations

import functools
import re
from collections.abc import Iterable, Iterator

from myxtts.errors import SpeechRequestError, UserError
from myxtts.text.english import ENGLISH_ABBREVIATIONS
from myxtts.text.lexicon import MOST_PAUSE_SECONDS
from myxtts.text.normalise import ABBREVIATIONS, character_limit, resolve_language

_CLOSING = r"[\"'’”»)\]」』）】]*"
# These end a sentence wherever they stand; the marks of the Latin script only before a space. A run of marks is tried from its
# first one alone: from each, a hundred thousand dots take minutes.
_SENTENCE_END = re.compile(rf"[。｡！？؟؛।॥]+[.!?…]*{_CLOSING}\s*|(?<![.!?…])[.!?…]++{_CLOSING}(?:\s+|$)|\n\s*\n\s*")
PARAGRAPH_END = re.compile(r"\n\s*\n\s*")
_ENDED = re.compile(rf"[.!?…。｡！？؟؛।॥]{_CLOSING}$")
_PAUSE = re.compile(r"\[\s*pause\b\s*([^\[\]]*)\]", re.IGNORECASE)
_PAUSE_LENGTH = re.compile(r"(\d{1,5}(?:[.,٫]\d{1,3})?)\s*(m?)s?\s*", re.IGNORECASE)
MOST_SILENCE_SECONDS = 600
"""Of all pauses of a text together."""
_CLAUSE_END = re.compile(rf"[、，；：]{_CLOSING}\s*|[,،;:؛]{_CLOSING}\s+|\s[-–—]\s+")
_WORD_END = re.compile(r"\s+")
_LEAST_LAST = 16
"""Characters of a sentence's last piece, if it can be had so."""

_LATIN_DOTS = re.compile(rf"[.…]+{_CLOSING}$")
_LETTER_BEFORE_DOT = re.compile(r"(?<![^\W\d_])(?:[^\W\d_]\.)*[^\W\d_]\.$")
_NUMBER_BEFORE_DOT = re.compile(r"(?:^|[\s(])\d{1,2}\.$")
_SHORT_NAME_BEFORE_DOT = re.compile(r"\b[A-Z]\w{1,3}\.$")
_LONGEST_LAST_WORDS = 64
# Here a dot makes an ordinal of a number: "der 3. Mai".
_LANGUAGES_WITH_ORDINAL_DOT = frozenset({"de", "cs", "hu", "tr", "pl"})


def ends_sentence(piece: str) -> bool:
    """Whether a piece ends where a sentence does, and not only where it had to be cut."""
    return bool(_ENDED.search(piece))


def split_pauses(text: str, usual_s: float = 0.0) -> list[tuple[str, float | None]]:
    """The parts of a text between `[pause 0.5s]`, each with the seconds of the pause behind it; None behind the last.

    Args:
        usual_s: what a bare `[pause]` means.
    """
    parts = _PAUSE.split(text)
    pauses = [_read_pause(length) if length else usual_s for length in parts[1::2]]
    if sum(pauses) > MOST_SILENCE_SECONDS:
        raise SpeechRequestError(
            f"The pauses of a text may be {MOST_SILENCE_SECONDS} s at most together, but are {sum(pauses):g} s. Split the text."
        )
    return list(zip(parts[::2], [*pauses, None], strict=True))


def _read_pause(length: str) -> float:
    match = _PAUSE_LENGTH.fullmatch(length)
    seconds = float(re.sub("[,٫]", ".", match[1])) / (1000 if match[2] else 1) if match else -1.0
    if not 0 <= seconds <= MOST_PAUSE_SECONDS:
        raise SpeechRequestError(
            f"A pause must be from 0 to {MOST_PAUSE_SECONDS} seconds, as [pause 0.5s] or [pause 300ms] is, but is [pause {length[:40]}]."
        )
    return seconds


def split_sentences(text: str, language: str, limit: int | None = None, *, join: bool = True) -> list[str]:
    """Pieces of at most `limit` characters with as many whole sentences as fit in each.

    A sentence that is too long is cut at commas, a clause that is too long between words, and only a word that is too
    long inside. No character is lost except white space.

    Args:
        limit: characters of a piece; without it, what the language allows.
        join: several sentences may share a piece.
    """
    code = resolve_language(language)
    limit = character_limit(code) if limit is None else limit
    if limit < 1:
        raise UserError(f"The limit of a piece must be at least 1 character, but is {limit}.")
    sentences = _cut_sentences(text.strip(), code)
    if join:
        return list(_pack(sentences, limit))
    return [piece for sentence in sentences for piece in _cut_sentence(sentence.strip(), limit)]


def _cut_sentence(sentence: str, limit: int) -> list[str]:
    """A sentence in as few pieces as can be, none of them a last word alone where that can be."""
    pieces = list(_pack([sentence], limit))
    if len(pieces) == 1 or len(pieces[-1]) >= _LEAST_LAST:
        return pieces
    tried = (list(_pack([sentence], shorter)) for shorter in range(limit - 1, limit - _LEAST_LAST, -1) if shorter > 0)
    return next((each for each in tried if len(each) == len(pieces) and len(each[-1]) >= _LEAST_LAST), pieces)


def _pack(pieces: Iterable[str], limit: int) -> Iterator[str]:
    """Joins neighbours, which keep their own white space, as long as they fit."""
    open_piece = ""
    for piece in pieces:
        for part in _shorten(piece, limit):
            if open_piece.strip() and len((open_piece + part).rstrip()) > limit:
                yield open_piece.strip()
                open_piece = ""
            open_piece += part
    if open_piece.strip():
        yield open_piece.strip()


def _shorten(piece: str, limit: int) -> Iterator[str]:
    """The piece itself, or its clauses, words or letters: the largest parts that fit."""
    if len(piece.rstrip()) <= limit:
        yield piece
        return
    for ends in (_CLAUSE_END, _WORD_END):
        parts = list(_cut_behind(piece, ends))
        if len(parts) > 1:
            for part in parts:
                yield from _shorten(part, limit)
            return
    for start in range(0, len(piece), limit):
        yield piece[start : start + limit]


def _cut_sentences(text: str, language: str) -> Iterator[str]:
    start = 0
    for match in _SENTENCE_END.finditer(text):
        # The last words are enough to judge a dot; looking at the whole sentence each time takes quadratic time.
        last_words = text[max(start, match.end() - _LONGEST_LAST_WORDS) : match.end()].rstrip()
        if _is_dot_inside(last_words, text[match.end() : match.end() + 1], language):
            continue
        yield text[start : match.end()]
        start = match.end()
    if start < len(text):
        yield text[start:]


def _is_dot_inside(last_words: str, next_character: str, language: str) -> bool:
    """Whether the dot at the end of what may be a sentence is that of an abbreviation, initial or ordinal."""
    if not _LATIN_DOTS.search(last_words):
        return False
    if next_character.islower() or _LETTER_BEFORE_DOT.search(last_words):
        return True
    if next_character.isdigit() and _SHORT_NAME_BEFORE_DOT.search(last_words):
        return True
    number = _NUMBER_BEFORE_DOT.search(last_words)
    if number and (language in _LANGUAGES_WITH_ORDINAL_DOT or number.start() == 0):
        return True
    last_word = re.split(r"[\s(«\"']", last_words)[-1].lower()
    return last_word in _list_abbreviations(language)


@functools.cache
def _list_abbreviations(language: str) -> frozenset[str]:
    titles = {f"{short}." for short in ABBREVIATIONS.get(language, ())}
    return frozenset(titles | set(ENGLISH_ABBREVIATIONS) if language == "en" else titles)


def _cut_behind(text: str, ends: re.Pattern[str]) -> Iterator[str]:
    start = 0
    for match in ends.finditer(text):
        if match.end() < len(text):
            yield text[start : match.end()]
            start = match.end()
    yield text[start:]
