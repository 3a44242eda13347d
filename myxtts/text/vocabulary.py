"""New vocabularies from texts, and old ones grown by a language.

The files are those of XTTS: JSON of the tokenizers library with `[STOP]` 0, `[UNK]` 1, `[SPACE]` 2, characters and merges,
`[START]` and a tag for each language."""

from __future__ import annotations

import heapq
import itertools
import json
import os
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer as BpeTokenizer
from tokenizers.models import BPE

from myxtts.errors import VocabularyError
from myxtts.files import WriteError, open_file_atomically, parse_json
from myxtts.text.normalise import resolve_language
from myxtts.text.persian import ALPHABET as PERSIAN_ALPHABET
from myxtts.text.persian import SIGNS as PERSIAN_SIGNS
from myxtts.text.persian_reading import clean_with_signs
from myxtts.text.tokenizer import SPACE, START, STOP, UNKNOWN, Tokenizer, read_vocabulary

Pair = tuple[str, str]

_RAREST_PAIR = 2
"""A pair that stands only once in a corpus says nothing about the language."""


class MergeLearner:
    """Learns which neighbouring symbols to merge, the most frequent pair first.

    Args:
        words: counted words, each as the symbols it consists of so far.
        may_merge: whether the learner may make a token of this text.
    """

    def __init__(self, words: Mapping[tuple[str, ...], int], may_merge: Callable[[str], bool]):
        self._words = [list(symbols) for symbols in words]
        self._frequencies = list(words.values())
        self._may_merge = may_merge
        self._counts: Counter[Pair] = Counter()
        self._places: defaultdict[Pair, set[int]] = defaultdict(set)
        for index in range(len(self._words)):
            self._count_word(index, self._frequencies[index])
        # Among equally frequent pairs the first in order of code points wins, whatever order the words came in.
        self._queue = [(-count, pair) for pair, count in self._counts.items()]
        heapq.heapify(self._queue)

    def learn(self, count: int) -> list[Pair]:
        """Up to `count` merges, in the order in which they apply."""
        merges: list[Pair] = []
        while self._queue and len(merges) < count:
            negative_count, pair = heapq.heappop(self._queue)
            if self._counts[pair] != -negative_count:
                continue
            if -negative_count < _RAREST_PAIR:
                break
            merges.append(pair)
            self._apply(pair)
        return merges

    def _apply(self, pair: Pair) -> None:
        changed: set[Pair] = set()
        for index in sorted(self._places[pair]):
            changed |= self._count_word(index, -self._frequencies[index])
            self._words[index] = merge_symbols(self._words[index], pair)
            changed |= self._count_word(index, self._frequencies[index])
        for each in changed:
            if self._counts[each] > 0:
                heapq.heappush(self._queue, (-self._counts[each], each))

    def _count_word(self, index: int, frequency: int) -> set[Pair]:
        """Adds the pairs of a word to the counts, or takes them out with a negative frequency."""
        symbols = self._words[index]
        pairs = [pair for pair in itertools.pairwise(symbols) if self._may_merge("".join(pair))]
        for pair in pairs:
            self._counts[pair] += frequency
            if frequency > 0:
                self._places[pair].add(index)
            else:
                self._places[pair].discard(index)
        return set(pairs)


def merge_symbols(symbols: Iterable[str], pair: Pair) -> list[str]:
    """The symbols with every occurrence of the pair, from the left, as one."""
    merged: list[str] = []
    for symbol in symbols:
        if merged and (merged[-1], symbol) == pair:
            merged[-1] += symbol
        else:
            merged.append(symbol)
    return merged


# Characters a language needs even if a small corpus happens not to show them all.
_ALPHABETS = {"fa": PERSIAN_ALPHABET + PERSIAN_SIGNS}


@dataclass(frozen=True)
class VocabularyGrowth:
    """What a vocabulary has gained. The model's text embedding and text head need as many rows as `text_tokens`."""

    path: Path
    tag: str | None
    """The new language tag, or None if there was one already."""
    characters: str
    merges: tuple[Pair, ...]
    old_text_tokens: int
    text_tokens: int


def train_vocabulary(
    corpus: Mapping[str, Iterable[str]], path: str | os.PathLike[str], *, text_tokens: int
) -> Tokenizer:
    """A vocabulary of at most `text_tokens` ids, learnt from the texts of each language, saved and loaded.

    The same texts give the same file, in whatever order they come.
    """
    words: Counter[str] = Counter()
    languages = sorted({resolve_language(language) for language in corpus})
    characters: set[str] = set()
    document = _make_empty_document()
    splitter = BpeTokenizer.from_str(json.dumps(document))
    for language, texts in corpus.items():
        found = _count_words(texts, language, splitter)
        characters |= _collect_characters(found, language)
        words += found
    model = document["model"]
    room = text_tokens - len(model["vocab"]) - len(characters) - 1 - len(languages)
    if room < 0:
        raise VocabularyError(
            f"A vocabulary for these texts must have at least {text_tokens - room} tokens, for their {len(characters)} "
            f"different characters and {len(languages)} languages, but {text_tokens} were asked for. Give more tokens, or "
            "clean the texts of characters that are not part of the language."
        )
    _add_tokens(model, sorted(characters))
    learner = MergeLearner({tuple(word): count for word, count in words.items()}, lambda text: True)
    _add_merges(model, learner.learn(room))
    for token in (START, *(f"[{language}]" for language in languages)):
        _add_special(document, token)
    write_vocabulary(document, path)
    return Tokenizer(path)


