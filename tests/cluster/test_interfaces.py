"""Which address of this machine others use, and which interface NCCL is told to."""

import ipaddress
import socket
from types import SimpleNamespace

import psutil
import pytest

from myxtts.cluster.exchange import confine_nccl
from myxtts.cluster.meeting import find_own_interface, is_on_one_machine, name_interface
from myxtts.cluster.spec import ClusterSpec
from myxtts.config.settings import Address

ELSEWHERE = "192.0.2.7"
"""An address that nobody has."""
OWN = {"lo": "127.0.0.1", "eth00": "192.0.2.5", "eth0": "192.0.2.4"}
"""Interfaces whose names begin alike."""


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


def test_workers_of_one_machine_are_on_loopback():
    spec = make_spec("127.0.0.1", "localhost")
    assert is_on_one_machine(spec)
    assert find_own_interface(spec) == ipaddress.IPv4Address("127.0.0.1")


def test_a_machine_knows_its_own_address_by_number_and_by_name(names):
    found = [each.address for own in psutil.net_if_addrs().values() for each in own if each.family == socket.AF_INET]
    others = [address for address in found if not address.startswith("127.")]
    if not others:
        pytest.skip("this machine has no address but loopback")
    names["node0"] = others[0]
    for host in (others[0], "node0"):
        assert not is_on_one_machine(make_spec(host, ELSEWHERE))
        assert find_own_interface(make_spec(host, ELSEWHERE)) == ipaddress.IPv4Address(others[0])


@pytest.mark.parametrize("host", [ELSEWHERE, "::1", "0.0.0.0", "no.such.name.invalid", "debian"])
def test_what_others_do_not_reach_this_machine_by_is_not_taken_for_it(names, host):
    names["debian"] = "127.0.1.1"
    assert find_own_interface(make_spec(host, ELSEWHERE)) is None


def test_addresses_belong_to_interfaces_that_the_kernel_knows():
    known = {name for _, name in socket.if_nameindex()}
    assert name_interface(ipaddress.IPv4Address("127.0.0.1")) in known
    assert name_interface(ipaddress.IPv4Address(ELSEWHERE)) is None


@pytest.mark.parametrize(
    ("hosts", "set_before", "expected"),
    [
        (("127.0.0.1", "127.0.0.1"), None, "=lo"),
        (("127.0.0.2", "127.0.0.3"), None, "=lo"),
        (("192.0.2.5", ELSEWHERE), None, "=eth00"),
        (("192.0.2.4", ELSEWHERE), None, "=eth0"),
        # What the user has set stays; where no own address is known, NCCL is left to itself.
        (("127.0.0.1", "127.0.0.1"), "ib0", "ib0"),
        ((ELSEWHERE, "192.0.2.9"), None, None),
    ],
)
def test_nccl_listens_where_the_cluster_file_says(monkeypatch, hosts, set_before, expected):
    made_up = {
        name: [SimpleNamespace(family=family, address=address) for family, address in ((socket.AF_INET6, "fe80::1"), (socket.AF_INET, own))]
        for name, own in OWN.items()
    }  # fmt: skip
    monkeypatch.setattr(psutil, "net_if_addrs", lambda: made_up)
    monkeypatch.setattr(
        "myxtts.cluster.meeting._is_own", lambda number: str(number) in OWN.values() or number.is_loopback
    )
    environ = {} if set_before is None else {"NCCL_SOCKET_IFNAME": set_before}
    confine_nccl(make_spec(*hosts), environ)
    assert environ.get("NCCL_SOCKET_IFNAME") == expected
