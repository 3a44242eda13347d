"""Which address of this machine others use."""

import ipaddress
import socket

import psutil
import pytest

from myxtts.cluster.interfaces import find_own_interface, is_on_one_machine, name_interface
from myxtts.cluster.spec import ClusterSpec
from myxtts.config.address import Address

ELSEWHERE = "192.0.2.7"
"""An address that nobody has."""


@pytest.fixture
def names(monkeypatch):
    """Names that this machine knows, beside the usual ones."""
    known = {}
    resolve = socket.getaddrinfo
    monkeypatch.setattr(
        socket, "getaddrinfo", lambda host, *more, **options: resolve(known.get(host, host), *more, **options)
    )
    return known


def make_spec(*hosts):
    return ClusterSpec(tuple(Address(host, 5000 + n) for n, host in enumerate(hosts)), 0, Address(hosts[0], 6000))


def test_workers_of_one_machine_are_on_loopback(names):
    spec = make_spec("127.0.0.1", "localhost")
    assert is_on_one_machine(spec)
    assert find_own_interface(spec) == ipaddress.IPv4Address("127.0.0.1")


def find_own_address() -> str:
    """An address of this machine that others may reach; skips the test where it has none."""
    for addresses in psutil.net_if_addrs().values():
        for address in addresses:
            if address.family == socket.AF_INET and not address.address.startswith("127."):
                return address.address
    pytest.skip("this machine has no address but loopback")


def test_a_machine_knows_its_own_address_by_number_and_by_name(names):
    own = find_own_address()
    names["node0"] = own
    for host in (own, "node0"):
        spec = make_spec(host, ELSEWHERE)
        assert not is_on_one_machine(spec)
        assert find_own_interface(spec) == ipaddress.IPv4Address(own)


@pytest.mark.parametrize("host", [ELSEWHERE, "::1", "0.0.0.0", "no.such.name.invalid", "debian"])
def test_what_others_do_not_reach_this_machine_by_is_not_taken_for_it(names, host):
    names["debian"] = "127.0.1.1"
    assert find_own_interface(make_spec(host, ELSEWHERE)) is None


def test_addresses_belong_to_interfaces_that_the_kernel_knows():
    known = {name for _, name in socket.if_nameindex()}
    assert name_interface(ipaddress.IPv4Address("127.0.0.1")) in known
    assert name_interface(ipaddress.IPv4Address(ELSEWHERE)) is None
