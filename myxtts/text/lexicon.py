"""Words of one's own: a table of how they are read, beside which others, and how long is paused, by language."""

from __future__ import annotations

import functools
import itertools
import re
import unicodedata
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from myxtts.errors import LexiconError, UnsupportedLanguageError
from myxtts.files import FileError, PathLike, read_text
from myxtts.text.normalise import resolve_language
from myxtts.text.persian import VOWEL_SIGNS, unify_letters
from myxtts.text.persian_numbers import ZWNJ

MOST_LEXICON_BYTES = 1 << 20
MOST_PAUSE_SECONDS = 10

_NEAR = 8
"""Tokens on each side that are near: about four words and the spaces between them."""
_JOINTS = (ZWNJ, "'")
"""Tokens within a word."""
_UNSPACED = frozenset({"zh-cn", "ja", "ko"})
_TOKEN = re.compile(r"\s+|(?:[^\W_]|[\u0300-\u036f\u064b-\u065f\u0670\u0900-\u0903\u093a-\u094f])+|.", re.DOTALL)
_SIGN = re.compile(f"[{VOWEL_SIGNS}]")
_PAUSE = re.compile(rf"@(sentence_pause|paragraph_pause)\t({MOST_PAUSE_SECONDS}|\d(?:\.\d+)?)")
_LINE = re.compile(r"([^\t]*\S)\t+([^\t]*\S)(?:\t+([<>]?)(!?) *([^\t]*\S))?\s*")


class Entry(NamedTuple):
    """A line of a table: what is written, and how it is read beside one of the context, or beside none of it."""

    tokens: tuple[str, ...]
    written: str
    reading: str
    side: str
    """`>`: the context is the next word; `<`: the word before; else it is near."""
    is_other: bool
    context: frozenset[tuple[str, ...]]
    """The tokens of each word."""


@dataclass(frozen=True)
class Lexicon:
    """Readings and pauses by language. Without any, texts stay as they are."""

    entries: dict[str, dict[str, list[Entry]]] = field(default_factory=dict)
    """Language -> first token -> what begins with it."""
    pauses: dict[str, dict[str, float]] = field(default_factory=dict)
    """Language -> setting -> seconds."""

    def apply(self, text: str, language: str) -> str:
        """The text with its words as they are to be read. The longest match wins, and vowel signs of the writer stay."""
        code = resolve_language(language)
        if code not in self.entries:
            return text
        (tokens, folded), at, read = _split(text, code), 0, list[str]()
        while at < len(tokens):
            entry = next(
                (each for each in self.entries[code].get(folded[at], ()) if _fits(each, tokens, folded, at)), None
            )
            read.append(entry.reading if entry else tokens[at])
            at += len(entry.tokens) if entry else 1
        return "".join(read)


def _split(text: str, language: str) -> tuple[list[str], tuple[str, ...]]:
    """Words, spaces and single signs, as they are written and as they are compared."""
    tokens = list(text) if language in _UNSPACED else _TOKEN.findall(text)
    fold = unify_letters if language == "fa" else functools.partial(unicodedata.normalize, "NFC")
    return tokens, tuple(" " if token.isspace() else fold(token.lower().replace("’", "'")) for token in tokens)


def _fits(entry: Entry, tokens: list[str], folded: tuple[str, ...], first: int) -> bool:
    end = first + len(entry.tokens)
    # Behind a half-space is the rest of a word (می‌برد); an ending behind one (کرم‌ها) leaves the word what it is.
    if folded[first:end] != entry.tokens or (first and folded[first - 1] == ZWNJ):
        return False
    plain = "".join(tokens[first:end])
    if _SIGN.search(plain + entry.written) and plain != entry.written:
        return False
    before, behind = folded[max(0, first - _NEAR) : first], folded[end : end + _NEAR]
    if not entry.side:
        lengths = {len(word) for word in entry.context}
        near = {side[at : at + length] for side in (before, behind) for length in lengths for at in range(len(side))}
        return not entry.context or not entry.context.isdisjoint(near)
    beside = behind if entry.side == ">" else before[::-1]
    found = list(itertools.takewhile(lambda token: token in _JOINTS or token[:1].isalnum(), beside[1:]))
    word = _strip_joints(found if entry.side == ">" else found[::-1])
    # A word as it is, or without what a joint adds to it.
    is_context = any(word[: len(each)] == each for each in entry.context)
    return beside[:1] == (" ",) and bool(word) and is_context != entry.is_other


def _strip_joints(tokens: Sequence[str]) -> tuple[str, ...]:
    """A word without quotes around it."""
    places = [place for place, token in enumerate(tokens) if token not in _JOINTS]
    return tuple(tokens[places[0] : places[-1] + 1]) if places else ()


def read_lexicon(path: PathLike | None) -> Lexicon:
    """The lexicon in a file; an empty one where none is given. Raises `LexiconError`, which names the line.

    Lines are `written TAB reading`, or `written TAB reading TAB context`, below the `[code]` of their language. `{name} TAB words`
    gives words a name for contexts.
    """
    lexicon, language, groups, seen = Lexicon(), None, dict[str, str](), set[tuple[str, Entry]]()
    try:
        text = "" if path is None else read_text(path, MOST_LEXICON_BYTES)
    except FileError as error:
        raise LexiconError(f"The lexicon cannot be read. {error}") from error
    for number, line in enumerate(text.split("\n"), start=1):
        try:
            if not line.strip() or line.startswith("#"):
                continue
            if "\t" not in line and line.startswith("["):
                language = resolve_language(line.strip().strip("[]"))
            elif language is None:
                raise LexiconError("The language of what follows must stand above it, as [en], but does not.")
            elif pause := _PAUSE.fullmatch(line.rstrip()):
                lexicon.pauses.setdefault(language, {})[pause[1]] = float(pause[2])
            elif line.startswith("{") and "\t" in line:
                name, _, groups[name] = line.partition("\t")
            else:
                entry = _read_entry(line, groups, language)
                if (key := (language, entry._replace(reading=""))) in seen:
                    raise LexiconError(f"{entry.written!r} stands there twice. Keep one of the lines.")
                seen.add(key)
                lexicon.entries.setdefault(language, {}).setdefault(entry.tokens[0], []).append(entry)
        except (LexiconError, UnsupportedLanguageError) as error:
            raise LexiconError(f"{path}:{number}: {error}") from None
    for found in (each for entries in lexicon.entries.values() for each in entries.values()):
        found.sort(key=lambda each: (-len(each.tokens), not each.context, not each.side))
    return lexicon


def _read_entry(line: str, groups: dict[str, str], language: str) -> Entry:
    cells = _LINE.fullmatch(line)
    if not cells or line.startswith("@"):
        raise LexiconError(
            "A line must be a word, a tab and how it is read, and perhaps a tab and words it stands by; or @sentence_pause or "
            f"@paragraph_pause, a tab and up to {MOST_PAUSE_SECONDS} seconds. It is {line[:80]!r}."
        )
    words = " ".join(groups.get(word, word) for word in (cells[5] or "").split())
    if "{" in words:
        raise LexiconError(
            f"The words of {words[:80]!r} must stand above, as {{name}}, a tab and the words, but do not."
        )
    written = cells[1].strip()
    context = frozenset(_strip_joints(_split(word, language)[1]) for word in words.split())
    return Entry(_split(written, language)[1], written, cells[2].strip(), cells[3] or "", bool(cells[4]), context)
