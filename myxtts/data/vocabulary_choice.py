"""A vocabulary made from a corpus's own texts: once for a run, the same one ever after."""

from __future__ import annotations

import hashlib
import logging
import os
from pathlib import Path

from myxtts.data.corpus import Corpus
from myxtts.data.errors import ResumeError
from myxtts.files import read_text
from myxtts.text.errors import UnsupportedLanguageError, VocabularyError
from myxtts.text.languages import resolve_language
from myxtts.text.tokenizer import Tokenizer
from myxtts.text.vocabulary import train_vocabulary

_log = logging.getLogger(__name__)

VOCABULARY_NAME = "vocab.json"
_ORIGIN_NAME = "vocab.origin"
"""Says how many texts, and which, the vocabulary beside it was made from."""

LEAST_MERGES = 256
"""For each language, beside its characters: characters alone would make texts too long for the model."""
CHARACTERS_PER_MERGE = 500
"""More merges than the texts have multiples of this would make tokens too rare to be learnt."""


def make_vocabulary(corpus: Corpus, path: Path, *, most_tokens: int) -> Tokenizer:
    """A new vocabulary from the texts of a corpus, saved at `path`. The same texts give the same file.

    Args:
        corpus: may hold languages nobody can clean; they are left out.
        most_tokens: the vocabulary is not larger than this, and smaller where the texts do not support so many.
    """
    texts = group_texts(corpus)
    characters: set[str] = set()
    running = 0
    for text in (text for group in texts.values() for text in group):
        characters.update(text.lower())
        running += len(text)
    wanted = len(characters) + max(LEAST_MERGES * len(texts), running // CHARACTERS_PER_MERGE)
    tokenizer = train_vocabulary(texts, path, text_tokens=min(most_tokens, wanted))
    _log.info(
        "Vocabulary: %d tokens for %s, made from %d texts, in %s.",
        tokenizer.text_tokens,
        ", ".join(tokenizer.languages),
        sum(map(len, texts.values())),
        path,
    )
    return tokenizer


def keep_vocabulary(corpus: Corpus, folder: Path, *, most_tokens: int) -> Path:
    """The vocabulary of the run in a folder: the one that is there, or one made now from the corpus.

    Raises `ResumeError` when the one that is there was made from other texts. It is never made anew: a run's weights
    depend on it, and a later version may make another one from the same texts.
    """
    path, origin = folder / VOCABULARY_NAME, folder / _ORIGIN_NAME
    texts = f"{len(corpus)} {_digest_texts(corpus)}"
    if not path.exists():
        # The origin first: a vocabulary is only in place when it can be checked.
        _write_origin(origin, texts)
        return make_vocabulary(corpus, path, most_tokens=most_tokens).path
    made_from = read_text(origin) if os.path.lexists(origin) else texts
    if made_from != texts:
        raise ResumeError(
            f"The run has a vocabulary, {path}, made from {made_from.partition(' ')[0]} texts. They must be those it goes on "
            f"with, but there are {len(corpus)} now and they differ. Bring back what the run was started with (`myxtts data` "
            "shows what is set aside), or start anew with --reset-training."
        )
    _log.info("Vocabulary: %s, as made when the run was started.", path)
    return path


def _write_origin(path: Path, texts: str) -> None:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(texts, encoding="utf-8")
    except OSError as error:
        raise VocabularyError(
            f"A vocabulary made from the corpus is kept in the run's folder, but {path.parent} cannot be written to: "
            f"{error.strerror}. Give another --checkpoint-dir."
        ) from error


def group_texts(corpus: Corpus) -> dict[str, list[str]]:
    """The texts of each language that can be cleaned, by the code its tag has."""
    texts: dict[str, list[str]] = {}
    known = [_find_tag(name) for name in corpus.language.names]
    for code, text in zip(corpus.language.codes.tolist(), corpus.text, strict=True):
        tag = known[code]
        if tag is not None:
            texts.setdefault(tag, []).append(text)
    return texts


def _find_tag(language: str) -> str | None:
    try:
        return resolve_language(language)
    except UnsupportedLanguageError:
        return None


def _digest_texts(corpus: Corpus) -> str:
    """What a vocabulary is made from, in whatever order the metadata has it."""
    digest = hashlib.blake2b(digest_size=8)
    for language, texts in sorted(group_texts(corpus).items()):
        for part in (language, *sorted(texts)):
            content = part.encode("utf-8", "surrogateescape")
            digest.update(len(content).to_bytes(8, "little"))
            digest.update(content)
        digest.update(b"\xff" * 8)
    return digest.hexdigest()
