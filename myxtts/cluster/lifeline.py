"""Notices that another worker has died, failed or fallen silent, while the training thread waits inside TensorFlow.

The only owner of a thread in this room."""

from __future__ import annotations

import json
import logging
import os
import select
import socket
import struct
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from myxtts.cluster.spec import ClusterSpec
from myxtts.errors import FrameError

_log = logging.getLogger(__name__)


MOST_BYTES = 1 << 24
"""Of a message. Weights do not travel this way."""
_LENGTH = struct.Struct("!I")


class Closed(Exception):
    """The other end has closed the connection, or is dead."""


def send_frame(end: socket.socket, value: Any) -> None:
    """Sends one value. Raises `Closed`."""
    data = json.dumps(value, separators=(",", ":")).encode("utf-8")
    if len(data) > MOST_BYTES:
        raise FrameError(f"A message must have at most {MOST_BYTES} bytes; this one has {len(data)}.")
    try:
        end.sendall(_LENGTH.pack(len(data)) + data)
    except TimeoutError:
        raise
    except OSError:
        raise Closed from None


def receive_frame(end: socket.socket) -> Any:
    """The next value. Raises `Closed` at the end, and `TimeoutError` if the socket has a limit."""
    (size,) = _LENGTH.unpack(_receive_all(end, _LENGTH.size))
    if size > MOST_BYTES:
        raise FrameError(f"A message must have at most {MOST_BYTES} bytes; one of {size} was announced.")
    try:
        return json.loads(_receive_all(end, size))
    except (ValueError, RecursionError) as error:
        raise FrameError(f"A message is not JSON: {error}") from None


def _receive_all(end: socket.socket, size: int) -> bytes:
    data = bytearray()
    while len(data) < size:
        try:
            part = end.recv(size - len(data))
        except TimeoutError:
            raise
        except OSError:
            raise Closed from None
        if not part:
            raise Closed
        data += part
    return bytes(data)


GRACE_S = 30.0
"""For the training thread to come back and close what is open."""
RESTART = "Start the whole cluster again: the run goes on from its last checkpoint."
_LOOK_S = 0.2
_FRAME_S = 5.0
_BEATS = 6
"""Signs of life within the silence that counts as death."""
_LEAVING_S = 5.0
_EXIT_CODE = 1


