"""A network of its own for this process and those it starts: a loopback interface and nothing else (Linux).

TensorFlow's servers listen on every interface, without authentication, and cannot be told otherwise. Here there is no other
interface, so nobody outside can reach them, and no firewall has to be trusted.
"""

from __future__ import annotations

import ctypes
import fcntl
import os
import socket
import struct
import sys
from pathlib import Path
from typing import NoReturn

from myxtts.cluster.errors import ClusterError
from myxtts.cluster.process_group import Command, ProcessGroup
from myxtts.processes import make_importable

_NEW_NETWORK, _NEW_USER = 0x40000000, 0x10000000
_READ_FLAGS, _SET_FLAGS = 0x8913, 0x8914
_IS_UP = 0x1
_INTERFACE = struct.Struct("16sH22x")


def enter_private_network() -> None:
    """Leaves the machine's network for a new one that has only loopback. Cannot be undone. For a process with one thread.

    Raises `ClusterError` where the kernel does not allow it, as in most containers.
    """
    user, group = os.getuid(), os.getgid()
    try:
        if user == 0:
            _unshare(_NEW_NETWORK)
        else:
            _unshare(_NEW_NETWORK | _NEW_USER)
            # The same user inside as outside: files belong to whom they belonged to.
            Path("/proc/self/setgroups").write_text("deny")
            Path("/proc/self/uid_map").write_text(f"{user} {user} 1")
            Path("/proc/self/gid_map").write_text(f"{group} {group} 1")
        _raise_loopback()
    except OSError as error:
        raise ClusterError(
            f"The workers cannot have a network of their own here ({error.strerror}), and on this machine's, whoever has a login here "
            "can reach TensorFlow's ports, which have no password. Where only you have one, as in a container, add --open-ports."
        ) from error


def has_private_network() -> bool:
    """Whether `enter_private_network` would be allowed, tried by a process that is thrown away."""
    words = [sys.executable, "-P", "-c", f"import {__name__} as tried; tried.try_to_enter()"]
    codes = ProcessGroup([Command(words, make_importable(os.environ))], tell=lambda index, line: None).run()
    return codes == [0]


def try_to_enter() -> NoReturn:
    """Ends the process with 0 where it could enter a network of its own, else with 1."""
    try:
        enter_private_network()
    except ClusterError:
        sys.exit(1)
    sys.exit(0)


def _unshare(flags: int) -> None:
    # `os.unshare` comes with Python 3.12.
    if ctypes.CDLL(None, use_errno=True).unshare(flags) != 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))


def _raise_loopback() -> None:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as end:
        asked = fcntl.ioctl(end, _READ_FLAGS, _INTERFACE.pack(b"lo", 0))
        name, flags = _INTERFACE.unpack(asked)
        fcntl.ioctl(end, _SET_FLAGS, _INTERFACE.pack(name, flags | _IS_UP))
