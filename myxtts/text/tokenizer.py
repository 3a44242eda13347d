"""Texts to token ids and back, with the vocabulary of a model."""

from __future__ import annotations

import json
import os
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer as BpeTokenizer

from myxtts.errors import MissingLanguageTagError, VocabularyError
from myxtts.files import FileError, MissingFileError, read_json
from myxtts.text.normalise import CHARACTER_LIMITS, clean_text, resolve_language
from myxtts.text.persian import SIGNS
from myxtts.text.persian_reading import clean_with_signs

START, STOP, UNKNOWN, SPACE = "[START]", "[STOP]", "[UNK]", "[SPACE]"
SPECIAL_TOKENS = (STOP, UNKNOWN, SPACE, START)

# Written for each other everywhere. Only where the vocabulary has the second and not the first: a model that was trained
# with the first shall get it.
PLAIN_FORMS: Mapping[str, str] = {
    **dict.fromkeys("’‘‛`´ʼ′", "'"),
    **dict.fromkeys("‐‑‒–—―−", "-"),
    **dict.fromkeys("[{", "("),
    **dict.fromkeys("]}", ")"),
    **dict(zip("…،؛؟。、，！？：；", ".,;?.,,!?:;", strict=True)),
    # Marks that are not heard.
    **dict.fromkeys('“”„‟«»‹›"*_^~|\\<>¿¡', ""),
}

MAX_TEXT_TOKENS = 1_000_000
"""As many as a model's configuration allows; the published vocabulary has 6,681."""
MAX_ADDED_TOKENS = 4096
MAX_TOKEN_CHARACTERS = 1024

_PARTS: Mapping[str, Sequence[Any]] = {
    # part of a vocabulary file: what it may be, XTTS' own first; an empty list: looked at on its own.
    "version": ["1.0"],
    "truncation": [None],
    "padding": [None],
    "added_tokens": [],
    "normalizer": [None, *({"type": form} for form in ("NFC", "NFD", "NFKC", "NFKD", "Lowercase"))],
    "pre_tokenizer": [{"type": "Whitespace"}, {"type": "WhitespaceSplit"}, None],
    "post_processor": [None],
    "decoder": [None],
    "model": [],
}
_MODEL_PARTS: Mapping[str, Sequence[Any]] = {
    "type": ["BPE"],
    "dropout": [None],
    "unk_token": [],
    "continuing_subword_prefix": [None, ""],
    "end_of_word_suffix": [None, ""],
    "fuse_unk": [False, True],
    "byte_fallback": [False],
    "ignore_merges": [False, True],
    "vocab": [],
    "merges": [],
}
_ADDED_SWITCHES = frozenset({"single_word", "lstrip", "rstrip", "normalized", "special"})


