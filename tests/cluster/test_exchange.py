"""How TensorFlow is set up for sums, without the other workers. The sums themselves are made by runs of several processes."""

import logging
import os
from types import SimpleNamespace

import pytest
import tensorflow as tf
from tensorflow.python.eager import context

from myxtts.cluster import exchange
from myxtts.cluster import exchange as nccl
from myxtts.errors import RendezvousError
from tests.cluster.test_link import make_specs


@pytest.fixture
def configured(monkeypatch):
    """What TensorFlow's coordination service was configured with. The real one would stay in this process."""
    settings = {}
    fake = SimpleNamespace(configure_coordination_service=lambda **given: settings.update(given))
    monkeypatch.setattr(context, "context", lambda: fake)
    return settings


def test_tensorflow_is_as_patient_as_the_cluster_file_and_workers_it_does_not_join_are_told(configured, monkeypatch):
    def fail(**given):
        raise tf.errors.DeadlineExceededError(None, None, "Deadline Exceeded\nmore")

    monkeypatch.setattr(tf.distribute, "MultiWorkerMirroredStrategy", fail)
    spec = make_specs(3, rendezvous_s=70.0, silence_s=60.0)[1]
    with pytest.raises(RendezvousError) as failure:
        exchange.Exchange(spec, has_gpu=False)
    # Before the strategy, which would set limits of its own.
    assert configured["cluster_register_timeout_in_ms"] == 70_000
    assert configured["heartbeat_timeout_in_ms"] >= 2 * 60_000, "our own lifeline tells first, and knows who it was"
    assert [(job.name, job.num_tasks) for job in configured["coordinated_jobs"]] == [("worker", 3)]
    assert f"TensorFlow of worker 1 at {spec.workers[1]} has not joined the others within 70 s" in str(failure.value)
    assert f"They meet at {spec.workers[0]}, and what it says is: Deadline Exceeded. See" in str(failure.value)


@pytest.mark.parametrize(
    ("others", "has_gpu", "said"),
    [
        (False, True, None),
        (True, False, "TensorFlow listens at port {port} of every interface of this machine, without authentication"),
        (True, True, "of this machine and NCCL at ports of its own, without authentication"),
    ],
)
def test_open_ports_are_told_of_where_others_can_reach_them(monkeypatch, caplog, others, has_gpu, said):
    monkeypatch.setattr(exchange, "has_other_interfaces", lambda: others)
    spec = make_specs()[1]
    with caplog.at_level(logging.WARNING):
        exchange._warn_of_open_ports(spec, has_gpu=has_gpu)
    assert caplog.text == "" if said is None else said.format(port=spec.workers[1].port) in caplog.text


@pytest.mark.parametrize(("has_gpu", "kind", "interface"), [(True, "NCCL", "=lo"), (False, "RING", None)])
def test_gpus_are_joined_by_nccl_on_the_interface_of_the_cluster(configured, monkeypatch, has_gpu, kind, interface):
    # Set first, so that what is set meanwhile goes when the test ends.
    monkeypatch.setenv("NCCL_SOCKET_IFNAME", "")
    monkeypatch.delenv("NCCL_SOCKET_IFNAME")
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
