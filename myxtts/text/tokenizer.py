"""Texts to token ids and back, with the vocabulary of a model."""

from __future__ import annotations

import json
import os
import re
from collections import Counter
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer as BpeTokenizer

from myxtts.files import FileError, MissingFileError, read_json
from myxtts.text.errors import MissingLanguageTagError, VocabularyError
from myxtts.text.languages import CHARACTER_LIMITS, resolve_language
from myxtts.text.normalise import clean_text

START, STOP, UNKNOWN, SPACE = "[START]", "[STOP]", "[UNK]", "[SPACE]"
SPECIAL_TOKENS = (STOP, UNKNOWN, SPACE, START)

# Written for each other everywhere. Only where the vocabulary has the second and not the first: a model that was trained
# with the first shall get it.
PLAIN_FORMS: Mapping[str, str] = {
    **dict.fromkeys("’‘‛`´ʼ′", "'"),
    **dict.fromkeys("‐‑‒–—―−", "-"),
    **dict.fromkeys("[{", "("),
    **dict.fromkeys("]}", ")"),
    **{
        "…": ".",
        "،": ",",
        "؛": ";",
        "؟": "?",
        "。": ".",
        "、": ",",
        "，": ",",
        "！": "!",
        "？": "?",
        "：": ":",
        "；": ";",
    },
    # Marks that are not heard.
    **dict.fromkeys('“”„‟«»‹›"*_^~|\\<>¿¡', ""),
}


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
        # A text that happens to contain "[en]" is not to switch the language.
        special = [token["content"] for token in document["added_tokens"] if token["content"].startswith("[")]
        self._special_in_text = re.compile("|".join(map(re.escape, special)))

    def encode(self, text: str, language: str) -> list[int]:
        """Ids of the text behind those of its language tag."""
        return self.encode_cleaned(self.clean(text, language), language)

    def clean(self, text: str, language: str) -> str:
        """The text as the model reads it, with plain forms of marks that the vocabulary does not have."""
        cleaned = self._special_in_text.sub(lambda match: f"({match[0][1:-1]})", clean_text(text, language))
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
                "Add the language with myxtts.text.extend_vocabulary, which keeps every old id."
            )
        return code


_WAY_OUT = "Give the vocab.json of an XTTS model, or make one with myxtts.text.train_vocabulary."


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
    problem = _find_problem(document)
    if problem:
        raise VocabularyError(f"{path} cannot be used as a vocabulary: {problem}. {_WAY_OUT}")
    return document


def _find_problem(document: Any) -> str | None:
    """What keeps a JSON document from being the vocabulary of an XTTS model."""
    model = document.get("model") if isinstance(document, dict) else None
    added = document.get("added_tokens") if isinstance(document, dict) else None
    if not isinstance(model, dict) or not isinstance(model.get("vocab"), dict) or not isinstance(added, list):
        return "it is not a file of the tokenizers library, which has model.vocab and added_tokens"
    if model.get("type", "BPE") != "BPE" or not isinstance(model.get("merges"), list):
        return f"its model must be BPE with merges, but is {model.get('type')}"
    if not all(isinstance(token, dict) and isinstance(token.get("content"), str) for token in added):
        return "an entry of added_tokens has no content"
    missing = [token for token in SPECIAL_TOKENS if token not in {each["content"] for each in added}]
    if missing:
        return f"its added_tokens lack {', '.join(missing)}"
    if not all(isinstance(id, int) and id >= 0 for id in model["vocab"].values()):
        return "an id in model.vocab is not a whole number from 0 up"
    return None


def _build_bpe(path: Path, document: dict[str, Any]) -> BpeTokenizer:
    try:
        bpe = BpeTokenizer.from_str(json.dumps(document))
    except Exception as error:  # the library has no narrower class for a file it cannot use
        raise VocabularyError(f"The tokenizers library cannot use {path} as a vocabulary: {error}.") from error
    shared = [id for id, count in Counter(bpe.get_vocab().values()).items() if count > 1]
    if shared:
        raise VocabularyError(f"Each token of a vocabulary must have its own id, but in {path} two share {shared[0]}.")
    return bpe
