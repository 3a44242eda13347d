"""Child processes of ours: started, talked to, asked where they hang, and ended. Needs no TensorFlow.

A child is a module of ours started anew, not forked (TensorFlow's threads do not survive a fork) and not `multiprocessing`
(whose locks stay locked when a process is killed, and which imports the user's main module anew). Ctrl-C is for the parent, which
ends its children; however it ends, the kernel kills them."""

from __future__ import annotations

import contextlib
import ctypes
import faulthandler
import fcntl
import json
import mmap
import os
import resource
import select
import signal
import socket
import struct
import subprocess
import sys
import sysconfig
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from myxtts.errors import ClusterError, MachineError
from myxtts.units import format_bytes

Message = dict[str, Any]

IMPORT_S = 600.0
"""For importing TensorFlow: from a cold network disk it takes minutes."""
MESSAGE_BYTES = 1 << 16
"""Well below what the kernel queues for one socket (about 200 kB), so that a few messages always fit."""
PACKAGE_PARENT = Path(__file__).resolve().parents[1]

_STACK_SIGNAL = signal.SIGUSR1
_STACKS_S = 3.0
_LOOK_S = 0.05
_KILL_S = 30.0
_REPORT_BYTES = 4000
_MOST_OUTPUT_BYTES = 1 << 20


class ChildStuckError(MachineError):
    """A killed process does not end."""


class MessageError(MachineError):
    """A message cannot be sent to another process."""


class PeerGone(Exception):
    """The process at the other end has closed its socket, or is dead."""


class ChildProcess:
    """A started module of ours, which calls `enter_child` first. The descriptors that it is handed keep their numbers."""

    def __init__(
        self,
        module: str,
        *,
        kind: socket.SocketKind = socket.SOCK_SEQPACKET,
        descriptors: Sequence[int] = (),
        environment: Mapping[str, str] | None = None,
    ):
        with contextlib.ExitStack() as on_failure:
            self.socket, theirs = socket.socketpair(socket.AF_UNIX, kind)
            on_failure.callback(self.socket.close)
            # A file in memory, not a pipe: nobody reads along, and a full pipe would stop the process.
            self._output = os.memfd_create("myxtts-child-output")
            on_failure.callback(os.close, self._output)
            fcntl.fcntl(self._output, fcntl.F_SETFL, fcntl.fcntl(self._output, fcntl.F_GETFL) | os.O_APPEND)
            parent_end, self._parent = os.pipe()
            # Its closing kills the process, which nobody else would know of if anything failed from here on.
            on_failure.callback(os.close, self._parent)
            try:
                inherited = (theirs.fileno(), parent_end, *descriptors)
                self._process = subprocess.Popen(
                    # Without the working folder on its path: what lies there by chance must not be imported.
                    [sys.executable, "-P", "-m", module, *map(str, inherited)],
                    stdin=subprocess.DEVNULL,
                    stdout=self._output,
                    stderr=self._output,
                    pass_fds=inherited,
                    env=make_importable(os.environ if environment is None else environment),
                    start_new_session=True,
                )
            finally:
                theirs.close()
                os.close(parent_end)
            on_failure.pop_all()

    @property
    def pid(self) -> int:
        return self._process.pid

    def has_ended(self) -> bool:
        return self._process.poll() is not None

    def read_output(self) -> str:
        """The end of what the process has written to its standard output and error."""
        return read_end(self._output, _REPORT_BYTES)

    def trim_output(self) -> None:
        """Forgets what the process has written when that has become much, as it may over days."""
        if os.fstat(self._output).st_size > _MOST_OUTPUT_BYTES:
            os.ftruncate(self._output, 0)

    def write_stacks(self) -> None:
        """Makes the process add the stacks of its threads to its output, if it still can."""
        if self.has_ended():
            return
        before = last = os.fstat(self._output).st_size
        self._process.send_signal(_STACK_SIGNAL)
        deadline = time.monotonic() + _STACKS_S
        while time.monotonic() < deadline and not self.has_ended():
            time.sleep(_LOOK_S)
            size = os.fstat(self._output).st_size
            if size > before and size == last:
                return
            last = size

    def kill(self) -> None:
        """Ends the process at once; `wait` or `close` it then."""
        self._process.kill()

    def wait(self, stop_s: float = _KILL_S) -> int:
        """The exit code of a process that has ended, is about to, or is killed after so many seconds; negative for a signal."""
        for limit_s in (stop_s, _KILL_S):
            with contextlib.suppress(subprocess.TimeoutExpired):
                return self._process.wait(limit_s)
            self._process.kill()
        raise ChildStuckError(
            f"Process {self.pid} does not end even when killed: it waits inside a driver. The device it uses may need a reset."
        )

    def close(self, stop_s: float) -> None:
        """Ends the process, by force if it goes on for so many seconds after its socket has closed, and gives everything back."""
        self.socket.close()
        try:
            self.wait(stop_s)
        finally:
            os.close(self._output)
            os.close(self._parent)


