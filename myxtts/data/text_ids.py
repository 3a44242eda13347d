"""The token ids of every text, made once: no text is cleaned or tokenised while batches are made.

A million texts take some hundred megabytes. They are kept beside the scan's index, so that only the first start with a
corpus and a vocabulary pays for them.
"""

from __future__ import annotations

import hashlib
import logging
import os
import secrets
import zipfile
import zlib
from dataclasses import dataclass
from io import BufferedReader
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from myxtts import __version__
from myxtts.data.corpus import Corpus, LazyItems, Progress, take_pieces
from myxtts.data.errors import BatchPlanError, WorkerError
from myxtts.data.workers import Crashed, Task, Work, run_task
from myxtts.files import open_file, read_bytes
from myxtts.text.tokenizer import Tokenizer

_log = logging.getLogger(__name__)

_WORTH_A_WORKER = 2000
"""So many texts pay for starting a process."""

_PROGRESS_STEP = 1000


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
        vocabulary: a vocab.json.
        workers: processes; 0 does it in this one.
        folder: where the ids are kept; None keeps nothing.
    """
    tokenizer = Tokenizer(vocabulary)
    offsets = np.concatenate([[0], np.cumsum(corpus.tokens, dtype=np.int64)])
    path = folder / f"ids-{_digest(corpus, vocabulary)}.npz" if folder else None
    ids = _read(path, int(offsets[-1]), tokenizer.text_tokens) if path else None
    if ids is None:
        dtype = np.uint16 if tokenizer.text_tokens <= 1 << 16 else np.uint32
        ids = _tokenise(corpus, vocabulary, offsets, np.zeros(offsets[-1], dtype=dtype), workers, progress)
        if path:
            _write(path, ids)
    return TextIds(ids, offsets)


def make_encoder(vocabulary: str) -> Work:
    """The work of tokenising: takes a text and its language, gives its ids."""
    tokenizer = Tokenizer(vocabulary)
    return lambda item: tokenizer.encode(item[0], item[1])


def _tokenise(
    corpus: Corpus,
    vocabulary: Path,
    offsets: NDArray[np.int64],
    ids: NDArray[np.unsignedinteger],
    workers: int,
    progress: Progress | None,
) -> NDArray[np.unsignedinteger]:
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
    return ids


def _digest(corpus: Corpus, vocabulary: Path) -> str:
    """What the ids depend on. The version too, because a later one may clean texts in another way."""
    digest = hashlib.blake2b(digest_size=8)
    parts = (
        __version__.encode(),
        read_bytes(vocabulary),
        corpus.text.blob.data,
        corpus.text.offsets.tobytes(),
        "|".join(corpus.language.names).encode(),
        corpus.language.codes.tobytes(),
    )
    for part in parts:
        digest.update(len(part).to_bytes(8, "little"))
        digest.update(part)
    return digest.hexdigest()


def _read(path: Path, count: int, text_tokens: int) -> NDArray[np.unsignedinteger] | None:
    try:
        # Not by np.load: it makes an array as large as the file says before it reads a byte of it.
        with (
            BufferedReader(open_file(path)) as file,
            zipfile.ZipFile(file) as archive,
            archive.open("ids.npy") as entry,
        ):
            np.lib.format.read_magic(entry)
            shape, _, dtype = np.lib.format.read_array_header_1_0(entry)
            if shape != (count,) or dtype not in (np.uint16, np.uint32):
                return None
            ids = np.frombuffer(entry.read(count * dtype.itemsize), dtype)
    except (OSError, EOFError, ValueError, KeyError, NotImplementedError, RuntimeError, zlib.error, zipfile.BadZipFile):
        # Never written, no file (a `ValueError` too), or torn, or another kind of zip file. Each entry carries a checksum.
        return None
    return ids if len(ids) == count and ids.max(initial=0) < text_tokens else None


def _write(path: Path, ids: NDArray[np.unsignedinteger]) -> None:
    partial = path.with_name(f"{path.name}.{secrets.token_hex(8)}.tmp")
    try:
        with partial.open("wb") as file:
            np.savez(file, ids=ids)
            file.flush()
            os.fsync(file.fileno())
        partial.replace(path)
    except OSError as error:
        _log.warning("The token ids cannot be kept in %s (%s); the next start makes them anew.", path.parent, error)
        partial.unlink(missing_ok=True)
