"""From a configuration to the team that trains it: alone, or with the other workers of a cluster."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import tensorflow as tf

from myxtts import __version__
from myxtts.checkpoints.tensor import read_array
from myxtts.cluster.doors import require_open_doors
from myxtts.cluster.exchange import Exchange
from myxtts.cluster.link import open_link
from myxtts.cluster.spec import ClusterSpec
from myxtts.config import XTTSConfig
from myxtts.data.code_cache import digest_arrays
from myxtts.devices.plan import DevicePlan
from myxtts.training.cluster_rules import describe_idle_workers, list_shared_settings, refuse_plan, refuse_settings
from myxtts.training.starting_point import MEL_STATISTICS, Codec
from myxtts.training.team import Alone, ClusterTeam, Team

_log = logging.getLogger(__name__)


@contextmanager
def gather_team(
    config: XTTSConfig, plan: DevicePlan, spec: ClusterSpec | None, apply_devices: Callable[[], None]
) -> Iterator[Team]:
    """The team, with the device plan in force. Whatever ends the block ends the others too.

    Args:
        spec: the cluster to be part of; None to train alone.
        apply_devices: puts the plan into force; nothing may make a tensor before.
    """
    if spec is None:
        apply_devices()
        yield Alone()
        return
    refuse_settings(config)
    refuse_plan(plan)
    with open_link(spec) as link:
        require_open_doors(link)
        apply_devices()
        team = ClusterTeam(link, Exchange(spec, has_gpu=plan.model.is_gpu))
        team.require_sums()
        versions = {"myxtts": __version__, "tensorflow": tf.__version__}
        team.require_equal("versions", versions, "Install the same ones everywhere.")
        team.require_equal("settings", list_shared_settings(config), "Give every worker the same flags and YAML.")
        idle = describe_idle_workers(config, spec.size)
        if idle is not None and spec.is_chief:
            _log.warning("%s", idle)
        yield team


def describe_codec(codec: Codec) -> dict[str, str]:
    """What two codecs have alike only if their codes mean the same."""
    weights = {name: read_array(tensor) for name, tensor in codec.weights.items()}
    return {"digest": digest_arrays({**weights, MEL_STATISTICS: codec.mel_norms})}
