"""Ports that TensorFlow needs are tried before it is started, by workers in threads over real sockets."""

import ipaddress
import socket

import pytest

from myxtts.cluster import meeting as doors
from myxtts.errors import RendezvousError, WorkerLostError
from tests.cluster.test_link import links, run_all

__all__ = ["links"]


def require_all(links, **limits):
    return run_all(*(lambda link=link: doors.require_open_doors(link, **limits) for link in links))


@pytest.mark.parametrize("is_known", [True, False])
def test_workers_that_reach_each_other_go_on_and_the_ports_are_free_again(links, monkeypatch, is_known):
    if not is_known:
        monkeypatch.setattr(doors, "find_own_interface", lambda spec: None)
    found = links(3)
    assert require_all(found) == [None] * 3
    for address in found[0].spec.workers:
        socket.create_server(address).close()


def test_a_port_that_is_closed_to_others_is_named_to_all(links, monkeypatch):
    found = links(3)
    # Its door is at another address than the one it is known by, as behind a firewall.
    monkeypatch.setattr(
        doors, "find_own_interface", lambda spec: ipaddress.IPv4Address("127.0.0.2" if spec.index == 1 else "127.0.0.1")
    )
    errors = require_all(found, patience_s=0.1)
    closed = f"worker 1 at {found[0].spec.workers[1]} cannot be reached from 127.0.0.1"
    for error in errors:
        assert isinstance(error, RendezvousError)
        assert f"{closed} (worker 0); {closed} (worker 2). Open these ports" in str(error)
        assert "worker 0 (the chief) at" not in str(error), "that one is open"


def test_a_port_that_another_process_has_ends_all(links):
    found = links()
    with socket.create_server(found[1].spec.workers[1]):

        def fail():
            with found[1]:
                doors.require_open_doors(found[1])

        chief, other = run_all(lambda: doors.require_open_doors(found[0]), fail)
    assert isinstance(other, RendezvousError)
    assert f"cannot listen on port {found[1].spec.workers[1].port} here" in str(other)
    assert isinstance(chief, WorkerLostError)
    assert "Address already in use" in str(chief)
