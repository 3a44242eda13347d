"""Two Ray nodes on this machine, real preparers, a kill; and strangers who knock at every port meanwhile."""

from __future__ import annotations

import os
import signal
import socket
import time
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import Any

import grpc
import psutil
import pytest

from myxtts.cluster.preparers import PreparerPool
from myxtts.cluster.ray_setup import LOCAL, LOOPBACK, join_cluster, require_token_at, set_environment
from myxtts.errors import ClusterError
from myxtts.pipeline.batch import INFO, Batch
from myxtts.pipeline.threads import EndOfStream
from myxtts.training.peers import open_pool
from tests.pipeline.small_runs import make_batches, make_run, make_run_folder

SILENT = 200
"""Connections that say nothing."""
METHODS = (
    "NodeInfoGcsService/CheckAlive",
    "NodeManagerService/GetNodeStats",
    "CoreWorkerService/GetCoreWorkerStats",
)
"""Of the head, and of what listens at other ports: of each kind of server one that does no harm."""


@dataclass
class Story:
    """What happened while a run's batches were made on two nodes."""

    batches: list[Batch] = field(default_factory=list)
    gap_s: float = 0.0
    """The longest wait for a batch after a preparer was killed."""
    events: list[str] = field(default_factory=list)
    hosts: int = 0
    listening: set[str] = field(default_factory=set)
    """Addresses, of all processes of the cluster."""
    codes: dict[tuple[str, int, str], Any] = field(default_factory=dict)
    """What was told to whom, at which port, who asked for which method."""
    head: int = 0
    """Its port."""
    left: list[psutil.Process] = field(default_factory=list)
    environ: dict[str, str] = field(default_factory=dict)
    keeps_handler: bool = False


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Any:
    return make_run(make_run_folder(tmp_path_factory.mktemp("run"), clips=16))


@pytest.fixture(scope="module")
def story(run: Any) -> Story:
    before = dict(os.environ)
    # As `--cluster local` does, so that what is tested here stays on this machine.
    set_environment(LOCAL, os.environ)
    from ray.cluster_utils import Cluster

    told = Story()
    small = {"num_cpus": 1, "num_gpus": 0, "object_store_memory": 80 << 20, "include_dashboard": False}
    cluster = Cluster(
        initialize_head=True, head_node_args={**small, "node_ip_address": LOOPBACK}, shutdown_at_exit=False
    )
    try:
        cluster.add_node(**small, node_ip_address=LOOPBACK)
        handler = signal.getsignal(signal.SIGTERM)
        with join_cluster(cluster.address) as ray:
            told.keeps_handler = signal.getsignal(signal.SIGTERM) is handler
            _make_all(ray, run, told, cluster.address)
    finally:
        children = psutil.Process().children(recursive=True)
        cluster.shutdown()
        _, told.left = psutil.wait_procs(children, timeout=20)
        os.environ.clear()
        os.environ.update(before)
    return told


def _make_all(ray: Any, run: Any, told: Story, address: str) -> None:
    data, recipe = run
    pool = open_pool(ray, 2, recipe, data)
    with ExitStack() as opened:
        opened.callback(pool.close)
        while True:
            began_s = time.perf_counter()
            try:
                slot = pool.take()
            except EndOfStream:
                break
            arrays = {name: array.copy() for name, array in slot.arrays.items()}
            told.batches.append(Batch.unpack(arrays))
            pool.release()
            if len(told.batches) > 4:
                told.gap_s = max(told.gap_s, time.perf_counter() - began_s)
            if len(told.batches) == 2:
                _wait_for_both(pool)
                listening = _list_listening()
                told.listening = {ip for ip, _ in listening}
                told.head = int(address.rpartition(":")[2])
                opened.callback(_knock(told.head, {port for _, port in listening}, told.codes))
            if len(told.batches) == 4:
                maker = psutil.Process(told.batches[-1].info.memory.pid)
                told.environ = maker.environ()
                maker.kill()
        told.events = [event.kind for event in pool.events]
        told.hosts = len({node["NodeID"] for node in ray.nodes() if node["Alive"]})


def _wait_for_both(pool: PreparerPool) -> None:
    end_s = time.perf_counter() + 120
    while sum(each.is_ready for each in pool._handles) < 2:
        assert time.perf_counter() < end_s
        with pool._lock:
            pool._listen()


