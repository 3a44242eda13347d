"""The texts of a corpus as token ids, and the vocabulary that they are made with."""

from __future__ import annotations

import logging
import os
from array import array
from collections.abc import Callable
from functools import partial
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from myxtts.config import XTTSConfig
from myxtts.data.corpus import Corpus, NameColumn, Progress, TextColumn, TextIds, digest_parts
from myxtts.data.task_processes import Crashed, ProcessTask, Work, run_task
from myxtts.errors import CorpusError, MissingLanguageTagError, ReadingError, UnsupportedLanguageError, VocabularyError
from myxtts.files import WriteError, open_file_atomically, read_text
from myxtts.text.normalise import CHARACTER_LIMITS
from myxtts.text.tokenizer import Tokenizer
from myxtts.text.vocabulary import train_vocabulary

_log = logging.getLogger(__name__)

VocabularyChoice = Path | Callable[[Corpus], Path]
"""A vocabulary, or what chooses one given the clips that can be used as far as their audio is concerned."""

NO_LANGUAGE = -1
"""Stands for the unknown character of a text in a language that the vocabulary has no tag for, or nobody can clean."""

_WORTH_A_PROCESS = 2000
"""So many texts pay for starting a process."""
_PROGRESS_STEP = 1000

VOCABULARY_NAME = "vocab.json"
_ORIGIN_NAME = "vocab.origin"
"""Says how many texts, and which, the vocabulary beside it was made from."""

LEAST_MERGES = 256
"""For each language, beside its characters: characters alone would make texts too long for the model."""
CHARACTERS_PER_MERGE = 500
"""More merges than the texts have multiples of this would make tokens too rare to be learnt."""
MOST_ADVISED_MERGES = 2000
"""For a vocabulary that grows: others who fine-tuned the published model on a new language found 2,000 new tokens best, and 5,000 worse
(XTTSv2-Finetuning, issue 44). Nobody has tried it here."""


