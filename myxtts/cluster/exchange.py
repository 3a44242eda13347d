"""Sums over all workers by TensorFlow's own collectives: NCCL between GPUs (never run yet), a ring over gRPC between CPUs.

The strategy is `MultiWorkerMirroredStrategy` with one replica in each process. It owns no variables: a worker's model is built
and trained by the same code as a model that is trained alone, and stays equal to the others because all apply the same sums."""

from __future__ import annotations

import logging
import os
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import psutil
import tensorflow as tf

from myxtts.cluster.meeting import is_on_one_machine
from myxtts.cluster.spec import ClusterSpec
from myxtts.errors import RendezvousError

_log = logging.getLogger(__name__)


PACK_BYTES = 32 << 20
"""Gradients are sent in packs of about this size: one message for each would be slow, and one for all would not overlap."""
_UNAVAILABLE = 14
_LATER = 2


class Exchange:
    """Adds up tensors. Make it after the device plan was applied, and before anything else makes a tensor.

    Args:
        spec: the cluster, whose workers have all met.
        has_gpu: whether this process trains on a GPU; it must see no other one.
    """

    def __init__(self, spec: ClusterSpec, *, has_gpu: bool):
        self._spec = spec
        _configure_patience(spec)
        resolver = tf.distribute.cluster_resolver.SimpleClusterResolver(
            tf.train.ClusterSpec({"worker": [str(address) for address in spec.workers]}),
            task_type="worker",
            task_id=spec.index,
            num_accelerators={"GPU": int(has_gpu)},
            rpc_layer="grpc",
        )
        if has_gpu and is_on_one_machine(spec):
            # Left to itself NCCL listens, at any free port, on an interface that is not loopback. It reads this at the first sum.
            os.environ.setdefault("NCCL_SOCKET_IFNAME", "=lo")
        try:
            self._strategy = tf.distribute.MultiWorkerMirroredStrategy(
                cluster_resolver=resolver, communication_options=_choose_communication(has_gpu=has_gpu)
            )
        except tf.errors.OpError as error:
            raise RendezvousError(
                f"TensorFlow of {spec.name_worker(spec.index)} has not joined the others within {spec.rendezvous_s:g} s. They meet at "
                f"{spec.workers[0]}, and what it says is: {str(error).partition(chr(10))[0]}. See that the ports under `workers` are open "
                "between the machines and that all run the same version, and start the whole cluster again."
            ) from error
        assert self._strategy.num_replicas_in_sync == spec.size, "one replica in each process"
        self._functions: dict[tuple[Any, ...], Any] = {}
        """By the shapes they add up. One for each, so that nothing is traced twice."""
        _warn_of_open_ports(spec, has_gpu=has_gpu)

    def sum(self, tensors: Sequence[tf.Tensor]) -> list[tf.Tensor]:
        """The sums of every worker's tensors, which must have the same shapes everywhere; on the device of the caller's scope."""
        given = list(tensors)
        key = tuple((tensor.dtype, *tensor.shape) for tensor in given)
        function = self._functions.get(key)
        if function is None:
            function = tf.function(self._run, autograph=False)
            # Traced here and not by its first call: TensorFlow takes a call that traces for a mistake, and warns.
            function.get_concrete_function(given)
            self._functions[key] = function
        return list(function(given))

    def spread(self, variables: Iterable[Any]) -> None:
        """Gives every variable the value it has on the chief."""
        for pack in _pack(variables):
            values = [tf.convert_to_tensor(variable) for variable in pack]
            # Of all others nothing: the sum is what the chief has.
            own = values if self._spec.is_chief else [tf.zeros_like(value) for value in values]
            for variable, value in zip(pack, self.sum(own), strict=True):
                variable.assign(value)

    def abort(self, reason: str) -> None:
        """Makes sums that are waited for fail. For any thread."""
        from tensorflow.python.eager import context

        # There is no public way, and a collective whose partner is gone without a word would wait for ever.
        context.context().abort_collective_ops(_UNAVAILABLE, reason)

    def _run(self, tensors: list[tf.Tensor]) -> Any:
        return self._strategy.run(_add_up, args=(tensors,))


def _choose_communication(*, has_gpu: bool) -> Any:
    # Left to itself TensorFlow takes its ring between GPUs too, through the memory of the hosts and gRPC.
    kinds = tf.distribute.experimental.CommunicationImplementation
    return tf.distribute.experimental.CommunicationOptions(
        bytes_per_pack=PACK_BYTES, implementation=kinds.NCCL if has_gpu else kinds.RING
    )


def _configure_patience(spec: ClusterSpec) -> None:
    """Has TensorFlow wait as long as we do. Its own limits are an hour for who comes late, and 10 s for who falls silent."""
    from tensorflow.python.eager import context

    # The module of its class has moved from version to version; that of the field has not.
    jobs = tf.compat.v1.ConfigProto().experimental.coordination_config.coordinated_job_list
    jobs.add(name="worker", num_tasks=spec.size)
    # There is no public way. The strategy leaves a service alone that is configured already.
    context.context().configure_coordination_service(
        service_type="standalone",
        service_leader="/job:worker/replica:0/task:0",
        cluster_register_timeout_in_ms=round(spec.rendezvous_s * 1000),
        # Later than our own lifeline, which knows who it was.
        heartbeat_timeout_in_ms=round(_LATER * spec.silence_s * 1000),
        coordinated_jobs=list(jobs),
    )


def _warn_of_open_ports(spec: ClusterSpec, *, has_gpu: bool) -> None:
    """Says that TensorFlow's server listens at every address of this machine, unless it has none that others could reach."""
    if any(name != "lo" for name in psutil.net_if_addrs()):
        _log.warning(
            "TensorFlow listens at port %d of every interface of this machine%s, without authentication: let nobody but the workers "
            "reach it (a firewall, a VPN; see docs/en/cluster.md).",
            spec.workers[spec.index].port,
            " and NCCL at ports of its own" if has_gpu else "",
        )


def _pack(variables: Iterable[Any]) -> Iterator[list[Any]]:
    """Variables of one type, in packs of about `PACK_BYTES`."""
    by_type: dict[Any, list[Any]] = {}
    for variable in variables:
        by_type.setdefault(variable.dtype, []).append(variable)
    for members in by_type.values():
        pack: list[Any] = []
        for variable in members:
            pack.append(variable)
            if sum(each.shape.num_elements() * each.dtype.size for each in pack) >= PACK_BYTES:
                yield pack
                pack = []
        if pack:
            yield pack


def _add_up(tensors: list[tf.Tensor]) -> Any:
    context = tf.distribute.get_replica_context()
    # `identity`: an argument of a function has no device yet, and the sum is made where its parts are.
    return context.all_reduce(tf.distribute.ReduceOp.SUM, [tf.identity(tensor) for tensor in tensors])
