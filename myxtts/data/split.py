"""A validation set where none was given: some clips of the training set, always the same ones."""

from __future__ import annotations

import logging
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from myxtts.data.corpus import Corpus
from myxtts.hashing import digest64, hash_words

_log = logging.getLogger(__name__)

VALIDATION_SHARE = 0.02
FEW_VALIDATION_CLIPS = 4
"""Set apart from a small corpus, but no more than a tenth of it: the loss of a single clip is mostly chance."""
MOST_VALIDATION_CLIPS = 512
"""More tell nothing new about the loss, and every validation pays for them."""

_SPLIT = 101
"""Sets these hashes apart from others with the same seed."""


@dataclass(frozen=True, eq=False)
class CorpusSplit:
    """Clip numbers of the two parts, each in rising order. A corpus of one clip has nothing to validate on."""

    train: NDArray[np.intp]
    validation: NDArray[np.intp]


def split_corpus(corpus: Corpus, seed: int) -> CorpusSplit:
    """Set some clips apart for validation, and say so in the log.

    Which ones follows from the seed and the clips' paths, whatever the order of the metadata's lines.
    """
    clips = len(corpus)
    few = min(FEW_VALIDATION_CLIPS, clips // 10)
    count = max(0, min(max(1, few, round(clips * VALIDATION_SHARE)), MOST_VALIDATION_CLIPS, clips - 1))
    keys = np.fromiter(map(digest64, corpus.audio.iter_bytes()), dtype=np.int64, count=len(corpus))
    order = np.lexsort([keys, hash_words(seed, _SPLIT, keys)])
    validation, train = np.sort(order[:count]), np.sort(order[count:])
    _log.info(
        "Validation: %d of %d clips (%.1f of %.1f min) are set apart from training, chosen by seed %d%s.",
        count,
        len(corpus),
        corpus.take(validation).total_seconds / 60,
        corpus.total_seconds / 60,
        seed,
        f", such as {corpus.audio[int(validation[0])]}" if count else "",
    )
    return CorpusSplit(train, validation)