def advise_merges(characters: int) -> int:
    """How many merges a vocabulary should grow by for texts of so many characters."""
    return min(max(LEAST_MERGES, characters // CHARACTERS_PER_MERGE), MOST_ADVISED_MERGES)


def tokenise_texts(
    texts: TextColumn, languages: NameColumn, vocabulary: Path, *, processes: int, progress: Progress
) -> tuple[TextIds, NDArray[np.int32]]:
    """The ids of all texts, and of each text the first character that the vocabulary lacks: its code point, 0 or `NO_LANGUAGE`.

    Args:
        processes: how many may be started; 0 does it in this one.
    """
    count = len(texts)
    task = ProcessTask("myxtts.data.texts:make_tokeniser", {"vocabulary": str(vocabulary)})
    items = ([text, languages[row]] for row, text in enumerate(texts))
    ids = array("H" if Tokenizer(vocabulary).text_tokens <= 1 << 16 else "I")
    offsets, unknown = np.zeros(count + 1, np.int64), np.zeros(count, np.int32)
    progress("text", 0, count)
    # Processes overtake each other by a few texts, which wait here for their turn.
    waiting: dict[int, list[int]] = {}
    written = 0
    results = run_task(task, items, min(processes, count // _WORTH_A_PROCESS))
    for done, (row, result) in enumerate(results, start=1):
        if isinstance(result, Crashed):
            raise ReadingError(f"A text killed its process with signal {result.signal}: a library is broken.")
        waiting[row] = result
        while written in waiting:
            unknown[written], *own = waiting.pop(written)
            ids.fromlist(own)
            written += 1
            offsets[written] = len(ids)
        if done % _PROGRESS_STEP == 0 or done == count:
            progress("text", done, count)
    return TextIds(np.frombuffer(ids, f"<u{ids.itemsize}"), offsets), unknown


def make_tokeniser(vocabulary: str) -> Work:
    """The work of tokenising: takes a text and its language; gives its first unknown character, as above, and its ids."""
    tokenizer = Tokenizer(vocabulary)

    def tokenise(item: tuple[str, str]) -> list[int]:
        text, language = item
        try:
            cleaned = tokenizer.clean(text, language)
            ids = tokenizer.encode_cleaned(cleaned, language) if cleaned else []
        except (UnsupportedLanguageError, MissingLanguageTagError):
            return [NO_LANGUAGE]
        return [*map(ord, tokenizer.find_unknown_characters(cleaned)[:1] or "\0"), *ids]

    return tokenise


def choose_vocabulary(config: XTTSConfig, folder: Path, of_checkpoint: Path | None) -> VocabularyChoice:
    """The vocabulary of a run: the configuration's, else that of the model that is fine-tuned, else `keep_vocabulary`."""
    given = Path(config.data.vocabulary) if config.data.vocabulary else of_checkpoint
    if given is not None:
        return given.absolute()
    return partial(keep_vocabulary, folder=folder.absolute(), most_tokens=config.model.text_tokens)


def make_vocabulary(corpus: Corpus, path: Path, *, most_tokens: int) -> Tokenizer:
    """A new vocabulary from the texts of a corpus, saved at `path`. The same texts give the same file.

    It has at most so many tokens, fewer where the texts do not support them. Languages nobody can clean are left out.
    """
    texts = group_texts(corpus)
    characters: set[str] = set()
    running = 0
    for text in (text for group in texts.values() for text in group):
        characters.update(text.lower())
        running += len(text)
    wanted = len(characters) + max(LEAST_MERGES * len(texts), running // CHARACTERS_PER_MERGE)
    tokenizer = train_vocabulary(texts, path, text_tokens=min(most_tokens, wanted))
    languages, count = ", ".join(tokenizer.languages), sum(map(len, texts.values()))
    _log.info("Vocabulary: %d tokens for %s, made from %d texts, in %s.", tokenizer.text_tokens, languages, count, path)
    return tokenizer


def keep_vocabulary(corpus: Corpus, folder: Path, *, most_tokens: int) -> Path:
    """The vocabulary of the run in a folder: the one that is there, or one made now from the corpus.

    Raises `CorpusError` when the one that is there was made from other texts. It is never made anew: a run's weights
    depend on it, and a later version may make another one from the same texts.
    """
    path, origin = folder / VOCABULARY_NAME, folder / _ORIGIN_NAME
    texts = f"{len(corpus)} {_digest_texts(corpus)}"
    if not path.exists():
        # The origin first: a vocabulary is only in place when it can be checked.
        try:
            with open_file_atomically(origin) as file:
                file.write(texts.encode())
        except WriteError as error:
            raise VocabularyError(
                f"A vocabulary made from the corpus is kept in the run's folder, but {folder} cannot be written to: "
                f"{error.reason}. Give another --checkpoint-dir."
            ) from error
        return make_vocabulary(corpus, path, most_tokens=most_tokens).path
    made_from = read_text(origin) if os.path.lexists(origin) else texts
    if made_from != texts:
        raise CorpusError(
            f"The run has a vocabulary, {path}, made from {made_from.partition(' ')[0]} texts. They must be those it goes on "
            f"with, but there are {len(corpus)} now and they differ. Bring back what the run was started with (`myxtts data` "
            "shows what is set aside), or start anew with --reset-training."
        )
    _log.info("Vocabulary: %s, as made when the run was started.", path)
    return path


def group_texts(corpus: Corpus) -> dict[str, list[str]]:
    """The texts of each language that can be cleaned."""
    texts: dict[str, list[str]] = {}
    for code, text in zip(corpus.language.codes.tolist(), corpus.text, strict=True):
        language = corpus.language.names[code]
        if language in CHARACTER_LIMITS:
            texts.setdefault(language, []).append(text)
    return texts


def _digest_texts(corpus: Corpus) -> str:
    """What a vocabulary is made from, in whatever order the metadata has it."""
    groups = [[language, str(len(texts)), *sorted(texts)] for language, texts in sorted(group_texts(corpus).items())]
    return digest_parts(*(part.encode("utf-8", "surrogateescape") for group in groups for part in group))
