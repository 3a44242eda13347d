import contextlib
import ipaddress
import os
import socket

import pytest

from myxtts.config.address import Address
from myxtts.data.errors import ServiceAddressError
from myxtts.data.service.address import (
    check_own_address,
    explain_unknown_name,
    is_answering,
    require_address,
    wait_for_answer,
)
from myxtts.devices.port_fence import fence_port
from tests.data.service.servers import find_own_address


@pytest.fixture
def everywhere():
    """A server that listens at every address, as TensorFlow's do."""
    with contextlib.closing(socket.create_server(("::", 0), family=socket.AF_INET6, dualstack_ipv6=True)) as server:
        yield server


def reach(server, host):
    return is_answering(Address(host, server.getsockname()[1]))


def test_a_fenced_server_is_reached_at_its_address_only(everywhere):
    others = find_own_address()
    port = everywhere.getsockname()[1]
    assert reach(everywhere, others)
    assert fence_port(port, ipaddress.IPv4Address("127.0.0.1")) == 1
    assert [reach(everywhere, host) for host in ("127.0.0.1", "127.0.0.5", "::1", others)] == [True, True, True, False]


def test_a_server_for_other_machines_is_not_reached_at_loopback(everywhere):
    own = find_own_address()
    fence_port(everywhere.getsockname()[1], ipaddress.IPv4Address(own))
    assert [reach(everywhere, host) for host in ("127.0.0.1", "::1", own)] == [False, False, True]


def test_connections_that_are_accepted_work_and_other_sockets_are_left_alone(everywhere):
    with contextlib.closing(socket.create_server(("::", 0), family=socket.AF_INET6, dualstack_ipv6=True)) as bystander:
        descriptors = os.listdir("/proc/self/fd")
        fence_port(everywhere.getsockname()[1], ipaddress.IPv4Address("127.0.0.1"))
        assert os.listdir("/proc/self/fd") == descriptors
        assert reach(bystander, find_own_address())
        with (
            socket.create_connection(("127.0.0.1", everywhere.getsockname()[1])) as client,
            everywhere.accept()[0] as accepted,
        ):
            accepted.sendall(b"welcome")
            assert client.recv(7) == b"welcome"


def test_addresses_are_read_from_text():
    assert require_address("node7.cluster:5050") == Address("node7.cluster", 5050)
    assert require_address("[::1]:5050") == Address("::1", 5050)
    assert str(Address("::1", 5050)) == "[::1]:5050"
    for text in ("5050", ":5050", "node7", "node7:", "node7:0", "node7:70000", "node7:x"):
        with pytest.raises(ServiceAddressError, match=r"must be like 10\.0\.0\.5:5050, but is"):
            require_address(text)


def test_own_addresses_are_checked_before_anything_listens(everywhere):
    port = everywhere.getsockname()[1]
    with pytest.raises(ServiceAddressError, match=f"--port {port} cannot be used: Address already in use"):
        check_own_address("127.0.0.1", port)
    with pytest.raises(ServiceAddressError, match=r"--host 192\.0\.2\.77 --port 0 cannot be used: Cannot assign"):
        check_own_address("192.0.2.77", 0)
    with pytest.raises(ServiceAddressError, match="from 0 to 65535, but is 70000"):
        check_own_address("127.0.0.1", 70000)
    own = check_own_address("127.0.0.1", 0)
    assert own.number.is_loopback
    assert own.port > 0


def test_waiting_for_an_address_ends(everywhere):
    told = []
    address = Address("127.0.0.1", everywhere.getsockname()[1])
    assert wait_for_answer(address, 10.0, lambda: told.append(1))
    assert not told
    free = check_own_address("127.0.0.1", 0)
    assert not wait_for_answer(Address("127.0.0.1", free.port), 0.3, lambda: told.append(1))
    assert told == [1]


def test_a_name_that_nobody_knows_yet_is_waited_for(everywhere, monkeypatch):
    """Where machines are started together, as in Kubernetes, names come with them."""
    answers = [socket.gaierror(-2, "Name or service not known")] * 2
    connect = socket.create_connection

    def resolve(address, *others):
        if answers:
            raise answers.pop()
        return connect(("127.0.0.1", address[1]), *others)

    monkeypatch.setattr(socket, "create_connection", resolve)
    told = []
    assert wait_for_answer(Address("node7", everywhere.getsockname()[1]), 10.0, lambda: told.append(1))
    assert (told, answers) == ([1], [])


def test_a_name_that_nobody_knows_is_said_to_be_unknown(monkeypatch):
    def resolve(host, *_):
        if host == "nod7":
            raise socket.gaierror(-2, "Name or service not known")

    monkeypatch.setattr(socket, "getaddrinfo", resolve)
    said = " This machine knows no 'nod7' (Name or service not known): check the name."
    assert explain_unknown_name(Address("nod7", 5050)) == said
    assert explain_unknown_name(Address("node7", 5050)) == ""
