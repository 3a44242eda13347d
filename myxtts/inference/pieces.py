"""A text in pieces a model can say in one go, and pieces in batches of a few fixed shapes."""

from __future__ import annotations

from dataclasses import dataclass

from myxtts.inference.errors import SpeechRequestError
from myxtts.text.languages import character_limit, resolve_language
from myxtts.text.sentences import split_sentences
from myxtts.text.tokenizer import Tokenizer

MOST_CHARACTERS = 100_000
"""Longest text of one request: about two hours of speech."""

PUBLISHED_CODES = 602
PUBLISHED_CLIP_SECONDS = 11.6
"""The languages' character limits were made for a model that says so many codes and was trained on clips so long."""

FEWEST_CHARACTERS = 20
"""Pieces are never made shorter than this, however small a model is: its language tag and a few words."""

SHORTEST_BUCKET = 32


@dataclass(frozen=True)
class Piece:
    """A part of a text, spoken in one go."""

    text: str
    ids: tuple[int, ...]


@dataclass(frozen=True)
class PieceLimits:
    """What a model can say in one go."""

    tokens: int
    """Text tokens, the language tag included."""
    codes: int
    """The most codes it generates."""
    clip_seconds: float = PUBLISHED_CLIP_SECONDS
    """The longest clip it may have been trained on."""
    joins_sentences: bool = True
    """Whether a piece may have several sentences. A model trained from scratch has heard one at a time, as most corpora have
    them: of five in one go it said the first words and stopped, and the rest was lost."""

    def count_characters(self, language: str) -> int:
        """Characters of a piece: the language's limit, less for a model that says or has heard less at a time."""
        share = min(1.0, self.codes / PUBLISHED_CODES, self.clip_seconds / PUBLISHED_CLIP_SECONDS)
        return max(FEWEST_CHARACTERS, int(character_limit(language) * share))


def split_text(text: str, language: str, tokenizer: Tokenizer, limits: PieceLimits) -> list[Piece]:
    """The pieces of a text, cut at sentences where possible.

    Raises `SpeechRequestError` for a text without anything to say or with too much.
    """
    check_text(text, language)
    return _split_to_fit(text, language, tokenizer, limits, limits.count_characters(language))


def check_text(text: str, language: str) -> None:
    """Raises an error for what no model can say: an unknown language, an empty text, or one that is too long."""
    resolve_language(language)
    if len(text) > MOST_CHARACTERS:
        raise SpeechRequestError(
            f"A text may have {MOST_CHARACTERS} characters at most, but has {len(text)}. Split it, at chapters for example."
        )
    if any("\ud800" <= character <= "\udfff" for character in text):
        raise SpeechRequestError(
            "The text must be Unicode, but holds half of a character. It was cut or decoded wrongly: give it as UTF-8."
        )
    if not any(character.isalnum() for character in text):
        raise SpeechRequestError("The text must have something to say, but has no letter or digit. Give a text.")


def _split_to_fit(text: str, language: str, tokenizer: Tokenizer, limits: PieceLimits, characters: int) -> list[Piece]:
    pieces: list[Piece] = []
    for part in split_sentences(text, language, characters, join=limits.joins_sentences):
        if not any(character.isalnum() for character in part):
            continue
        ids = tuple(tokenizer.encode(part, language))
        if len(ids) <= limits.tokens:
            pieces.append(Piece(part, ids))
        elif characters > 1:
            # Numbers grow when they are written out, and some scripts take several tokens for a character.
            shorter = min(characters, len(part)) // 2
            pieces += _split_to_fit(part, language, tokenizer, limits, max(1, shorter))
        else:
            raise SpeechRequestError(
                f"A piece of text may have {limits.tokens} tokens at most in this model, but {part!r} alone has {len(ids)}. "
                "Leave it out, or use a model with a larger max_text_tokens."
            )
    return pieces


def choose_bucket(tokens: int, most: int) -> int:
    """The length a text of so many tokens is padded to: doubled from 32 on, so that few shapes are ever compiled."""
    bucket = SHORTEST_BUCKET
    while bucket < tokens:
        bucket *= 2
    return min(bucket, most)


def choose_rows(rows: int) -> int:
    """The number of rows a group of so many is filled up to: a power of two."""
    return 1 << (rows - 1).bit_length()