class Lifeline:
    """Watches the other workers, and tells them why this one ends. On the chief these are all, on the others it is the chief.

    After a loss the training thread is to end by itself; a thread that cannot be reached takes the process with it.

    Args:
        spec: the cluster.
        ends: a socket for each worker that is watched.
        end_process: ends it, with an exit code.
    """

    def __init__(
        self,
        spec: ClusterSpec,
        ends: Mapping[int, socket.socket],
        *,
        grace_s: float = GRACE_S,
        end_process: Callable[[int], None] = os._exit,
    ):
        self._spec = spec
        self._ends = dict(ends)
        self._grace_s = grace_s
        self._end_process = end_process
        self._listeners: list[Callable[[str], None]] = []
        self._listening = threading.Lock()
        self._limit: tuple[float, str] | None = None
        """A moment, and what is said to all once it has passed."""
        self._loss: str | None = None
        self._is_lost = threading.Event()
        self._is_over = threading.Event()
        now = time.monotonic()
        self._heard = dict.fromkeys(self._ends, now)
        self._beaten = now
        self._thread = threading.Thread(target=self._run, name="myxtts-lifeline", daemon=True)
        self._thread.start()

    def on_loss(self, listener: Callable[[str], None]) -> None:
        """Has a function called with the reason when a worker is lost: in the watching thread, or at once where one is."""
        with self._listening:
            if not self._is_lost.is_set():
                self._listeners.append(listener)
                return
        assert self._loss is not None
        listener(self._loss)

    def read_loss(self, wait_s: float = 0.0) -> str | None:
        """Why the run cannot go on, as far as that is known after waiting; None while nobody is lost."""
        self._is_lost.wait(wait_s)
        return self._loss

    @contextmanager
    def limit(self, seconds: float, reason: str) -> Iterator[None]:
        """A block that must end in time. Where it does not, the reason counts as a loss, here and for the others."""
        self._limit = (time.monotonic() + seconds, reason)
        try:
            yield
        finally:
            self._limit = None

    def close(self, reason: str | None) -> None:
        """Takes leave of the others.

        Args:
            reason: why this worker fails; None where it has done its work.
        """
        self._is_over.set()
        self._thread.join()
        self._send({"end": reason})
        if self._spec.is_chief and self._loss is None:
            # TensorFlow's service lives in the chief, and the others complain where it goes first.
            self._await_leaving(time.monotonic() + _LEAVING_S)
        for end in self._ends.values():
            end.close()

    def _run(self) -> None:
        while not self._is_over.is_set() and self._loss is None:
            self._beat()
            self._listen()
            self._find_silence()
            self._find_overrun()
        if self._loss is None:
            return
        self._send({"end": self._loss})
        with self._listening:
            self._is_lost.set()
        for listener in self._listeners:
            listener(self._loss)
        if not self._is_over.wait(self._grace_s):
            _log.critical("%s This process cannot be stopped where it is, so it ends now.", self._loss)
            self._end_process(_EXIT_CODE)

    def _beat(self) -> None:
        now = time.monotonic()
        if now - self._beaten >= self._spec.silence_s / _BEATS:
            self._beaten = now
            self._send({"beat": True})

    def _listen(self) -> None:
        readable, _, _ = select.select(list(self._ends.values()), [], [], _LOOK_S)
        for index, end in list(self._ends.items()):
            if end in readable:
                self._hear(index, end)

    def _hear(self, index: int, end: socket.socket) -> None:
        self._heard[index] = time.monotonic()
        end.settimeout(_FRAME_S)
        try:
            message = receive_frame(end)
        except (Closed, FrameError, TimeoutError):
            message = {"end": "its process has died, or the connection to it broke"}
        if not isinstance(message, dict) or "end" not in message:
            return
        del self._ends[index]
        end.close()
        if message["end"] is None:
            return
        # A loss that the chief gives on is told as it is.
        told = str(message["end"])
        self._lose(
            told if RESTART in told else f"{self._spec.name_worker(index, begins=True)} is lost: {told}. {RESTART}"
        )

    def _find_silence(self) -> None:
        now = time.monotonic()
        for index in self._ends:
            if now - self._heard[index] > self._spec.silence_s:
                self._lose(
                    f"{self._spec.name_worker(index, begins=True)} is lost: nothing was heard of it for "
                    f"{self._spec.silence_s:g} s. {RESTART}"
                )

    def _find_overrun(self) -> None:
        # Read once: the block may end in between.
        limit = self._limit
        if limit is not None and time.monotonic() > limit[0]:
            self._lose(f"{limit[1]} {RESTART}")

    def _lose(self, reason: str) -> None:
        self._loss = self._loss or reason

    def _send(self, message: Mapping[str, object]) -> None:
        for end in self._ends.values():
            end.settimeout(_FRAME_S)
            try:
                send_frame(end, message)
            except (Closed, TimeoutError):
                # Its death is heard where it is listened to.
                continue

    def _await_leaving(self, deadline: float) -> None:
        waiting = dict(self._ends)
        while waiting and (left_s := deadline - time.monotonic()) > 0:
            readable, _, _ = select.select(list(waiting.values()), [], [], left_s)
            waiting = {index: end for index, end in waiting.items() if end not in readable or not _has_left(end)}


def _has_left(end: socket.socket) -> bool:
    try:
        message = receive_frame(end)
    except (Closed, FrameError, TimeoutError):
        return True
    return isinstance(message, dict) and "end" in message
