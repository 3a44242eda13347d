"""What trainers say to each other: sums by TensorFlow's own collectives, NCCL between GPUs (never run yet) and a ring over gRPC
between CPUs; and small facts through its coordination service.

The strategy is `MultiWorkerMirroredStrategy` with one replica in each process. It owns no variables: a trainer's model is built
and trained by the same code as a model that is trained alone, on one device or on several, and stays equal to the others because
all apply the same sums."""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Iterable, Sequence
from typing import Any

import psutil
import tensorflow as tf

from myxtts.cluster.trainers import TrainerSpec
from myxtts.errors import MachineError

_log = logging.getLogger(__name__)

PACK_BYTES = 32 << 20
"""Gradients are sent in packs of about this size: one message for each would be slow, and one for all would not overlap."""
MEETING_S = 300.0
"""For trainers to wait for each other at the start."""
_SILENCE_S = 30.0
"""A trainer that is not heard of for so long is lost. Of one that dies the driver knows at once."""


class Exchange:
    """Adds up tensors and hands facts around. Make it after the device plan was applied, and before anything else makes a tensor.

    Args:
        spec: which of the trainers this is.
        has_gpu: whether this process trains on a GPU, or on several of which it sums by itself first.
    """

    def __init__(self, spec: TrainerSpec, *, has_gpu: bool):
        self._spec, self._rounds = spec, 0
        _configure_patience(spec)
        resolver = tf.distribute.cluster_resolver.SimpleClusterResolver(
            tf.train.ClusterSpec({"worker": list(spec.addresses)}),
            task_type="worker",
            task_id=spec.index,
            num_accelerators={"GPU": int(has_gpu)},
            rpc_layer="grpc",
        )
        if has_gpu and len({address.rpartition(":")[0] for address in spec.addresses}) == 1:
            # Left to itself NCCL listens, at any free port, on an interface that is not loopback. It reads this at the first sum.
            os.environ.setdefault("NCCL_SOCKET_IFNAME", "=lo")
        # Left to itself TensorFlow takes its ring between GPUs too, through the memory of the hosts and gRPC.
        kinds = tf.distribute.experimental.CommunicationImplementation
        options = tf.distribute.experimental.CommunicationOptions(
            bytes_per_pack=PACK_BYTES, implementation=kinds.NCCL if has_gpu else kinds.RING
        )
        try:
            self._strategy = tf.distribute.MultiWorkerMirroredStrategy(resolver, options)
        except tf.errors.OpError as error:
            raise MachineError(
                f"TensorFlow of trainer {spec.index} has not joined the others within {MEETING_S:g} s. They meet at {spec.addresses[0]}, and "
                f"what it says is: {str(error).partition(chr(10))[0]}. See that all ports are open between the machines, to nobody else, and "
                "that all run the same version."
            ) from error
        assert self._strategy.num_replicas_in_sync == spec.size, "one replica in each process"
        self._function = tf.function(lambda tensors: self._strategy.run(_add_up, args=(tensors,)), autograph=False)
        if any(name != "lo" for name in psutil.net_if_addrs()):
            _log.warning(
                "TensorFlow listens at port %s of every interface of this machine%s, without authentication: let nobody but the trainers "
                "reach it (a firewall, a VPN; see docs/en/cluster.md).",
                spec.addresses[spec.index].rpartition(":")[2],
                " and NCCL at ports of its own" if has_gpu else "",
            )

    def sum(self, tensors: Sequence[tf.Tensor]) -> list[tf.Tensor]:
        """The sums of every worker's tensors, which must have the same shapes everywhere; on the device of the caller's scope."""
        given = list(tensors)
        # Not called itself: TensorFlow takes calls that trace for a mistake, and warns.
        return list(self._function.get_concrete_function(given)(given))

    def spread(self, variables: Iterable[Any]) -> None:
        """Gives every variable the value it has on the chief."""
        for variable in variables:
            value = tf.convert_to_tensor(variable)
            # Of all others nothing: the sum is what the chief has.
            (told,) = self.sum([value if self._spec.is_chief else tf.zeros_like(value)])
            variable.assign(told)

    def gather(self, own: Any) -> list[Any]:
        """What each trainer has given, of kinds that JSON knows, in their order. All call it equally often."""
        from tensorflow.python.eager import context

        # There is no public way to TensorFlow's coordination service, and between GPUs a sum would wait for all work that is queued.
        service, number = context.context(), self._rounds
        service.set_config_key_value(f"myxtts/{number}/{self._spec.index}", json.dumps(own))
        told = [json.loads(service.get_config_key_value(f"myxtts/{number}/{each}")) for each in range(self._spec.size)]
        if number:
            # Who has written this round has read all of the one before.
            service.delete_config_key_value(f"myxtts/{number - 1}/{self._spec.index}")
        self._rounds += 1
        return told


def _configure_patience(spec: TrainerSpec) -> None:
    """Has TensorFlow wait as long as we do. Its own limits are an hour for who comes late, and 10 s for who falls silent."""
    from tensorflow.python.eager import context

    # The module of its class has moved from version to version; that of the field has not.
    jobs = tf.compat.v1.ConfigProto().experimental.coordination_config.coordinated_job_list
    jobs.add(name="worker", num_tasks=spec.size)
    # There is no public way. The strategy leaves a service alone that is configured already.
    context.context().configure_coordination_service(
        service_type="standalone",
        service_leader="/job:worker/replica:0/task:0",
        cluster_register_timeout_in_ms=round(MEETING_S * 1000),
        heartbeat_timeout_in_ms=round(_SILENCE_S * 1000),
        coordinated_jobs=list(jobs),
    )


def _add_up(tensors: list[tf.Tensor]) -> Any:
    context = tf.distribute.get_replica_context()
    # `identity`: an argument of a function has no device yet, and the sum is made where its parts are.
    return context.all_reduce(tf.distribute.ReduceOp.SUM, [tf.identity(tensor) for tensor in tensors])
