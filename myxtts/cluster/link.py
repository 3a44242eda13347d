"""What workers tell each other between steps: small numbers and words, over the chief. For the training thread.

Every call is made by all workers, at the same places of the run, and waits for all of them.
"""

from __future__ import annotations

import socket
from collections.abc import Mapping, Sequence
from types import TracebackType
from typing import Any, Self

from myxtts.cluster.errors import OutOfStepError, WorkerLostError
from myxtts.cluster.frames import Closed, receive_frame, send_frame
from myxtts.cluster.lifeline import RESTART, Lifeline
from myxtts.cluster.rendezvous import Connections, meet
from myxtts.cluster.spec import ClusterSpec

_LAST_WORDS_S = 3.0
"""For the reason of a death to arrive, which comes by another connection."""


class Link:
    """The connections of a worker whose cluster has met. A context: whatever ends it is told to the others."""

    def __init__(self, spec: ClusterSpec, connections: Connections, lifeline: Lifeline | None = None):
        self.spec = spec
        self._ends: Mapping[int, socket.socket] = connections.training
        self.lifeline = lifeline or Lifeline(spec, connections.lifelines)
        # A thread that waits for a worker that fell silent must be woken.
        self.lifeline.on_loss(lambda reason: self._shut_down())

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close(None if kind is None else _name_end(kind, error))

    def close(self, reason: str | None = None) -> None:
        """Takes leave of the others; with a reason, they end too."""
        self.lifeline.close(reason)
        for end in self._ends.values():
            end.close()

    def gather(self, what: str, value: Any) -> list[Any]:
        """The values of all workers, by their index; on workers other than the chief an empty list.

        Args:
            what: the place in the run, which must be the same for all.
        """
        if not self.spec.is_chief:
            self._send(0, [what, value])
            return []
        return [value, *(self._receive(index, what) for index in sorted(self._ends))]

    def hand_out(self, what: str, value: Any) -> Any:
        """The chief's value, on every worker."""
        if not self.spec.is_chief:
            return self._receive(0, what)
        for index in sorted(self._ends):
            self._send(index, [what, value])
        return value

    def add_up(self, what: str, numbers: Sequence[float]) -> list[float]:
        """The sums over all workers, the same on every one to the last bit."""
        told = self.gather(what, list(numbers))
        return [float(number) for number in self.hand_out(what, [sum(each) for each in zip(*told, strict=True)])]

    def require_all(self) -> None:
        """Raises `WorkerLostError` if a worker is known to be lost."""
        reason = self.lifeline.read_loss()
        if reason is not None:
            raise WorkerLostError(reason)

    def blame(self, error: BaseException) -> WorkerLostError:
        """The error for a sum that failed for no reason of this worker's own, whether or not it is known who is lost."""
        first_line = str(error).partition("\n")[0].removesuffix(".")
        return self.explain_loss() or WorkerLostError(
            f"A sum over all workers has failed, though each of them still gives signs of life at {self.spec.control}: {first_line}. "
            f"Most likely TensorFlow's own connections broke, or NCCL's between GPUs: look at the network between the ports under "
            f"`workers`, and for NCCL at all others between the workers. {RESTART}"
        )

    def explain_loss(self) -> WorkerLostError | None:
        """The error for a failure that another worker's death may have caused; None where all live."""
        reason = self.lifeline.read_loss(_LAST_WORDS_S)
        return None if reason is None else WorkerLostError(reason)

    def _send(self, index: int, value: Any) -> None:
        try:
            send_frame(self._ends[index], value)
        except Closed:
            raise self._describe_loss(index) from None

    def _receive(self, index: int, what: str) -> Any:
        try:
            where, value = receive_frame(self._ends[index])
        except Closed:
            raise self._describe_loss(index) from None
        if where != what:
            raise OutOfStepError(
                f"All workers must be at the same place of the run, but worker {self.spec.index} is at {what!r} and worker {index} at "
                f"{where!r}. This is a fault of MyXTTS: please report it with the command. {RESTART}"
            )
        return value

    def _describe_loss(self, index: int) -> WorkerLostError:
        name = self.spec.name_worker(index, begins=True)
        return self.explain_loss() or WorkerLostError(f"{name} has left the run before its end. {RESTART}")

    def _shut_down(self) -> None:
        for end in self._ends.values():
            try:
                end.shutdown(socket.SHUT_RDWR)
            except OSError:
                # Gone already.
                continue


def _name_end(kind: type[BaseException], error: BaseException | None) -> str:
    """Why a worker ends, as the others are told."""
    if issubclass(kind, KeyboardInterrupt):
        return "it was interrupted (Ctrl-C)"
    return str(error).partition("\n")[0].removesuffix(".") or kind.__name__


def open_link(spec: ClusterSpec) -> Link:
    """Meets the other workers."""
    return Link(spec, meet(spec))