class Tokenizer:
    """Turns texts into the ids a model was or will be trained on.

    Attributes:
        path: the vocabulary file.
        text_tokens: size of the model's text embedding: the highest id plus one, since ids may have holes.
        start_id, stop_id, unknown_id: as the file has them. The model puts start and stop around the ids, not `encode`.
        languages: codes of the languages that have a tag in the file, in the order of their ids.

    Example:
        tokenizer = Tokenizer("vocab.json")
        ids = tokenizer.encode("Hello World!", "en")
        tokenizer.decode(ids)                   # "[en]hello world!"
    """

    def __init__(self, path: str | os.PathLike[str]):
        self.path = Path(path)
        document = read_vocabulary(self.path)
        self._bpe = _build_bpe(self.path, document)
        ids = self._bpe.get_vocab()
        self._tokens = {id: token for token, id in ids.items()}
        self._characters = frozenset(token for token in ids if len(token) == 1)
        self.text_tokens = max(self._tokens) + 1
        self.start_id, self.stop_id, self.unknown_id = ids[START], ids[STOP], ids[UNKNOWN]
        tags = {code: ids[f"[{code}]"] for code in CHARACTER_LIMITS if f"[{code}]" in ids}
        self.languages = tuple(sorted(tags, key=tags.__getitem__))
        self._plain_forms = str.maketrans(
            {
                fancy: plain
                for fancy, plain in PLAIN_FORMS.items()
                if fancy not in self._characters and (not plain or plain in self._characters)
            }
        )
        # A model that was trained without them keeps getting what it knows.
        self._clean = clean_with_signs if self._characters.issuperset(SIGNS) else clean_text
        # A text that happens to contain "[en]" is not to switch the language.
        special = [token["content"] for token in document["added_tokens"] if token["content"].startswith("[")]
        self._special_in_text = re.compile("|".join(map(re.escape, special)))

    def encode(self, text: str, language: str) -> list[int]:
        """Ids of the text behind those of its language tag."""
        return self.encode_cleaned(self.clean(text, language), language)

    def clean(self, text: str, language: str) -> str:
        """The text as the model reads it, with plain forms of marks that the vocabulary does not have."""
        cleaned = self._special_in_text.sub(lambda match: f"({match[0][1:-1]})", self._clean(text, language))
        return cleaned.translate(self._plain_forms)

    def encode_cleaned(self, cleaned: str, language: str) -> list[int]:
        """Ids of a text that comes from `clean`, behind those of its language tag."""
        tagged = f"[{self._check_tag(language)}]{cleaned}"
        ids: list[int] = self._bpe.encode(tagged.replace(" ", SPACE)).ids
        return ids

    def find_unknown_characters(self, cleaned: str) -> tuple[str, ...]:
        """Characters of a text from `clean` that the vocabulary has no id for, each once, in the order they come."""
        return tuple(dict.fromkeys(c for c in cleaned if c not in self._characters and not c.isspace()))

    def decode(self, ids: Iterable[int]) -> str:
        """The text of the ids, with its language tag; stop and unknown tokens are left out."""
        tokens = []
        for id in ids:
            if int(id) not in self._tokens:
                raise VocabularyError(
                    f"A token id must be in the vocabulary {self.path}, whose highest is {self.text_tokens - 1}, but one is "
                    f"{id}. Decode with the vocabulary the ids were made with."
                )
            tokens.append(self._tokens[int(id)])
        return "".join(token for token in tokens if token not in (STOP, UNKNOWN)).replace(SPACE, " ")

    def _check_tag(self, language: str) -> str:
        code = resolve_language(language)
        if code not in self.languages:
            present = ", ".join(f"[{each}]" for each in self.languages) or "none"
            raise MissingLanguageTagError(
                f"To encode {code!r}, a vocabulary must have the tag [{code}], but the tags in {self.path} are: {present}. "
                "Add the language with `myxtts vocabulary`, which keeps every old id."
            )
        return code


_WAY_OUT = "Give the vocab.json of an XTTS model, or make one with myxtts.text.vocabulary.train_vocabulary."


def read_vocabulary(path: Path) -> dict[str, Any]:
    """The content of a vocabulary file, checked for everything XTTS needs of it."""
    try:
        document = read_json(path, dict)
    except MissingFileError:
        raise VocabularyError(
            f"The vocabulary must be a file, but there is none at {path}. "
            "It is called vocab.json and lies beside a model's model.pth."
        ) from None
    except FileError as error:
        raise VocabularyError(f"The vocabulary cannot be read. {error} {_WAY_OUT}") from error
    problem = next(_list_problems(document), None)
    if problem:
        raise VocabularyError(f"{path} cannot be used as a vocabulary: {problem}. {_WAY_OUT}")
    return document


