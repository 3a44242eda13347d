"""The process that asks a tf.data service, seen from the process that trains."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from myxtts.config.address import Address
from myxtts.data.service.messages import Progress, Request, pack_request, unpack_progress
from myxtts.data.slot_memory import SlotMemory
from myxtts.data.workers import Task, WorkerProcess


class ServiceProcess(WorkerProcess):
    """A process that does `client`'s work. Once it has died, nothing more comes of it, and `is_closed` says so."""

    def __init__(self, address: Address, memory: SlotMemory, patience_s: float):
        settings = {"address": str(address), "memory_fd": memory.descriptor, "patience_s": patience_s}
        super().__init__(Task("myxtts.data.service.client:make_client", settings), [memory.descriptor])
        self._unread = 0
        self._is_buried = False

    def find_death_signal(self) -> int:
        self._is_buried = True
        return super().find_death_signal()

    def stop(self) -> None:
        if not self._is_buried:
            super().stop()

    def ask(self, requests: Sequence[Request]) -> None:
        """Have clips loaded; `take_progress` tells when they have arrived."""
        self._give("ask", [pack_request(request) for request in requests])

    def forget(self, number: int) -> None:
        """Have a request dropped. Nothing is written for it after this has returned."""
        self._give("forget", [number])
        self._read_answers()

    def take_progress(self, wait_s: float) -> Progress | None:
        """What has happened since the last call, after so long at most; None if the process has died."""
        self._give("take", wait_s)
        answer = self._read_answers()
        return None if self.is_closed else unpack_progress(answer)

    def _give(self, *item: Any) -> None:
        self.give([list(item)])
        self._unread += 1

    def _read_answers(self) -> Any:
        """The last of all answers that are due."""
        answer = None
        while self._unread and not self.is_closed:
            answers = self.receive()
            self._unread -= len(answers)
            for (last,) in answers[-1:]:
                answer = last
        return answer
