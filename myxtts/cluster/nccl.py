"""Where NCCL, which adds up the tensors of GPUs, may listen. No TensorFlow; nobody has run NCCL with this yet."""

from __future__ import annotations

from collections.abc import MutableMapping

from myxtts.cluster.interfaces import find_own_interface, name_interface
from myxtts.cluster.spec import ClusterSpec

SOCKET_INTERFACE = "NCCL_SOCKET_IFNAME"


def confine_nccl(spec: ClusterSpec, environ: MutableMapping[str, str]) -> None:
    """Keeps NCCL to the interface that the cluster's file names, unless the user has chosen one.

    Left to itself NCCL listens, at any free port, on an interface that is not loopback, also where all workers are on loopback. Where
    this machine cannot tell its own address from the file, NCCL is left to itself.

    Args:
        environ: of this process; NCCL reads it at the first sum.
    """
    own = find_own_interface(spec)
    name = None if own is None else name_interface(own)
    if name is not None:
        # With "=" it is this very one; without, every one whose name begins so.
        environ.setdefault(SOCKET_INTERFACE, f"={name}")
