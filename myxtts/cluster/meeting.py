"""Workers find each other: addresses, ports, the meeting, and the link that stays."""

from __future__ import annotations

import contextlib
import ipaddress
import logging
import select
import socket
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Self

from myxtts.cluster.lifeline import RESTART, Closed, Lifeline, receive_frame, send_frame
from myxtts.cluster.spec import ClusterSpec
from myxtts.config.settings import Address
from myxtts.errors import ClusterError, FrameError, OutOfStepError, RendezvousError, WorkerLostError

_log = logging.getLogger(__name__)


def is_on_one_machine(spec: ClusterSpec) -> bool:
    """Whether all workers are named by addresses that no other machine can reach."""
    return all(is_loopback(address.host) for address in spec.workers)


def is_loopback(host: str) -> bool:
    """Whether a name or number stands for this machine alone. A name that is not known yet does not."""
    try:
        found = socket.getaddrinfo(host, None, family=socket.AF_INET, type=socket.SOCK_STREAM)
    except OSError:
        return False
    return bool(found) and all(ipaddress.IPv4Address(address[0]).is_loopback for *_, address in found)


GREETING = "myxtts cluster 1"
TRAINING, LIFELINE = CHANNELS = ("training", "lifeline")
_GREETING_SECONDS = 5.0
"""For a connection to say what it is: other programs may knock at an open port."""
_RETRY_SECONDS = 0.25
_TELL_SECONDS = 15.0


@dataclass(frozen=True)
class Connections:
    """The sockets of one worker: on the chief to every other one, on the others to the chief."""

    training: Mapping[int, socket.socket]
    lifelines: Mapping[int, socket.socket]

    def close(self) -> None:
        _close_ends([*self.training.values(), *self.lifelines.values()])


def meet(spec: ClusterSpec) -> Connections:
    """Waits until all workers are there. Raises `RendezvousError`, which names those that are not."""
    others = ", ".join(spec.name_worker(index) for index in range(spec.size) if index != spec.index)
    _log.info("Worker %d of %d waits up to %g s for %s.", spec.index, spec.size, spec.rendezvous_s, others)
    connections = _await_workers(spec) if spec.is_chief else _join_chief(spec)
    for end in (*connections.training.values(), *connections.lifelines.values()):
        end.settimeout(None)
        end.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    _log.info("All %d workers are there.", spec.size)
    return connections


def _await_workers(spec: ClusterSpec) -> Connections:
    deadline = time.monotonic() + spec.rendezvous_s
    found: dict[str, dict[int, socket.socket]] = {channel: {} for channel in CHANNELS}
    with _listen(spec, deadline) as listener, contextlib.ExitStack() as on_failure:
        for ends in found.values():
            on_failure.callback(_close_ends, ends.values())
        while _list_missing(spec, found):
            left_s = deadline - time.monotonic()
            if left_s <= 0:
                raise RendezvousError(_refuse_all(spec, found))
            listener.settimeout(min(left_s, 1.0))
            with contextlib.suppress(TimeoutError):
                _greet(listener.accept()[0], spec, found)
        for index, end in found[TRAINING].items():
            _welcome(index, end, spec)
        on_failure.pop_all()
    return Connections(found[TRAINING], found[LIFELINE])


def _welcome(index: int, end: socket.socket, spec: ClusterSpec) -> None:
    try:
        send_frame(end, {"welcome": GREETING})
    except (Closed, TimeoutError):
        raise RendezvousError(
            f"{spec.name_worker(index, begins=True)} has gone while the workers gathered. Its own last words say why. Start the whole "
            "cluster again."
        ) from None


def _listen(spec: ClusterSpec, deadline: float) -> socket.socket:
    host = spec.bind or spec.control.host
    _await_name(host, deadline)
    if spec.bind is None and is_loopback(host) and not is_on_one_machine(spec):
        raise RendezvousError(
            f"The chief must listen where the others reach it, but {host} is a name of loopback on this machine. Give the chief's own "
            "address as `bind` in the cluster file, or put it under `control`."
        )
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        return socket.create_server((host, spec.control.port), family=family, backlog=2 * spec.size)
    except OSError as error:
        raise RendezvousError(
            f"The chief cannot listen on {Address(host, spec.control.port)} ({error.strerror or error}). If another process has the "
            "port, give another one as `control` in the cluster file; if the name is not that of one of its own interfaces, give one "
            "as `bind`."
        ) from None


def _await_name(host: str, deadline: float) -> None:
    """Waits for a name to be known, as that of a container is only after its start. What it is at the end, others say."""
    while time.monotonic() < deadline:
        try:
            socket.getaddrinfo(host, None)
        except socket.gaierror:
            time.sleep(_RETRY_SECONDS)
        else:
            return