def _list_listening() -> set[tuple[str, int]]:
    family = [psutil.Process(), *psutil.Process().children(recursive=True)]
    connections = [each for process in family for each in process.net_connections(kind="inet")]
    return {(each.laddr.ip.removeprefix("::ffff:"), each.laddr.port) for each in connections if each.status == "LISTEN"}


def _knock(head: int, ports: set[int], codes: dict[tuple[str, int, str], Any]) -> Any:
    """Strangers at every port of the cluster, who stay until the end: nobody may be stopped by them. Returns what ends it."""
    silent = [socket.create_connection((LOOPBACK, head), timeout=5) for _ in range(SILENT)]
    asked, tokens = {}, {"wrong": "0" * 64, "owner": os.environ["RAY_AUTH_TOKEN"]}
    for port in ports:
        silent.append(socket.create_connection((LOOPBACK, port), timeout=5))
        silent[-1].sendall(os.urandom(4096))
        channel = grpc.insecure_channel(f"{LOOPBACK}:{port}")
        for who in ("nobody", *tokens):
            metadata = (("authorization", f"Bearer {tokens[who]}"),) if who in tokens else ()
            for method in METHODS:
                call = channel.unary_unary(f"/ray.rpc.{method}")
                # All at once: some ports never answer.
                asked[who, port, method] = call.future(b"", timeout=5, metadata=metadata)
    for who_and_where, answer in asked.items():
        codes[who_and_where] = answer.code() if answer.exception() else answer.result()
    return lambda: [each.close() for each in silent]


def test_every_batch_is_made_once_in_order_to_the_last_bit_though_a_preparer_is_killed(story: Story, run: Any) -> None:
    data, recipe = run
    order = recipe.make_order(data)
    numbers = list(range(order.first_number, order.end_number))
    assert [batch.info.facts.number for batch in story.batches] == numbers
    for found, expected in zip(story.batches, make_batches(run, numbers, warm=True), strict=True):
        assert found.tensors.keys() == expected.tensors.keys() - {INFO}
        for name, array in expected.tensors.items():
            assert array.tobytes() == found.tensors[name].tobytes(), (found.info.facts.number, name)
        assert found.info.clip_numbers == expected.info.clip_numbers
        assert found.info.totals == expected.info.totals


def test_two_nodes_worked_and_the_dead_one_was_replaced(story: Story) -> None:
    assert story.hosts == 2
    assert len({batch.info.memory.pid for batch in story.batches}) >= 2
    assert story.events.count("died") == 1
    assert story.events.count("started") == 3


def test_nothing_listens_beyond_loopback_and_nothing_is_told_to_others(story: Story) -> None:
    assert story.listening
    assert story.listening <= {LOOPBACK, "::1"}
    assert story.environ["RAY_USAGE_STATS_ENABLED"] == "0"
    assert story.environ["RAY_AUTH_MODE"] == "token"


def test_strangers_get_nothing_and_stop_nothing(story: Story) -> None:
    answered = {key for key, code in story.codes.items() if isinstance(code, bytes)}
    served = {(port, method) for who, port, method in answered if who == "owner"}
    assert (story.head, METHODS[0]) in served
    assert {port for port, _ in served} - {story.head}, "others than the head answer their owner"
    for port, method in served:
        for who in ("nobody", "wrong"):
            assert story.codes[who, port, method] is grpc.StatusCode.UNAUTHENTICATED, (who, port, method)
    assert {who for who, _, _ in answered} == {"owner"}
    # Without strangers a killed preparer leaves 2 s at most; this machine may have other work.
    assert story.gap_s < 6.0


def test_sigterm_still_ends_a_run_politely(story: Story) -> None:
    assert story.keeps_handler, "Ray has a handler of its own, which would end it at once"


def test_no_process_is_left(story: Story) -> None:
    assert story.left == []


def test_a_cluster_that_lets_everybody_in_is_refused() -> None:
    def greet(request: bytes, context: Any) -> bytes:
        return b""

    from concurrent.futures import ThreadPoolExecutor

    with ThreadPoolExecutor(1) as threads:
        server = grpc.server(threads)
        handlers = {"CheckAlive": grpc.unary_unary_rpc_method_handler(greet)}
        server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler("ray.rpc.NodeInfoGcsService", handlers),))
        port = server.add_insecure_port(f"{LOOPBACK}:0")
        server.start()
        try:
            with pytest.raises(ClusterError, match=r"lets everybody in.*RAY_AUTH_MODE=token"):
                require_token_at(f"{LOOPBACK}:{port}")
        finally:
            server.stop(None)
