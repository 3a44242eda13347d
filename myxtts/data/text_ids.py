"""The token ids of every text, made once: no text is cleaned or tokenised while batches are made.

A million texts take some hundred megabytes. They are kept beside the scan's index, so that only the first start with a
corpus and a vocabulary pays for them.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from myxtts import __version__
from myxtts.data.corpus import Corpus, LazyItems, Progress, digest_parts, take_pieces
from myxtts.data.errors import BatchPlanError, WorkerError
from myxtts.data.workers import Crashed, Task, Work, run_task
from myxtts.files import FileError, WriteError, open_file_atomically, read_bytes
from myxtts.text.tokenizer import Tokenizer

_log = logging.getLogger(__name__)

_WORTH_A_WORKER = 2000
"""So many texts pay for starting a process."""

_PROGRESS_STEP = 1000
_DIGEST_CHARACTERS = 16


@dataclass(frozen=True, eq=False)
class TextIds:
    """Token ids in one column, two bytes each where the vocabulary allows it."""

    ids: NDArray[np.unsignedinteger]
    offsets: NDArray[np.int64]
    """Where each text starts; one more than there are texts."""

    def __len__(self) -> int:
        return len(self.offsets) - 1

    def __getitem__(self, text: int) -> NDArray[np.unsignedinteger]:
        return self.ids[self.offsets[text] : self.offsets[text + 1]]

    def take(self, texts: NDArray[np.intp]) -> TextIds:
        """A column of these texts, in this order."""
        return TextIds(*take_pieces(self.ids, self.offsets, texts))

    def pad(self, texts: NDArray[np.integer], width: int) -> NDArray[np.int32]:
        """(texts, width) ids with zeros behind each text; negative numbers give rows of zeros."""
        starts, lengths = self.offsets[texts], np.where(texts >= 0, self.offsets[texts + 1] - self.offsets[texts], 0)
        columns = np.arange(width)
        is_own = columns < lengths[:, None]
        places = np.where(is_own, starts[:, None] + columns, 0)
        return np.where(is_own, self.ids[places], 0).astype(np.int32)


def collect_text_ids(
    corpus: Corpus, vocabulary: Path, *, workers: int, folder: Path | None, progress: Progress | None = None
) -> TextIds:
    """The ids of a corpus's texts, from the file an earlier start left, else from the tokenizer.

    Args:
        corpus: scanned with this vocabulary.
        workers: processes; 0 does it in this one.
        folder: where the ids are kept; None keeps nothing.
    """
    text_tokens = Tokenizer(vocabulary).text_tokens
    offsets = np.concatenate([[0], np.cumsum(corpus.tokens, dtype=np.int64)])
    ids = np.zeros(offsets[-1], dtype=np.uint16 if text_tokens <= 1 << 16 else np.uint32)
    # The version, because a later one may clean texts in another way.
    texts = (*corpus.text.parts, *corpus.language.parts)
    name = f"ids-{digest_parts(__version__.encode(), read_bytes(vocabulary), *texts)}.bin"
    kept = _read_ids(folder / name, ids, text_tokens) if folder else None
    if kept is not None:
        return TextIds(kept, offsets)
    _fill_ids(ids, offsets, corpus, vocabulary, workers, progress)
    try:
        if folder:
            with open_file_atomically(folder / name, follows_link=False) as file:
                file.write(digest_parts(ids.data).encode())
                file.write(ids.data)
    except WriteError as error:
        _log.warning("The token ids cannot be kept in %s (%s); the next start makes them anew.", folder, error.reason)
    return TextIds(ids, offsets)


def make_encoder(vocabulary: str) -> Work:
    """The work of tokenising: takes a text and its language, gives its ids."""
    tokenizer = Tokenizer(vocabulary)
    return lambda item: tokenizer.encode(item[0], item[1])


def _fill_ids(
    ids: NDArray[np.unsignedinteger],
    offsets: NDArray[np.int64],
    corpus: Corpus,
    vocabulary: Path,
    workers: int,
    progress: Progress | None,
) -> None:
    task = Task("myxtts.data.text_ids:make_encoder", {"vocabulary": str(vocabulary)})
    items = LazyItems(range(len(corpus)), lambda text: [corpus.text[text], corpus.language[text]])
    results = run_task(task, items, min(workers, len(corpus) // _WORTH_A_WORKER))
    for done, (text, result) in enumerate(results, start=1):
        if isinstance(result, Crashed):
            raise WorkerError(f"A text killed its worker process with signal {result.signal}: a library is broken.")
        if len(result) != corpus.tokens[text]:
            raise BatchPlanError(
                f"{corpus.root}: {corpus.audio[text]} must have {corpus.tokens[text]} text tokens, as its scan says, but has "
                f"{len(result)} in {vocabulary}. Scan the corpus with this vocabulary: batches are planned by these lengths."
            )
        ids[offsets[text] : offsets[text + 1]] = result
        if progress and (done % _PROGRESS_STEP == 0 or done == len(corpus)):
            progress("tokens", done, len(corpus))


def _read_ids(
    path: Path, expected: NDArray[np.unsignedinteger], text_tokens: int
) -> NDArray[np.unsignedinteger] | None:
    """The ids in a file, as many and of the kind that is expected; None where it holds anything else."""
    try:
        content = memoryview(read_bytes(path, _DIGEST_CHARACTERS + expected.nbytes))
    except FileError:
        return None
    digest, content = content[:_DIGEST_CHARACTERS], content[_DIGEST_CHARACTERS:]
    if len(content) != expected.nbytes or digest != digest_parts(content).encode():
        return None
    ids = np.frombuffer(content, expected.dtype)
    return ids if ids.max(initial=0) < text_tokens else None