def _list_problems(document: dict[str, Any]) -> Iterator[str]:
    """What keeps a JSON document from being the vocabulary of an XTTS model; only the first is sure to be true.

    The library is given only what passes here: much of what else its files may say takes any amount of memory, or ends in a
    panic that no caller can catch.
    """
    model, added = document.get("model"), document.get("added_tokens")
    if not isinstance(model, dict) or not isinstance(model.get("vocab"), dict) or not isinstance(added, list):
        yield "it is not a file of the tokenizers library, which has model.vocab and added_tokens"
        return
    if model.get("type", "BPE") != "BPE" or not isinstance(model.get("merges"), list):
        yield f"its model must be BPE with merges, but is {model.get('type')!r:.80}"
    for table, known, place in ((document, _PARTS, ""), (model, _MODEL_PARTS, "model.")):
        for key, value in table.items():
            if key not in known:
                yield f"it has {place}{key:.80}, which no vocabulary of XTTS has"
            # By type too: to Python, True is 1.
            elif known[key] and not any(type(value) is type(each) and value == each for each in known[key]):
                yield f"{place}{key} must be {json.dumps(known[key][0])}, as XTTS has it, but is {value!r:.80}"
    ids, unknown = model["vocab"], model.get("unk_token")
    if not all(map(_is_id, ids.values())):
        yield f"an id in model.vocab is not a whole number from 0 up, below {MAX_TEXT_TOKENS}"
    if unknown is not None and (not isinstance(unknown, str) or unknown not in ids):
        yield f"model.unk_token must be a token of model.vocab, but is {unknown!r:.80}"
    if not all(map(_is_token, ids)):
        yield f"a token in model.vocab is not text of 1 to {MAX_TOKEN_CHARACTERS} characters"
    yield from _list_added_problems(added)
    for merge in model["merges"]:
        pair = merge.split(" ") if isinstance(merge, str) else merge
        if not isinstance(pair, list) or len(pair) != 2 or not all(isinstance(part, str) for part in pair):
            yield f"a merge must be two tokens, but one is {merge!r:.80}"
        elif not all(token in ids for token in (*pair, "".join(pair))):
            yield f"the merge {merge!r:.80} is of tokens that are not in model.vocab"
    if len(set(map(type, model["merges"]))) > 1:
        yield "its merges are written in two ways"


def _list_added_problems(added: list[Any]) -> Iterator[str]:
    if len(added) > MAX_ADDED_TOKENS:
        yield f"it has {len(added)} added_tokens; at most {MAX_ADDED_TOKENS} are expected"
    for token in added:
        if not isinstance(token, dict) or not _is_token(token.get("content")):
            yield f"an entry of added_tokens has no content, or not 1 to {MAX_TOKEN_CHARACTERS} characters"
            continue
        content, rest = token["content"], token.keys() - {"content", "id"}
        if not _is_id(token.get("id")):
            yield f"the id of the added token {content!r} is not a whole number from 0 up, below {MAX_TEXT_TOKENS}"
        if not rest <= _ADDED_SWITCHES or not all(type(token[key]) is bool for key in rest):
            yield f"the added token {content!r} must have, beside content and id, only {', '.join(sorted(_ADDED_SWITCHES))}"
    missing = [token for token in SPECIAL_TOKENS if token not in [each["content"] for each in added]]
    if missing:
        yield f"its added_tokens lack {', '.join(missing)}"


def _is_id(number: Any) -> bool:
    return type(number) is int and 0 <= number < MAX_TEXT_TOKENS


def _is_token(text: Any) -> bool:
    # Half a surrogate pair, as JSON can spell it, is no character.
    return (
        isinstance(text, str)
        and 1 <= len(text) <= MAX_TOKEN_CHARACTERS
        and not any("\ud800" <= character <= "\udfff" for character in text)
    )


def _build_bpe(path: Path, document: dict[str, Any]) -> BpeTokenizer:
    try:
        bpe = BpeTokenizer.from_str(json.dumps(document))
    except Exception as error:  # the library has no narrower class for a file it cannot use
        raise VocabularyError(f"The tokenizers library cannot use {path} as a vocabulary: {error}.") from error
    shared = [id for id, count in Counter(bpe.get_vocab().values()).items() if count > 1]
    if shared:
        raise VocabularyError(f"Each token of a vocabulary must have its own id, but in {path} two share {shared[0]}.")
    return bpe