def extend_vocabulary(
    base: str | os.PathLike[str],
    path: str | os.PathLike[str],
    language: str,
    texts: Iterable[str],
    *,
    merges: int = 500,
) -> VocabularyGrowth:
    """The vocabulary at `base` with a tag for `language`, the characters of its texts and up to `merges` merges, at `path`.

    Every old id stays, and a text made of characters the old vocabulary has keeps its ids: new merges are only made
    around new characters. New ids come behind the old ones. `path` may be `base`.
    """
    old = Tokenizer(base)
    document = read_vocabulary(old.path)
    _pin_added_tokens(document)
    code = resolve_language(language)
    words = _count_words(texts, code, BpeTokenizer.from_str(json.dumps(document)))
    known = {token for token in document["model"]["vocab"] if len(token) == 1}
    characters = "".join(sorted(_collect_characters(words, code) - known))

    tag = None if code in old.languages else f"[{code}]"
    if tag:
        _add_special(document, tag)
    _add_tokens(document["model"], characters)
    learnt = _learn_around(characters, words, document, merges)
    _add_merges(document["model"], learnt)
    write_vocabulary(document, path)
    return VocabularyGrowth(
        path=Path(path),
        tag=tag,
        characters=characters,
        merges=tuple(learnt),
        old_text_tokens=old.text_tokens,
        text_tokens=Tokenizer(path).text_tokens,
    )


def write_vocabulary(document: dict[str, Any], path: str | os.PathLike[str]) -> None:
    """Saves the vocabulary so that the path holds either the old file or the whole new one."""
    try:
        with open_file_atomically(path) as file:
            file.write(json.dumps(document, ensure_ascii=False, indent=1).encode("utf-8"))
    except WriteError as error:
        raise VocabularyError(
            f"The vocabulary cannot be saved at {path}: {error.reason}. Give a path that can be written to."
        ) from error


def _learn_around(characters: str, words: Counter[str], document: dict[str, Any], count: int) -> list[Pair]:
    """Merges that each make a token with one of the characters in it."""
    new = frozenset(characters)
    bpe = BpeTokenizer.from_str(json.dumps(document))
    symbols: Counter[tuple[str, ...]] = Counter()
    for word, frequency in words.items():
        if not new.isdisjoint(word):
            symbols[tuple(bpe.encode(word).tokens)] += frequency
    return MergeLearner(symbols, lambda text: not new.isdisjoint(text)).learn(count)


def _count_words(texts: Iterable[str], language: str, splitter: BpeTokenizer) -> Counter[str]:
    """How often each word, as the tokenizer cuts them, stands in the cleaned texts."""
    words: Counter[str] = Counter()
    for text in texts:
        cleaned = clean_with_signs(text, language)
        cut = splitter.pre_tokenizer
        words.update(word for word, _ in cut.pre_tokenize_str(cleaned)) if cut else words.update([cleaned])
    if not words:
        raise VocabularyError(
            f"A vocabulary is learnt from texts, but there is not one word in those given for {language!r}."
        )
    return words


def _collect_characters(words: Iterable[str], language: str) -> set[str]:
    return {character for word in words for character in word} | set(_ALPHABETS.get(resolve_language(language), ""))


def _make_empty_document() -> dict[str, Any]:
    document: dict[str, Any] = parse_json(BpeTokenizer(BPE(unk_token=UNKNOWN)).to_str())
    document["pre_tokenizer"] = {"type": "Whitespace"}
    for token in (STOP, UNKNOWN, SPACE):
        _add_special(document, token)
    return document


def _pin_added_tokens(document: dict[str, Any]) -> None:
    """Writes the ids the library gives to added tokens into the model: those it counts up itself would move."""
    ids = BpeTokenizer.from_str(json.dumps(document)).get_vocab()
    for token in document["added_tokens"]:
        token["id"] = document["model"]["vocab"][token["content"]] = ids[token["content"]]


def _add_special(document: dict[str, Any], token: str) -> None:
    _add_tokens(document["model"], [token])
    document["added_tokens"].append(
        {
            "id": document["model"]["vocab"][token],
            "content": token,
            "single_word": False,
            "lstrip": False,
            "rstrip": False,
            "normalized": False,
            "special": True,
        }
    )


def _add_tokens(model: dict[str, Any], tokens: Iterable[str]) -> None:
    ids = model["vocab"]
    next_id = max(ids.values(), default=-1) + 1
    for offset, token in enumerate(tokens):
        ids[token] = next_id + offset


def _add_merges(model: dict[str, Any], merges: Iterable[Pair]) -> None:
    merges = list(merges)
    _add_tokens(model, ["".join(pair) for pair in merges])
    # Files of older versions of the library have "a b" where newer ones have ["a", "b"]; both can be read, mixed cannot.
    as_lists = bool(model["merges"]) and isinstance(model["merges"][0], list)
    model["merges"].extend(list(pair) if as_lists else " ".join(pair) for pair in merges)
