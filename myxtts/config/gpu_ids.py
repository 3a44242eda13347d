"""Lists of GPUs as users give them."""

from __future__ import annotations


def parse_gpu_ids(text: str) -> list[int]:
    """The physical ids in a list like 0,1. Raises `ValueError` where it is no list of different ids."""
    words = [word.strip() for word in text.split(",")]
    if all(word.isascii() and word.isdecimal() for word in words):
        ids = [int(word) for word in words]
        if len(set(ids)) == len(ids):
            return ids
    raise ValueError(f"must be a list of different ids as nvidia-smi shows them, like 0,1, but is {text!r}.")