def _greet(end: socket.socket, spec: ClusterSpec, found: dict[str, dict[int, socket.socket]]) -> None:
    """Takes a connection in if it is that of a worker, and closes it if not."""
    end.settimeout(_GREETING_SECONDS)
    try:
        hello = receive_frame(end)
        # One that was started again is welcome in the place of the one that died.
        _forget_gone(found)
        refusal = _check_greeting(hello, spec, found)
        if refusal is None:
            found[hello["channel"]][hello["worker"]] = end
            return
        _log.warning("A connection was refused: %s", refusal)
        send_frame(end, {"refused": refusal})
    except (Closed, FrameError, TimeoutError, OSError):
        _log.warning("Something that is no worker of this cluster has knocked at %s.", spec.control)
    end.close()


def _forget_gone(found: Mapping[str, dict[int, socket.socket]]) -> None:
    """Closes and takes out connections whose other end has gone."""
    gone = [(ends, index) for ends in found.values() for index, end in ends.items() if _is_closed(end)]
    for ends, index in gone:
        ends.pop(index).close()


def _is_closed(end: socket.socket) -> bool:
    # Workers say nothing after their greeting before they are welcome.
    if not select.select([end], [], [], 0)[0]:
        return False
    try:
        return not end.recv(1, socket.MSG_PEEK)
    except OSError:
        return True


def _check_greeting(hello: Any, spec: ClusterSpec, found: Mapping[str, Mapping[int, socket.socket]]) -> str | None:
    """Why a connection cannot be taken; None if it can."""
    if not isinstance(hello, dict) or hello.get("greeting") != GREETING or hello.get("channel") not in CHANNELS:
        return f"it does not speak {GREETING}: all workers must run the same version of MyXTTS."
    index = hello.get("worker")
    if hello.get("workers") != _list_workers(spec):
        return f"worker {index} was given other workers than the chief: all need the same cluster file."
    if not isinstance(index, int) or not 0 < index < spec.size:
        return f"there is no worker {index} for the chief to wait for."
    if index in found[hello["channel"]]:
        return f"two processes say that they are worker {index}: give every one its own --worker-index."
    return None


def _join_chief(spec: ClusterSpec) -> Connections:
    deadline = time.monotonic() + spec.rendezvous_s
    ends: list[socket.socket] = []
    with contextlib.ExitStack() as on_failure:
        on_failure.callback(_close_ends, ends)
        try:
            for channel in CHANNELS:
                end = _connect(spec, deadline)
                ends.append(end)
                hello = {"greeting": GREETING, "channel": channel, "worker": spec.index, "workers": _list_workers(spec)}
                send_frame(end, hello)
            # The chief's clock began at another time, and it is the one to say who is missing.
            ends[0].settimeout(spec.rendezvous_s + _TELL_SECONDS)
            answer = receive_frame(ends[0])
        except (Closed, TimeoutError):
            raise RendezvousError(
                f"{spec.name_worker(0, begins=True)} has gone while the workers gathered. Its own last words say why."
            ) from None
        if "refused" in answer:
            raise ClusterError(str(answer["refused"]))
        if "missing" in answer:
            raise RendezvousError(str(answer["missing"]))
        on_failure.pop_all()
    return Connections({0: ends[0]}, {0: ends[1]})


def _connect(spec: ClusterSpec, deadline: float) -> socket.socket:
    reason = "no answer"
    while (left_s := deadline - time.monotonic()) > 0:
        try:
            return socket.create_connection(spec.control, timeout=min(left_s, _GREETING_SECONDS))
        except OSError as error:
            reason = error.strerror or str(error)
        time.sleep(min(_RETRY_SECONDS, max(0.0, deadline - time.monotonic())))
    raise RendezvousError(
        f"{spec.name_worker(0, begins=True)} was not there within {spec.rendezvous_s:g} s: nobody answers at {spec.control} ({reason}). "
        "Start it, and see that the port is open between the machines; `rendezvous_seconds` in the cluster file sets the time."
    )


def _refuse_all(spec: ClusterSpec, found: Mapping[str, dict[int, socket.socket]]) -> str:
    _forget_gone(found)
    missing = "; ".join(spec.name_worker(index) for index in _list_missing(spec, found))
    text = (
        f"Not all {spec.size} workers were there within {spec.rendezvous_s:g} s. Missing: {missing}. Start them with the same cluster "
        f"file, and see that they reach {spec.control}; `rendezvous_seconds` in the cluster file sets the time."
    )
    for end in found[TRAINING].values():
        with contextlib.suppress(Closed, TimeoutError):
            send_frame(end, {"missing": text})
    return text


def _list_missing(spec: ClusterSpec, found: Mapping[str, Mapping[int, socket.socket]]) -> list[int]:
    return [index for index in range(1, spec.size) if any(index not in ends for ends in found.values())]


def _list_workers(spec: ClusterSpec) -> list[str]:
    return [str(address) for address in spec.workers]


def _close_ends(ends: Iterable[socket.socket]) -> None:
    for end in ends:
        end.close()


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
        _close_ends(self._ends.values())

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
