"""More text tokens than a checkpoint was trained with."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from myxtts.errors import UserError

EMBEDDING, HEAD, HEAD_BIAS = "text_embedding.weight", "text_head.weight", "text_head.bias"


class VocabularyShrinkError(UserError):
    """A vocabulary is smaller than the one it should extend."""


def grow_text_vocabulary(
    arrays: Mapping[str, np.ndarray], tokens: int, *, seed: int, prefix: str = ""
) -> dict[str, np.ndarray]:
    """Checkpoint arrays with text embedding and text head for `tokens` tokens; everything else as it was.

    Old rows stay. New ones are drawn as in the reference, from N(0, 1), with a bias of 0; and, also as in the
    reference, the last new row repeats the last old one.

    Args:
        seed: of the new rows.
        prefix: what stands before `text_embedding` in the names.
    """
    old = len(arrays[prefix + EMBEDDING])
    if tokens < old:
        raise VocabularyShrinkError(
            f"A vocabulary can only grow: the new one must have at least {old} tokens, but has {tokens}. "
            "Give the vocabulary file that extends the checkpoint's own."
        )
    if tokens == old:
        return dict(arrays)
    generator = np.random.default_rng(seed)
    grown = dict(arrays)
    for name in (EMBEDDING, HEAD, HEAD_BIAS):
        table = arrays[prefix + name]
        shape = (tokens - old, *table.shape[1:])
        rows = np.zeros(shape) if name == HEAD_BIAS else generator.standard_normal(shape)
        rows[-1] = table[-1]
        grown[prefix + name] = np.concatenate([table, rows.astype(table.dtype)])
    return grown
