"""How TensorFlow is set up for sums, without the other workers. The sums themselves are made by runs of several processes."""

import logging
import os
from dataclasses import replace
from types import SimpleNamespace

import psutil
import pytest
import tensorflow as tf
from tensorflow.python.eager import context

from myxtts.cluster.exchange import PACK_BYTES, Exchange
from myxtts.config.settings import Address
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
        Exchange(spec, has_gpu=False)
    # Before the strategy, which would set limits of its own.
    assert configured["cluster_register_timeout_in_ms"] == 70_000
    assert configured["heartbeat_timeout_in_ms"] >= 2 * 60_000, "our own lifeline tells first, and knows who it was"
    assert [(job.name, job.num_tasks) for job in configured["coordinated_jobs"]] == [("worker", 3)]
    assert f"TensorFlow of worker 1 at {spec.workers[1]} has not joined the others within 70 s" in str(failure.value)
    assert f"They meet at {spec.workers[0]}, and what it says is: Deadline Exceeded. See" in str(failure.value)


ELSEWHERE = (Address("192.0.2.7", 5000), Address("192.0.2.8", 5000))


@pytest.mark.parametrize(
    ("workers", "has_gpu", "before", "kind", "confined_to"),
    [
        (None, True, None, "NCCL", "=lo"),
        (None, True, "ib0", "NCCL", "ib0"),
        (None, False, None, "RING", None),
        (ELSEWHERE, True, None, "NCCL", None),
    ],
)
@pytest.mark.parametrize("others", [["lo"], ["lo", "eth0"]])
def test_gpus_are_joined_by_nccl_which_stays_on_loopback_and_open_ports_are_told(
    configured, monkeypatch, caplog, workers, has_gpu, before, kind, confined_to, others
):
    monkeypatch.setenv("NCCL_SOCKET_IFNAME", before or "")
    if before is None:
        del os.environ["NCCL_SOCKET_IFNAME"]
    monkeypatch.setattr(psutil, "net_if_addrs", lambda: dict.fromkeys(others, ()))
    made = []

    def make_strategy(*, cluster_resolver, communication_options):
        made.append((communication_options, os.environ.get("NCCL_SOCKET_IFNAME")))
        return SimpleNamespace(num_replicas_in_sync=2)

    monkeypatch.setattr(tf.distribute, "MultiWorkerMirroredStrategy", make_strategy)
    spec = make_specs()[1]
    spec = replace(spec, workers=workers or spec.workers)
    with caplog.at_level(logging.WARNING):
        Exchange(spec, has_gpu=has_gpu)
    ((options, interface),) = made
    assert (options.implementation.name, options.bytes_per_pack) == (kind, PACK_BYTES)
    assert interface == confined_to
    port, nccl = spec.workers[1].port, " and NCCL at ports of its own" if has_gpu else ""
    said = f"TensorFlow listens at port {port} of every interface of this machine{nccl}, without authentication"
    assert (said in caplog.text) == (others != ["lo"])
