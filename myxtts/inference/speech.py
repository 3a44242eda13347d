"""Speech around the model: its settings, the text in pieces, how they are joined, and what was said."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from myxtts.checkpoints.model_directory import VOCABULARY_NAME, ModelDirectory, has_part, read_model_directory
from myxtts.checkpoints.store import find_model_directory
from myxtts.errors import SpeechRequestError, SpeechSettingError, UnableToSpeakError
from myxtts.models.weights import GPT_PREFIX
from myxtts.text.lexicon import MOST_PAUSE_SECONDS, Lexicon
from myxtts.text.normalise import character_limit, resolve_language
from myxtts.text.sentences import PARAGRAPH_END, ends_sentence, split_pauses, split_sentences
from myxtts.text.tokenizer import Tokenizer


class TimedWord(NamedTuple):
    """A word as it was written, and when it is said, in seconds from the beginning of its piece."""

    word: str
    start_s: float
    end_s: float

    def shift(self, seconds: float) -> TimedWord:
        """The same, so much later."""
        return TimedWord(self.word, self.start_s + seconds, self.end_s + seconds)


@dataclass(frozen=True)
class SpokenPiece:
    """One piece of a text after it was spoken."""

    text: str
    codes: int
    """Codes it took, the stop token included."""
    stopped: bool
    """Whether the model came to an end by itself. If not, it was cut off, and its end may be missing or babble."""
    seconds: float
    doubts: tuple[str, ...] = ()
    """What speaks against the best take, where it was looked at, in words."""
    words: tuple[TimedWord, ...] = ()
    """When each word is said, from the beginning of the piece, where that was asked for."""
    strange: tuple[str, ...] = ()
    """Its letters and digits that the vocabulary lacks."""


@dataclass(frozen=True)
class SpeechChunk:
    """The next samples of a stream."""

    samples: NDArray[np.float32]
    piece: SpokenPiece | None = None
    """With the last samples of a piece, how it went."""


@dataclass(frozen=True)
class Speech:
    """A spoken text."""

    samples: NDArray[np.float32]
    """In [-1, 1]."""
    rate_hz: int
    pieces: tuple[SpokenPiece, ...]

    @property
    def seconds(self) -> float:
        return len(self.samples) / self.rate_hz

    @property
    def unfinished(self) -> tuple[SpokenPiece, ...]:
        """Pieces that were cut off because the model did not stop by itself."""
        return tuple(piece for piece in self.pieces if not piece.stopped)


def to_pcm16(samples: NDArray[np.float32]) -> bytes:
    """Samples as 16-bit integers, little-endian; what is beyond full scale is clipped."""
    return (np.clip(samples, -1.0, 1.0) * 32767.0).round().astype("<i2").tobytes()


WHOLE_LIMIT = 2**31
"""Whole numbers reach the device as 32 bits."""

MOST_RETRIES = 100

_SHOWN = 40
"""Characters of a number in a message. (As a float, a whole number of 400 digits is none.)"""


@dataclass(frozen=True, kw_only=True)
class SpeechSettings:
    """How codes are drawn and how fast they are spoken. The defaults are those of the published v2 model, or suit the one that speaks."""

    temperature: float | None = None
    """Below 1 keeps to what is likely, above 1 strays from it. None is what suits the model."""
    top_k: int = 50
    """So many of the likeliest codes take part in a draw; 0 lets all."""
    top_p: float = 0.85
    """The likeliest codes that make up this share take part in a draw."""
    repetition_penalty: float | None = None
    """How much less likely a code becomes once it was said; 1 changes nothing. None is what suits the model."""
    greedy: bool = False
    """Always the likeliest code: nothing is drawn, and only the repetition penalty counts."""
    speed: float = 1.0
    """Above 1 speaks faster."""
    seed: int = 0
    """Equal seeds say the same in the same way."""
    max_codes: int | None = None
    """Longest piece in codes of 46 ms; without it, what the model can say at most."""
    retries: int | None = None
    """How often a doubtful piece is said again, with other draws, and the best take kept. None is what suits: in a stream none, for
    it would be held back until each piece is whole."""
    sentence_pause: float | None = None
    """Seconds between sentences, each of which is then said on its own; None is what the lexicon has, else 0.2 between pieces."""
    paragraph_pause: float | None = None
    """Seconds between paragraphs; None is what the lexicon has, else 0.6."""

    def __post_init__(self) -> None:
        for name, least, most in (
            ("temperature", 0.01, 10.0),
            ("top_k", 0, WHOLE_LIMIT - 1),
            ("top_p", 0.0, 1.0),
            ("repetition_penalty", 0.1, 100.0),
            ("speed", 0.25, 4.0),
            ("seed", 0, WHOLE_LIMIT - 1),
            ("max_codes", 1, math.inf),
            ("retries", 0, MOST_RETRIES),
            ("sentence_pause", 0.0, MOST_PAUSE_SECONDS),
            ("paragraph_pause", 0.0, MOST_PAUSE_SECONDS),
        ):
            value, usual = getattr(self, name), getattr(type(self), name)
            if value is None or least <= value <= most:
                continue
            bounds = f"at least {least}" if most == math.inf else f"from {_show(least)} to {_show(most)}"
            hint = "Leave it out to get what suits the model" if usual is None else f"The usual value is {_show(usual)}"
            raise SpeechSettingError(name, f"must be {bounds}, but is {str(value)[:_SHOWN]}. {hint}.")


USUAL = SpeechSettings()
NO_LEXICON = Lexicon()


def _show(number: float) -> str:
    # In full where it is whole: a bound such as 2.14748e+09 is none that somebody could give.
    return str(number) if isinstance(number, int) else f"{number:g}"


def find_speaking_model(path: Path) -> Path:
    """The model directory that a path means, as `find_model_directory` has it. Raises `UnableToSpeakError` where it cannot speak."""
    directory = read_model_directory(find_model_directory(path), verify_checksums=False)
    require_able_to_speak(directory)
    return directory.path


def require_able_to_speak(directory: ModelDirectory) -> None:
    """Raises `UnableToSpeakError` for a model that lacks what all speaking takes."""
    if not has_part(directory.model, GPT_PREFIX):
        raise UnableToSpeakError(
            f"To speak, {directory.path} must have a GPT, but is a codec alone. Give the folder of the run that trained a GPT for it."
        )
    if directory.vocabulary is None:
        raise UnableToSpeakError(
            f"To speak, {directory.path} must have a vocabulary, but has no {VOCABULARY_NAME}. Import the model again with --vocab."
        )


EDGE_SECONDS = 0.005
PAUSE_SECONDS = 0.2
"""Silence between two pieces of a text."""
PAUSES = {"sentence_pause": PAUSE_SECONDS, "paragraph_pause": 0.6}
"""Settings -> seconds of silence where neither they nor the lexicon say."""


class EdgeSoftener:
    """Fades the first and the last few milliseconds of a piece, which otherwise may start or end with a click."""

    def __init__(self, rate_hz: int):
        self._edge = round(EDGE_SECONDS * rate_hz)
        self._passed = 0

    def soften(self, samples: NDArray[np.float32], *, is_last: bool) -> NDArray[np.float32]:
        """The next samples of the piece. The last ones must not be fewer than a fade, or it is cut short."""
        places = np.arange(len(samples), dtype=np.float32)
        softened = samples * np.minimum((places + np.float32(self._passed)) / self._edge, 1.0)
        self._passed += len(samples)
        return softened * np.minimum(places[::-1] / self._edge, 1.0) if is_last else softened


MOST_CHARACTERS = 100_000
"""Longest text of one request: about two hours of speech."""

PUBLISHED_CODES = 602
PUBLISHED_CLIP_SECONDS = 11.6
"""The languages' character limits were made for a model that says so many codes and was trained on clips so long."""