def enter_child(arguments: Sequence[str]) -> tuple[socket.socket, list[int]]:
    """What a child does first: its socket, and the other descriptors it was given."""
    own, parent, *others = map(int, arguments)
    for descriptor in (own, parent, *others):
        # Whatever this process starts must not keep the parent's end waiting for an end of file.
        os.set_inheritable(descriptor, False)
    die_with_parent(parent)
    faulthandler.enable()
    # By the interpreter's own handler, because none of ours could: a native call that hangs runs no Python.
    faulthandler.register(_STACK_SIGNAL, all_threads=True)
    return socket.socket(fileno=own), others


def die_with_parent(pipe: int) -> None:
    """Has the kernel kill this process when the other end of a pipe is closed, by the end of its holder at the latest."""
    # `PR_SET_PDEATHSIG` follows the *thread* that started the process: one restarted by a thread of a pipeline would die with that
    # thread. Reading the end of a socket is not enough either, because a process that hangs in a driver reads nothing.
    fcntl.fcntl(pipe, fcntl.F_SETOWN, os.getpid())
    fcntl.fcntl(pipe, fcntl.F_SETSIG, signal.SIGKILL)
    fcntl.fcntl(pipe, fcntl.F_SETFL, fcntl.fcntl(pipe, fcntl.F_GETFL) | os.O_ASYNC)
    # The holder may have gone before the signal was asked for.
    if select.select([pipe], [], [], 0)[0]:
        os.kill(os.getpid(), signal.SIGKILL)


class ChildConnection:
    """Small JSON objects over one end of a SOCK_SEQPACKET pair: whole or not at all, and its end is the news of a killed process."""

    def __init__(self, end: socket.socket, *, blocking: bool):
        self._socket = end
        end.setblocking(blocking)

    def send(self, message: Mapping[str, Any]) -> None:
        """Sends one message. Raises `PeerGone`, or `MessageError` where it is too large or would have to wait."""
        data = json.dumps(message, separators=(",", ":")).encode("ascii")
        if len(data) > MESSAGE_BYTES:
            raise MessageError(f"A message must have at most {MESSAGE_BYTES} bytes; this one has {len(data)}.")
        try:
            self._socket.send(data)
        except BlockingIOError:
            raise MessageError("The other process has stopped reading its messages.") from None
        except (BrokenPipeError, ConnectionResetError):
            raise PeerGone from None

    def receive(self) -> Message | None:
        """The next message, or None when there is none now and this end does not wait. Raises `PeerGone` at the end."""
        try:
            data = self._socket.recv(MESSAGE_BYTES)
        except BlockingIOError:
            return None
        except ConnectionResetError:
            # A peer that died with unread messages is reported once, before what it had sent: read on.
            return self.receive()
        if not data:
            raise PeerGone
        message: Message = json.loads(data)
        return message

    def fileno(self) -> int:
        return self._socket.fileno()


def make_importable(environment: Mapping[str, str], package_parent: Path = PACKAGE_PARENT) -> dict[str, str]:
    """The environment with this package's folder on Python's path, where Python would not find it by itself."""
    if str(package_parent) in (sysconfig.get_path("purelib"), sysconfig.get_path("platlib")):
        # Named explicitly, the folder of installed packages would come before Python's own modules.
        return dict(environment)
    path = environment.get("PYTHONPATH", "")
    return {**environment, "PYTHONPATH": os.pathsep.join(filter(None, [str(package_parent), path]))}


