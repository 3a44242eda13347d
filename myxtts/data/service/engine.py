"""Loads done by the workers of a tf.data service, on this machine or on others.

Workers send files in whatever order they become ready, twice or not at all. Each load has a number, and is finished when
it has arrived, so the order and the content of batches do not depend on the service. Files that are not of the formats it
serves, or that a worker could not read, are read in this process: with the same samples, or the right failure.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Sequence

from myxtts.config.address import Address
from myxtts.data.clip_loading import ClipFile, is_unchanged
from myxtts.data.errors import ServiceUnavailableError, WorkerError
from myxtts.data.loading import Load, LoadingEngine, Samples, load_pending
from myxtts.data.service.address import explain_unknown_name, is_answering, wait_for_answer
from myxtts.data.service.messages import Arrival, Progress, Request
from myxtts.data.service.process import ServiceProcess
from myxtts.data.service.sight import Sight
from myxtts.data.slot_memory import SlotMemory

_log = logging.getLogger(__name__)

PATIENCE_SECONDS = 10.0
"""Silence after which what is missing is asked for again."""

_SEGMENTS_AHEAD = 3
"""Into so many parts the loads under way are cut: each costs the service about as much as a batch."""
_ATTEMPTS = 4
"""A service that loses something is asked at least about so often before it counts as gone."""
_TAKE_SECONDS = 1.0
_WARN_SECONDS = 15.0
_MOST_THREADS = 64
_MOST_DEATHS_IN_A_ROW = 5


class ServiceEngine(LoadingEngine):
    """Loads through a tf.data service.

    Args:
        address: of the dispatcher.
        depth: loads that may be under way.
        slot_samples: the most that any load has, rows times samples.
        limit_s: how long nothing may arrive from the service.
        patience_s: silence after which what is missing is asked for again, several times within the limit.
    """

    def __init__(
        self,
        address: Address,
        depth: int,
        slot_samples: int,
        *,
        limit_s: float,
        patience_s: float = PATIENCE_SECONDS,
    ):
        self._address = address
        self._limit_s = limit_s
        self._patience_s = min(patience_s, limit_s / _ATTEMPTS)
        self._segment_loads = max(1, depth // _SEGMENTS_AHEAD)
        self._wait_for_dispatcher()
        self._memory = SlotMemory(depth, slot_samples)
        self._slots: dict[Load, int] = {}
        self._numbers: dict[Load, int] = {}
        self._loads: dict[int, Load] = {}
        """Those whose answer has not arrived."""
        self._unsent: list[Load] = []
        self._next_number = 0
        self._silent_s = 0.0
        self._deaths_in_a_row = 0
        self._sight = Sight()
        self._client = ServiceProcess(address, self._memory, self._patience_s)

    def start(self, files: Sequence[ClipFile | None], samples: int) -> Load:
        load = Load(files, samples)
        self._slots[load] = self._memory.acquire()
        for row, file in enumerate(files):
            if file is None:
                self._view(load)[row] = 0.0
        if load.pending:
            self._numbers[load] = self._next_number
            self._loads[self._next_number] = load
            self._next_number += 1
            self._unsent.append(load)
        if len(self._unsent) >= self._segment_loads:
            self._send_unsent()
        return load

    def finish(self, load: Load) -> None:
        if load in self._unsent:
            self._send_unsent()
        while self._numbers.get(load) in self._loads:
            self._receive()
        load_pending(load, self._view(load))

    def retry(self, load: Load, row: int, file: ClipFile | None) -> None:
        load.change_file(row, file)
        if file is None:
            self._view(load)[row] = 0.0

    def take(self, load: Load) -> Samples:
        self._numbers.pop(load, None)
        return self._memory.hand_out(self._slots.pop(load), load.rows, load.samples)

    def cancel(self, load: Load) -> None:
        number = self._numbers.pop(load, -1)
        is_awaited = self._loads.pop(number, None) is not None
        if load in self._unsent:
            self._unsent.remove(load)
        elif is_awaited:
            # Answered before the slot is used again: what is on its way must not be written to it.
            self._client.forget(number)
        self._memory.release(self._slots.pop(load))

    def close(self) -> None:
        self._client.stop()
        self._memory.close()

    def _view(self, load: Load) -> Samples:
        return self._memory.view(self._slots[load], load.rows, load.samples)

    def _send_unsent(self) -> None:
        self._send(self._unsent)
        self._unsent = []

    def _send(self, loads: Sequence[Load]) -> None:
        requests = [
            Request(
                self._numbers[load],
                {row: file for row, file in enumerate(load.files) if file is not None},
                self._memory.find_offset(self._slots[load]),
                load.samples,
            )
            for load in loads
        ]
        self._client.ask(requests)

    def _receive(self) -> None:
        """Wait for a moment for what arrives."""
        began_s = time.monotonic()
        progress = self._client.take_progress(_TAKE_SECONDS)
        if progress is None:
            self._bury_client()
            return
        self._deaths_in_a_row = 0
        for arrival in progress.arrivals:
            self._note(arrival)
        if progress.asked_again:
            _log.info("%d batches did not come from the data service, and are asked for again.", progress.asked_again)
        # Not the clock's time: a machine may have slept.
        waited_s = min(time.monotonic() - began_s, 2 * _TAKE_SECONDS)
        self._judge_silence(0.0 if progress.arrivals else self._silent_s + waited_s, progress)
        if progress.threads > _MOST_THREADS:
            self._client.stop()
            self._replace_client()

    def _note(self, arrival: Arrival) -> None:
        load = self._loads.pop(arrival.number, None)
        if load is None:
            # Cancelled after it had arrived.
            return
        for row in arrival.loaded:
            file = load.files[row]
            if file is not None and is_unchanged(file):
                load.note(row, None)
        self._sight.note(load, arrival)

    def _judge_silence(self, silent_s: float, progress: Progress) -> None:
        if self._silent_s <= _WARN_SECONDS < silent_s:
            _log.warning(
                "%s The run waits, and ends after %g s without an answer (--data-service-timeout).",
                self._explain_silence(silent_s),
                self._limit_s,
            )
        self._silent_s = silent_s
        if silent_s > self._limit_s:
            failure = f" Its last words: {progress.last_failure}" if progress.last_failure else ""
            raise ServiceUnavailableError(f"{self._explain_silence(silent_s)}{failure}")

    def _explain_silence(self, silent_s: float) -> str:
        if not is_answering(self._address):
            return self._explain_no_dispatcher()
        return (
            f"The data service at {self._address} answers, but none of its workers has sent anything for {silent_s:.0f} s. "
            f"Start one where the corpus can be read: `myxtts data-worker --dispatcher {self._address}`"
        )

    def _explain_no_dispatcher(self) -> str:
        return (
            f"There is no data service at {self._address}.{explain_unknown_name(self._address)} Start it there with `myxtts data-dispatcher --port "
            f"{self._address.port}`, check the address, or leave --data-service out to read on this machine."
        )

    def _wait_for_dispatcher(self) -> None:
        def tell() -> None:
            why = explain_unknown_name(self._address)
            _log.warning("Nobody answers at %s yet: waiting up to %g s.%s", self._address, self._limit_s, why)

        if not wait_for_answer(self._address, self._limit_s, tell):
            raise ServiceUnavailableError(self._explain_no_dispatcher())

    def _bury_client(self) -> None:
        """Start another process for one that has died of a signal."""
        cause = self._client.find_death_signal()
        self._deaths_in_a_row += 1
        if self._deaths_in_a_row > _MOST_DEATHS_IN_A_ROW:
            raise WorkerError(
                f"{_MOST_DEATHS_IN_A_ROW} processes in a row that ask the data service died of signal {cause}. The machine may "
                "be out of memory."
            )
        self._replace_client()

    def _replace_client(self) -> None:
        """Start a client and ask it for everything that has not arrived."""
        self._client = ServiceProcess(self._address, self._memory, self._patience_s)
        self._send([load for load in self._loads.values() if load not in self._unsent])
