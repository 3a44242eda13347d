"""Keeps a server of TensorFlow's to one address of this machine.

TensorFlow's data servers listen at every address, and have no setting for it. Linux lets any program attach a packet
filter to a socket of its own: packets for other addresses are dropped before the server sees them, as if nobody listened
there. Connections that are accepted inherit the filter.
"""

from __future__ import annotations

import contextlib
import ctypes
import ipaddress
import os
import socket
import struct

_ATTACH_FILTER = 26
"""SO_ATTACH_FILTER of Linux, which Python's `socket` does not name."""

_NETWORK_HEADER = 0xFFF00000
"""Where the filter language sees the IP header."""
_IPV4_DESTINATION = 16
_IPV6_DESTINATION = 24

_LOAD_BYTE, _LOAD_WORD, _AND, _SHIFT_RIGHT, _JUMP_IF_EQUAL, _RETURN = 0x30, 0x20, 0x54, 0x74, 0x15, 0x06
_WHOLE_PACKET, _NOTHING = 0xFFFFFFFF, 0

Instruction = tuple[int, int, int, int]
"""Code, how many to skip if true, how many if false, operand."""


def fence_port(port: int, host: ipaddress.IPv4Address) -> int:
    """Let the sockets of this process at a port take packets for one address only, and return how many there are.

    The loopback address stands for all of them, 127.0.0.0/8 and ::1.
    """
    program = _make_program(host)
    code = ctypes.create_string_buffer(b"".join(struct.pack("HBBI", *instruction) for instruction in program))
    fenced = 0
    for descriptor in _list_sockets():
        with socket.socket(fileno=descriptor) as own:
            if own.family in (socket.AF_INET, socket.AF_INET6) and own.getsockname()[1] == port:
                own.setsockopt(
                    socket.SOL_SOCKET, _ATTACH_FILTER, struct.pack("HP", len(program), ctypes.addressof(code))
                )
                fenced += 1
    return fenced


def _list_sockets() -> list[int]:
    """New descriptors of all sockets of this process."""
    numbers = [int(name) for name in os.listdir("/proc/self/fd") if _is_socket(name)]
    sockets: list[int] = []
    for number in numbers:
        # Its owner may close it at any time.
        with contextlib.suppress(OSError):
            sockets.append(os.dup(number))
    return sockets


def _is_socket(name: str) -> bool:
    try:
        return os.readlink(f"/proc/self/fd/{name}").startswith("socket:")
    except OSError:
        # The descriptor of the listing itself is gone by now.
        return False


def _make_program(host: ipaddress.IPv4Address) -> list[Instruction]:
    mask = 0xFF000000 if host.is_loopback else 0xFFFFFFFF
    other = _accept_ipv6_loopback() if host.is_loopback else [(_RETURN, 0, 0, _NOTHING)]
    return [
        (_LOAD_BYTE, 0, 0, _NETWORK_HEADER),
        (_SHIFT_RIGHT, 0, 0, 4),
        (_JUMP_IF_EQUAL, 0, 5, 4),
        (_LOAD_WORD, 0, 0, _NETWORK_HEADER + _IPV4_DESTINATION),
        (_AND, 0, 0, mask),
        (_JUMP_IF_EQUAL, 0, 1, int(host) & mask),
        (_RETURN, 0, 0, _WHOLE_PACKET),
        (_RETURN, 0, 0, _NOTHING),
        *other,
    ]


def _accept_ipv6_loopback() -> list[Instruction]:
    words = (0, 0, 0, 1)
    compare = [
        instruction
        for place, word in enumerate(words)
        for instruction in (
            (_LOAD_WORD, 0, 0, _NETWORK_HEADER + _IPV6_DESTINATION + 4 * place),
            (_JUMP_IF_EQUAL, 0, 2 * (len(words) - place - 1) + 1, word),
        )
    ]
    return [*compare, (_RETURN, 0, 0, _WHOLE_PACKET), (_RETURN, 0, 0, _NOTHING)]