USUAL_SHARE = 0.5
"""Of what fits into the longest clip: most clips of a corpus are far from it, and a model trained from scratch says well what is like most of
them. Of ten long sentences a recogniser misunderstood a third of the words that it did when pieces had twice as many characters."""

FEWEST_CHARACTERS = 20
"""Pieces are never made shorter than this, however small a model is: its language tag and a few words."""

SHORTEST_BUCKET = 32


@dataclass(frozen=True)
class Piece:
    """A part of a text, spoken in one go."""

    text: str
    ids: tuple[int, ...]
    before_s: float = 0.0
    after_s: float = 0.0
    """Silence around it; that between two pieces stands before the second."""
    strange: tuple[str, ...] = ()
    """Its letters and digits that the vocabulary lacks: one sign stands for all of them, and the model has no sound for it."""


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


def split_text(
    text: str,
    language: str,
    tokenizer: Tokenizer,
    limits: PieceLimits,
    settings: SpeechSettings = USUAL,
    lexicon: Lexicon = NO_LEXICON,
) -> list[Piece]:
    """The pieces of a text, cut at pauses, at paragraphs, and at sentences where possible, with the silence around them.

    Raises `SpeechRequestError` for a text without anything to say or with too much.
    """
    check_text(text, language)
    given = {name: seconds for name in PAUSES if (seconds := getattr(settings, name)) is not None}
    given = lexicon.pauses.get(resolve_language(language), {}) | given
    sentence_s, paragraph_s = (PAUSES | given).values()
    # Sentences that share a piece have the pause that the model makes.
    limits = replace(limits, joins_sentences=limits.joins_sentences and "sentence_pause" not in given)
    pieces, characters = list[Piece](), limits.count_characters(language)
    usual_s, asked_s = 0.0, None
    for part, pause_s in split_pauses(text, paragraph_s):
        for paragraph in PARAGRAPH_END.split(part.strip()):
            for piece in _split_to_fit(paragraph, language, tokenizer, limits, characters, lexicon):
                pieces.append(replace(piece, before_s=usual_s if asked_s is None else asked_s))
                usual_s, asked_s = sentence_s if ends_sentence(piece.text) else min(PAUSE_SECONDS, sentence_s), None
            usual_s = paragraph_s if pieces else 0.0
        asked_s = asked_s if pause_s is None else (asked_s or 0.0) + pause_s
    pieces[-1] = replace(pieces[-1], after_s=asked_s or 0.0)
    return pieces


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
    if not any(character.isalnum() for part, _ in split_pauses(text) for character in part):
        raise SpeechRequestError("The text must have something to say, but has no letter or digit. Give a text.")


