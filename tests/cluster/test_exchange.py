"""How TensorFlow is set up for sums, without the other workers. The sums themselves are made by runs of several processes."""

import ipaddress
import logging
from types import SimpleNamespace

import pytest
import tensorflow as tf
from tensorflow.python.eager import context

from myxtts.cluster import exchange
from myxtts.cluster.errors import RendezvousError
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
    ("interface", "said"),
    [
        ("127.0.0.1", None),
        ("192.0.2.7", "TensorFlow listens at 192.0.2.7:{port}, without authentication"),
        (None, "TensorFlow listens at port {port} of every interface of this machine"),
    ],
)
def test_the_port_is_fenced_to_the_address_in_the_file(monkeypatch, caplog, interface, said):
    fenced = []
    number = None if interface is None else ipaddress.IPv4Address(interface)
    monkeypatch.setattr(exchange, "find_own_interface", lambda spec: number)
    monkeypatch.setattr(exchange, "fence_port", lambda port, host: fenced.append((port, host)) or 1)
    spec = make_specs()[1]
    port = spec.workers[1].port
    with caplog.at_level(logging.WARNING):
        exchange._fence(spec)
    assert fenced == ([] if number is None else [(port, number)])
    assert caplog.text == "" if said is None else said.format(port=port) in caplog.text
