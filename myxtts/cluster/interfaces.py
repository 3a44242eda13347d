"""Which address of this machine the other workers of a cluster use."""

from __future__ import annotations

import ipaddress
import socket

import psutil

from myxtts.cluster.spec import ClusterSpec


def is_on_one_machine(spec: ClusterSpec) -> bool:
    """Whether all workers are named by addresses that no other machine can reach."""
    return all(is_loopback(address.host) for address in spec.workers)


def is_loopback(host: str) -> bool:
    """Whether a name or number stands for this machine alone. A name that is not known yet does not."""
    numbers = _resolve(host)
    return bool(numbers) and all(number.is_loopback for number in numbers)


def find_own_interface(spec: ClusterSpec) -> ipaddress.IPv4Address | None:
    """The address at which the others reach this worker; None where this machine cannot tell it from the cluster's file.

    That is so for IPv6, for a name that stands for something in front of this machine, and for the machine's own name where that is
    known here as loopback, as Debian does it.
    """
    host = spec.workers[spec.index].host
    if is_loopback(host) and not is_on_one_machine(spec):
        return None
    return next((number for number in _resolve(host) if _is_own(number)), None)


def has_other_interfaces() -> bool:
    """Whether this machine, or the network this process has to itself, has an address besides loopback."""
    return any(name != "lo" for name in psutil.net_if_addrs())


def name_interface(number: ipaddress.IPv4Address) -> str | None:
    """The interface of this machine that has an address; None where none has it. All of loopback is one."""
    for name, addresses in psutil.net_if_addrs().items():
        for each in addresses:
            if each.family == socket.AF_INET:
                own = ipaddress.IPv4Address(each.address)
                if own == number or (own.is_loopback and number.is_loopback):
                    return str(name)
    return None


def _resolve(host: str) -> list[ipaddress.IPv4Address]:
    try:
        found = socket.getaddrinfo(host, None, family=socket.AF_INET, type=socket.SOCK_STREAM)
    except OSError:
        return []
    return [ipaddress.IPv4Address(address[0]) for *_, address in found]


def _is_own(number: ipaddress.IPv4Address) -> bool:
    if number.is_unspecified:
        return False
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.bind((str(number), 0))
        except OSError:
            return False
    return True