def _split_to_fit(
    text: str, language: str, tokenizer: Tokenizer, limits: PieceLimits, characters: int, lexicon: Lexicon
) -> list[Piece]:
    pieces: list[Piece] = []
    for part in split_sentences(text, language, characters, join=limits.joins_sentences):
        if not any(character.isalnum() for character in part):
            continue
        cleaned = tokenizer.clean(lexicon.apply(part, language), language)
        ids = tuple(tokenizer.encode_cleaned(cleaned, language))
        strange = tuple(filter(str.isalnum, tokenizer.find_unknown_characters(cleaned)))
        if strange and all(character in strange for character in cleaned if character.isalnum()):
            raise SpeechRequestError(
                f"A text must have letters that the model knows, but of {part!r} it knows none. It speaks "
                f"{', '.join(tokenizer.languages)}: give a text in its language, or a model that was trained on this one."
            )
        most = limits.count_characters(language)
        if len(ids) > limits.tokens:
            if characters == 1:
                raise SpeechRequestError(
                    f"A piece of text may have {limits.tokens} tokens at most in this model, but {part!r} alone has {len(ids)}. "
                    "Leave it out, or use a model with a larger max_text_tokens."
                )
            # Some scripts take several tokens for a character.
            shorter = max(1, min(characters, len(part)) // 2)
        elif not limits.joins_sentences and len(cleaned) > most and " " in part and any(map(str.isdigit, part)):
            # Numbers grow when they are written out.
            shorter = max(len(part) * most // len(cleaned), *map(len, part.split()))
        else:
            pieces.append(Piece(part, ids, strange=strange))
            continue
        pieces += _split_to_fit(part, language, tokenizer, limits, shorter, lexicon)
    return pieces


def choose_bucket(tokens: int, most: int) -> int:
    """The length a text of so many tokens is padded to: doubled from 32 on, so that few shapes are ever compiled."""
    return min(max(SHORTEST_BUCKET, choose_rows(tokens)), most)


def choose_rows(rows: int) -> int:
    """The number of rows a group of so many is filled up to: a power of two."""
    return 1 << (rows - 1).bit_length()
