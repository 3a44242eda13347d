"""Which slot of a ring holds which batch, and how far each has come."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

from myxtts.pipeline.errors import MalformedMessageError
from myxtts.pipeline.ring import SlotContent


@dataclass(frozen=True)
class Grant:
    """A slot given to the producer for the batch at a position."""

    slot: int
    position: int


class SlotTable:
    """Slots on their way around: free, granted, committed, taken, free.

    Batches are taken in the order of their positions, each exactly once, whatever happens to the producers that make them.

    Args:
        end_position: the first position that is not wanted; None for a stream without end.
    """

    def __init__(self, slots: int, first_position: int, end_position: int | None):
        self._free = deque(range(slots))
        self._granted: dict[int, int] = {}
        self._committed: dict[int, tuple[int, SlotContent]] = {}
        self._taken: deque[int] = deque()
        self._next_grant = first_position
        self._next_take = first_position
        self._end = end_position

    @property
    def next_position(self) -> int:
        """The position of the next batch to be taken."""
        return self._next_take

    def grant_free(self) -> list[Grant]:
        """Grants for all free slots, as far as there are positions left."""
        first = self._next_grant
        while self._free and not self._is_end(self._next_grant):
            self._granted[self._next_grant] = self._free.popleft()
            self._next_grant += 1
        return [Grant(self._granted[position], position) for position in range(first, self._next_grant)]

    def list_granted(self) -> list[Grant]:
        """The grants not yet answered by a commit, in the order of positions: what a new producer has to do."""
        return [Grant(slot, position) for position, slot in sorted(self._granted.items())]

    def commit(self, slot: int, position: int, content: SlotContent) -> None:
        """Notes that a slot is written. Raises `MalformedMessageError` when it was not granted for this batch."""
        if self._granted.get(position) != slot:
            raise MalformedMessageError(f"Batch {position} was committed in slot {slot}, which was not granted for it.")
        self._committed[position] = (self._granted.pop(position), content)

    def find_ready(self) -> tuple[Grant, SlotContent] | None:
        """The next batch to be taken, if it is committed."""
        if self._next_take not in self._committed:
            return None
        slot, content = self._committed[self._next_take]
        return Grant(slot, self._next_take), content

    def take(self) -> None:
        """Takes the batch that `find_ready` found."""
        slot, _ = self._committed.pop(self._next_take)
        self._taken.append(slot)
        self._next_take += 1

    def put_back(self) -> None:
        """Grants the batch that `find_ready` found once more: its slot is damaged."""
        slot, _ = self._committed.pop(self._next_take)
        self._granted[self._next_take] = slot

    def release(self) -> None:
        """Frees the slot that was taken first."""
        assert self._taken, "more slots released than taken"
        self._free.append(self._taken.popleft())

    def is_waiting(self) -> bool:
        """Whether the next batch is granted, so that waiting for it makes sense."""
        return self._next_take in self._granted

    def has_work_left(self) -> bool:
        """Whether there is anything a producer still has to make."""
        return bool(self._granted) or not self._is_end(self._next_grant)

    def is_at_end(self) -> bool:
        """Whether everything was taken."""
        return self._is_end(self._next_take)

    def _is_end(self, position: int) -> bool:
        return self._end is not None and position >= self._end