def end_child(process: subprocess.Popen[Any], stop_s: float) -> None:
    """Closes the pipes of a process that is not ours, which tells it to end, and waits; it is killed when it takes longer."""
    for pipe in (process.stdin, process.stdout):
        if pipe is not None:
            # A dead child's pipe may still hold a question, which then cannot be delivered.
            with contextlib.suppress(BrokenPipeError):
                pipe.close()
    try:
        process.wait(stop_s)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def read_end(descriptor: int, most_bytes: int) -> str:
    """The end of the text in a file, wherever a process that writes to it is."""
    size = os.fstat(descriptor).st_size
    return os.pread(descriptor, most_bytes, max(0, size - most_bytes)).decode("utf-8", "replace").strip()


@dataclass(frozen=True)
class ProcessMemory:
    """What a process held at one moment."""

    resident_bytes: int
    peak_bytes: int
    """The most it ever held."""
    address_space_bytes: int

    def __str__(self) -> str:
        return f"{format_bytes(self.resident_bytes)} resident, {format_bytes(self.peak_bytes)} at most"


def read_process_memory(pid: int) -> ProcessMemory | None:
    """The memory of a process, or None when it is gone."""
    try:
        lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    except OSError:
        return None
    fields = dict(line.split(":", 1) for line in lines if line.startswith("Vm"))
    if "VmRSS" not in fields:
        # Dead, and not yet waited for.
        return None
    sizes = {name: int(value.split()[0]) * 1024 for name, value in fields.items()}
    return ProcessMemory(sizes["VmRSS"], sizes["VmHWM"], sizes["VmSize"])


def read_private_bytes(pid: int) -> int | None:
    """What a process holds by itself, or None when it is gone: without files and shared memory that it has mapped, which
    come and go with what the kernel caches. Takes some microseconds."""
    try:
        with open(f"/proc/{pid}/statm", "rb", buffering=0) as file:
            _, resident, shared, *_ = file.read().split()
    except (OSError, ValueError):
        return None
    return (int(resident) - int(shared)) * mmap.PAGESIZE


def count_oom_kills() -> int:
    """How many processes the kernel has killed for want of memory since the machine started."""
    try:
        lines = Path("/proc/vmstat").read_text().splitlines()
    except OSError:
        return 0
    return next((int(line.split()[1]) for line in lines if line.startswith("oom_kill ")), 0)


def limit_own_memory(limit_bytes: int, before_bytes: int) -> None:
    """Limits what this process may take beyond what was resident before. Raises `MemoryError` when it already holds more.

    The operating system can limit address space only, most of which a process with many threads never uses. So what is
    held so far is counted by what is resident, and the address space may grow by the rest of the limit.
    """
    now = read_process_memory(os.getpid())
    assert now is not None
    left_bytes = limit_bytes - (now.resident_bytes - before_bytes)
    if left_bytes < 0:
        raise MemoryError(
            f"{format_bytes(now.resident_bytes - before_bytes)} are in use after warm-up; the limit is {format_bytes(limit_bytes)}"
        )
    _, hard = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (now.address_space_bytes + left_bytes, hard))


def lift_own_memory_limit() -> None:
    """Undoes `limit_own_memory`: a process that ran out of memory needs some to say so."""
    _, hard = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (hard, hard))


_NEW_NETWORK, _NEW_USER = 0x40000000, 0x10000000
_SET_FLAGS, _IS_UP = 0x8914, 0x1


def enter_private_network() -> None:
    """Leaves the machine's network for a new one that has only loopback: TensorFlow's ports listen on every interface there is.

    Cannot be undone. For a process with one thread, so before NumPy is imported. Raises `ClusterError` where the kernel does not allow
    it, as in most containers.
    """
    user, group = os.getuid(), os.getgid()
    try:
        # `os.unshare` comes with Python 3.12.
        unshare = ctypes.CDLL(None, use_errno=True).unshare
        if unshare(_NEW_NETWORK):
            # Who has no right to that may have one inside users of his own.
            if unshare(_NEW_NETWORK | _NEW_USER):
                raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
            # The same user inside as outside: files belong to whom they belonged to.
            Path("/proc/self/setgroups").write_text("deny")
            for kind, own in (("uid", user), ("gid", group)):
                Path(f"/proc/self/{kind}_map").write_text(f"{own} {own} 1")
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as end:
            fcntl.ioctl(end, _SET_FLAGS, struct.pack("16sH22x", b"lo", _IS_UP))
    except OSError as error:
        raise ClusterError(
            f"Trainers on one machine need a network of their own, which cannot be had here ({error.strerror}): TensorFlow listens on every "
            "interface, without a password. Use --model-gpus, which needs no network; or start a Ray head with a token and give its address."
        ) from error
