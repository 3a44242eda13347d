"""Byte-pair merges learnt from counted words, the same for the same words on every machine."""

from __future__ import annotations

import heapq
import itertools
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping

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
