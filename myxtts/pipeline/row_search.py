"""Which clip of a batch kills the producer: found by halving, each half tried in producers of its own."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeVar

from myxtts.data.places import name_prompt
from myxtts.errors import ProducerFailedError
from myxtts.pipeline.death import Cause, Death
from myxtts.pipeline.messages import Event, RowsCounted, Survived, order_count_rows, order_probe
from myxtts.pipeline.producer_life import ProducerLife
from myxtts.pipeline.wake import Wake
from myxtts.pipeline.wire import Message

Answer = TypeVar("Answer", bound=Event)

CONFIRMATIONS = 2
"""Deaths in a row before rows count as deadly: a process can also be killed by somebody who knows nothing of clips."""
_MOST_OTHER_DEATHS = 10


class NoSingleRow(Exception):
    """Rows that kill together, but not in two halves."""


class OutOfMemoryDeath(Exception):
    """A probe ran out of memory, which says nothing about its rows."""

    def __init__(self, death: Death):
        self.death = death


def find_deadly_row(row_count: int, kills: Callable[[Sequence[int]], bool]) -> int | None:
    """The row that kills, or None when all rows together do not. Raises `NoSingleRow`."""
    suspects: Sequence[int] = range(row_count)
    if not kills(suspects):
        return None
    while len(suspects) > 1:
        middle = len(suspects) // 2
        for half in (suspects[:middle], suspects[middle:]):
            if kills(half):
                suspects = half
                break
        else:
            raise NoSingleRow(f"rows {suspects[0]} to {suspects[-1]}")
    return suspects[0] if suspects else None


class RowSearch:
    """Tries rows of one batch in producers that do nothing else.

    Args:
        start_life: starts a producer without any grants.
        on_death: is told of every death.
    """

    def __init__(
        self, position: int, start_life: Callable[[], ProducerLife], wake: Wake, on_death: Callable[[Death], None]
    ):
        self._position = position
        self._start_life = start_life
        self._wake = wake
        self._on_death = on_death
        self._life: ProducerLife | None = None
        self._other_deaths = 0

    def find(self) -> int | None:
        """The place that kills producers, or None when the batch as a whole does no harm now: a row, or `name_prompt` of it where
        the row does no harm with its own clip as its prompt.

        Raises `NoSingleRow`, `OutOfMemoryDeath`, `Stopped`.
        """
        try:
            counted = self._ask(order_count_rows(self._position), RowsCounted)
            while isinstance(counted, Death):
                self._excuse(counted)
                counted = self._ask(order_count_rows(self._position), RowsCounted)
            row = find_deadly_row(counted.rows, self._kills)
            if row is None or not counted.reads_prompts or self._kills([row], hear_themselves=True):
                return row
            return name_prompt(row)
        finally:
            if self._life is not None:
                self._life.end()

    def _kills(self, rows: Sequence[int], hear_themselves: bool = False) -> bool:
        deaths = 0
        while deaths < CONFIRMATIONS:
            answer = self._ask(order_probe(self._position, rows, hear_themselves), Survived)
            if isinstance(answer, Survived):
                return False
            if answer.cause is Cause.OUT_OF_MEMORY:
                raise OutOfMemoryDeath(answer)
            if answer.position == self._position:
                deaths += 1
            else:
                self._excuse(answer)
        return True

    def _ask(self, order: Message, answer: type[Answer]) -> Answer | Death:
        if self._life is None:
            self._life = self._start_life()
        self._life.give([order])
        while True:
            event = self._life.wait(self._wake)
            if isinstance(event, Death):
                self._life = None
                self._on_death(event)
                return event
            if isinstance(event, answer):
                return event

    def _excuse(self, death: Death) -> None:
        """A death before the rows were touched: none of them is to blame."""
        self._other_deaths += 1
        if self._other_deaths > _MOST_OTHER_DEATHS:
            raise ProducerFailedError(
                f"Batch {self._position} killed two producers, and those started to find out why died before they could: {death}"
            )
