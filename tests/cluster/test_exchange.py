"""How TensorFlow is set up for sums, without the other workers. The sums themselves are made by runs of several processes."""

import ipaddress
import logging
import os
from types import SimpleNamespace

import pytest
import tensorflow as tf
from tensorflow.python.eager import context

from myxtts.cluster import exchange, nccl
from myxtts.cluster.errors import ClusterError, RendezvousError
from tests.cluster.test_link import make_specs


@pytest.fixture
def configured(monkeypatch):
    """What TensorFlow's coordination service was configured with. The real one would stay in this process."""
    settings = {}
    fake = SimpleNamespace(configure_coordination_service=lambda **given: settings.update(given))
    monkeypatch.setattr(context, "context", lambda: fake)
    return settings


def test_tensorflow_is_as_patient_as_the_cluster_file(configured):
    exchange._configure_patience(make_specs(3, rendezvous_s=70.0, silence_s=60.0)[1])
    assert configured["cluster_register_timeout_in_ms"] == 70_000
    assert configured["heartbeat_timeout_in_ms"] >= 2 * 60_000, "our own lifeline tells first, and knows who it was"
    assert [(job.name, job.num_tasks) for job in configured["coordinated_jobs"]] == [("worker", 3)]


def test_workers_that_tensorflow_does_not_join_are_told_in_words(configured, monkeypatch):
    def fail(**given):
        raise tf.errors.DeadlineExceededError(None, None, "Deadline Exceeded\nmore")

    monkeypatch.setattr(tf.distribute, "MultiWorkerMirroredStrategy", fail)
    spec = make_specs(rendezvous_s=70.0)[1]
    with pytest.raises(RendezvousError) as failure:
        exchange.Exchange(spec, has_gpu=False)
    assert configured, "before the strategy, which would set limits of its own"
    assert f"TensorFlow of worker 1 at {spec.workers[1]} has not joined the others within 70 s" in str(failure.value)
    assert f"They meet at {spec.workers[0]}, and what it says is: Deadline Exceeded. See" in str(failure.value)


@pytest.mark.parametrize(
    ("interface", "has_gpu", "said"),
    [
        ("127.0.0.1", True, None),
        ("192.0.2.7", False, "TensorFlow listens at 192.0.2.7:{port}, without authentication"),
        (
            "192.0.2.7",
            True,
            "TensorFlow listens at 192.0.2.7:{port} and NCCL at ports of its own, without authentication",
        ),
        (None, False, "TensorFlow listens at port {port} of every interface of this machine, without authentication"),
    ],
)
def test_the_port_is_fenced_to_the_address_in_the_file(monkeypatch, caplog, interface, has_gpu, said):
    fenced = []
    number = None if interface is None else ipaddress.IPv4Address(interface)
    monkeypatch.setattr(exchange, "find_own_interface", lambda spec: number)
    monkeypatch.setattr(exchange, "fence_port", lambda port, host: fenced.append((port, host)) or 1)
    spec = make_specs()[1]
    port = spec.workers[1].port
    with caplog.at_level(logging.WARNING):
        exchange._fence(spec, has_gpu=has_gpu)
    assert fenced == ([] if number is None else [(port, number)])
    assert caplog.text == "" if said is None else said.format(port=port) in caplog.text


def test_a_port_that_cannot_be_fenced_ends_the_worker(monkeypatch):
    monkeypatch.setattr(exchange, "find_own_interface", lambda spec: ipaddress.IPv4Address("127.0.0.1"))
    monkeypatch.setattr(exchange, "fence_port", lambda port, host: 0)
    with pytest.raises(ClusterError, match=r"must answer at 127\.0\.0\.1 only, but its sockets were not found"):
        exchange._fence(make_specs()[0], has_gpu=False)


@pytest.mark.parametrize(("has_gpu", "kind", "interface"), [(True, "NCCL", "=lo"), (False, "RING", None)])
def test_gpus_are_joined_by_nccl_on_the_interface_of_the_cluster(configured, monkeypatch, has_gpu, kind, interface):
    # Set first, so that what is set meanwhile goes when the test ends.
    monkeypatch.setenv("NCCL_SOCKET_IFNAME", "")
    monkeypatch.delenv("NCCL_SOCKET_IFNAME")
    monkeypatch.setattr(exchange, "fence_port", lambda port, host: 1)
    monkeypatch.setattr(nccl, "name_interface", lambda number: "lo")
    made = []

    def make_strategy(*, cluster_resolver, communication_options):
        made.append((communication_options, os.environ.get("NCCL_SOCKET_IFNAME")))
        return SimpleNamespace(num_replicas_in_sync=2)

    monkeypatch.setattr(tf.distribute, "MultiWorkerMirroredStrategy", make_strategy)
    exchange.Exchange(make_specs()[1], has_gpu=has_gpu)
    ((options, confined_to),) = made
    assert options.implementation.name == kind
    assert options.bytes_per_pack == exchange.PACK_BYTES
    assert confined_to == interface
