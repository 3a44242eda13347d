"""Which clips were set aside because they kill producers, and of which of them the run has been told."""

from __future__ import annotations

from collections.abc import Iterable


class SetAsideJournal:
    """Pairs of position and place, in the order in which they were found.

    Every producer is given the whole journal and confirms it pair by pair, with the name of the clip. A name is news when
    no producer before has confirmed that pair.

    Args:
        known: the journal of an earlier run, which is no news.
    """

    def __init__(self, known: Iterable[tuple[int, int]] = ()):
        self._pairs = list(known)
        self._told = len(self._pairs)
        self._confirmed = 0

    @property
    def pairs(self) -> list[tuple[int, int]]:
        return list(self._pairs)

    def add(self, position: int, place: int) -> None:
        """Sets one more clip aside; the same place again means that the substitute kills too."""
        self._pairs.append((position, place))

    def begin_confirming(self) -> None:
        """A new producer begins with the first pair."""
        self._confirmed = 0

    def confirm(self) -> bool:
        """Notes that the producer has confirmed one more pair; whether that is news."""
        self._confirmed += 1
        is_news = self._confirmed > self._told
        self._told = max(self._told, self._confirmed)
        return is_news
