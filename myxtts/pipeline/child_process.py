"""The producer as a process of the operating system. The only place of this room that starts one.

It is started as a module of ours, not forked (TensorFlow's threads do not survive a fork) and not by importing the user's
main module anew, so scripts without a main guard and notebooks work. It has a session of its own: Ctrl-C is for the
trainer, which ends its producer.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import subprocess
import sys
from collections.abc import Mapping

from myxtts.devices.child_environment import make_importable
from myxtts.devices.child_processes import read_end
from myxtts.devices.stacks import request_stacks
from myxtts.errors import ProducerFailedError
from myxtts.pipeline import producer_main
from myxtts.pipeline.process_memory import MemoryReading, read_process_memory
from myxtts.pipeline.status_board import Status, StatusBoard
from myxtts.pipeline.wire import Connection, make_socket_pair

_STOP_SECONDS = 2.0
_KILL_SECONDS = 30.0
_REPORT_BYTES = 4000
_MOST_STDERR_BYTES = 1 << 20


class ChildProcess:
    """A started producer process.

    Args:
        ring_descriptor: the shared memory it writes to.
        environment: its environment variables.
    """

    def __init__(self, ring_descriptor: int, environment: Mapping[str, str]):
        with contextlib.ExitStack() as on_failure:
            ours, theirs = make_socket_pair()
            on_failure.callback(ours.close)
            # A file in memory, not a pipe: nobody reads along, and a full pipe would stop the producer.
            self._stderr = os.memfd_create("myxtts-producer-stderr")
            on_failure.callback(os.close, self._stderr)
            fcntl.fcntl(self._stderr, fcntl.F_SETFL, fcntl.fcntl(self._stderr, fcntl.F_GETFL) | os.O_APPEND)
            self._board = StatusBoard.create()
            on_failure.callback(self._board.close)
            lifeline, self._lifeline = os.pipe()
            # Its closing kills the process, which nobody else would know of if anything failed from here on.
            on_failure.callback(os.close, self._lifeline)
            try:
                descriptors = (theirs.fileno(), self._board.fileno(), ring_descriptor, lifeline)
                self._process = subprocess.Popen(
                    # Without the working folder on its path: what lies there by chance must not be imported.
                    [sys.executable, "-P", "-m", producer_main.__name__, *map(str, descriptors)],
                    stdin=subprocess.DEVNULL,
                    stdout=self._stderr,
                    stderr=self._stderr,
                    pass_fds=descriptors,
                    env=make_importable(environment),
                    start_new_session=True,
                )
            finally:
                theirs.close()
                os.close(lifeline)
            self.connection = Connection(ours, blocking=False)
            on_failure.pop_all()

    @property
    def pid(self) -> int:
        return self._process.pid

    def has_ended(self) -> bool:
        return self._process.poll() is not None

    def read_status(self) -> Status:
        return self._board.read()

    def read_memory(self) -> MemoryReading | None:
        return read_process_memory(self.pid)

    def read_report(self) -> str:
        """The end of what the process has written to its standard output and error."""
        return read_end(self._stderr, _REPORT_BYTES)

    def trim_report(self) -> None:
        """Forgets what the process has written when that has become much, as it may over days."""
        if os.fstat(self._stderr).st_size > _MOST_STDERR_BYTES:
            os.ftruncate(self._stderr, 0)

    def write_stacks(self) -> None:
        """Makes the process add the stacks of its threads to its report, if it still can."""
        request_stacks(self._process.send_signal, self._stderr, self.has_ended)

    def kill(self) -> None:
        """Ends the process at once."""
        self._process.kill()

    def wait(self) -> int:
        """The exit code of a process that has ended or been killed; negative for a signal."""
        try:
            return self._process.wait(_KILL_SECONDS)
        except subprocess.TimeoutExpired:
            pass
        self._process.kill()
        try:
            return self._process.wait(_KILL_SECONDS)
        except subprocess.TimeoutExpired:
            raise ProducerFailedError(
                f"The producer process {self.pid} does not end even when killed, so its slots cannot be used again: it "
                "waits inside a driver. The device it uses may need a reset."
            ) from None

    def close(self) -> None:
        """Ends the process if it still runs, waits for it, and gives everything back."""
        self.connection.close()
        try:
            try:
                self._process.wait(_STOP_SECONDS)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self.wait()
        finally:
            self._board.close()
            os.close(self._stderr)
            os.close(self._lifeline)
