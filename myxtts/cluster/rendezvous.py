"""How workers meet: all of them connect to the chief, and none goes on before all have.

Each makes two connections: one for the training thread, and a lifeline, which tells of deaths while that thread waits inside
TensorFlow.
"""

from __future__ import annotations

import contextlib
import logging
import select
import socket
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from myxtts.cluster.errors import ClusterError, FrameError, RendezvousError
from myxtts.cluster.frames import Closed, receive_frame, send_frame
from myxtts.cluster.interfaces import is_loopback, is_on_one_machine
from myxtts.cluster.spec import ClusterSpec
from myxtts.config.address import Address

_log = logging.getLogger(__name__)

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
        for end in (*self.training.values(), *self.lifelines.values()):
            end.close()


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
        on_failure.callback(lambda: _close_all(found))
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
        _close_ends(ends)
        raise RendezvousError(
            f"{spec.name_worker(0, begins=True)} has gone while the workers gathered. Its own last words say why."
        ) from None
    except BaseException:
        _close_ends(ends)
        raise
    if "refused" in answer:
        _close_ends(ends)
        raise ClusterError(str(answer["refused"]))
    if "missing" in answer:
        _close_ends(ends)
        raise RendezvousError(str(answer["missing"]))
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


def _close_all(found: Mapping[str, Mapping[int, socket.socket]]) -> None:
    for ends in found.values():
        _close_ends(list(ends.values()))


def _close_ends(ends: list[socket.socket]) -> None:
    for end in ends:
        end.close()
