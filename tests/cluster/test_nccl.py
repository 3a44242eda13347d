"""Which interface NCCL is told to use."""

import ipaddress
import socket
from types import SimpleNamespace

import psutil
import pytest

from myxtts.cluster.nccl import confine_nccl
from tests.cluster.test_interfaces import ELSEWHERE, make_spec

OWN = {"lo": "127.0.0.1", "eth00": "192.0.2.5", "eth0": "192.0.2.4"}


@pytest.fixture(autouse=True)
def machine(monkeypatch):
    """A machine with two interfaces beside loopback, whose names begin alike."""
    found = {
        name: [
            SimpleNamespace(family=socket.AF_INET6, address="fe80::1"),
            SimpleNamespace(family=socket.AF_INET, address=address),
        ]
        for name, address in OWN.items()
    }
    monkeypatch.setattr(psutil, "net_if_addrs", lambda: found)
    numbers = [ipaddress.IPv4Address(address) for address in OWN.values()]
    monkeypatch.setattr("myxtts.cluster.interfaces._is_own", lambda number: number in numbers or number.is_loopback)


@pytest.mark.parametrize(
    ("hosts", "name"),
    [
        (("127.0.0.1", "127.0.0.1"), "=lo"),
        (("127.0.0.2", "127.0.0.3"), "=lo"),
        (("192.0.2.5", ELSEWHERE), "=eth00"),
        (("192.0.2.4", ELSEWHERE), "=eth0"),
    ],
)
def test_nccl_listens_where_the_cluster_file_says(hosts, name):
    environ = {}
    confine_nccl(make_spec(*hosts), environ)
    assert environ == {"NCCL_SOCKET_IFNAME": name}


def test_what_the_user_has_set_stays():
    environ = {"NCCL_SOCKET_IFNAME": "ib0"}
    confine_nccl(make_spec("127.0.0.1", "127.0.0.1"), environ)
    assert environ == {"NCCL_SOCKET_IFNAME": "ib0"}


def test_where_no_own_address_is_known_nccl_is_left_to_itself():
    environ = {}
    confine_nccl(make_spec(ELSEWHERE, "192.0.2.9"), environ)
    assert environ == {}
