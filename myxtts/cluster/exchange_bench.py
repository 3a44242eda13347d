"""How long sums over workers take: `python -m myxtts.cluster.exchange_bench CLUSTER INDEX`, once for every worker."""

from __future__ import annotations

import json
import logging
import os
import sys
import time
from collections.abc import Sequence
from statistics import median
from typing import TYPE_CHECKING, Any

from myxtts.cluster.link import open_link
from myxtts.cluster.spec import ClusterSpec, find_cluster
from myxtts.devices.environment import prepare_environment

if TYPE_CHECKING:
    from myxtts.cluster.exchange import Exchange

SIZES_MB = (0, 1, 16, 64)
ROUNDS = 7
RESULT_MARK = "@exchange "
_MB = 1_000_000
_FLOAT_BYTES = 4


def measure_sums(spec: ClusterSpec, sizes_mb: Sequence[int], rounds: int = ROUNDS) -> dict[str, float]:
    """Median seconds of a sum of so many megabytes, and under `link` of a round of small numbers over the chief."""
    with open_link(spec) as link:
        prepare_environment(os.environ)
        from myxtts.devices.machine import read_machine
        from myxtts.devices.plan import PlanRequest
        from myxtts.devices.planning import plan_devices
        from myxtts.devices.runtime import apply_plan

        apply_plan(plan_devices(PlanRequest(rehearsal=True), read_machine()))
        import tensorflow as tf

        from myxtts.cluster.exchange import Exchange

        exchange = Exchange(spec, has_gpu=False)
        found = {}
        for size in sizes_mb:
            tensor = tf.zeros([max(1, size * _MB // _FLOAT_BYTES)])
            # The first one traces.
            exchange.sum([tensor])
            times = [_time_sum(exchange, tensor) for _ in range(rounds)]
            found[str(size)] = median(times)
        times = []
        for number in range(rounds):
            began = time.perf_counter()
            link.add_up(f"round {number}", [1.0] * 6)
            times.append(time.perf_counter() - began)
        found["link"] = median(times)
        return found


def _time_sum(exchange: Exchange, tensor: Any) -> float:
    began = time.perf_counter()
    (total,) = exchange.sum([tensor])
    total.numpy()
    return time.perf_counter() - began


def main(words: Sequence[str]) -> int:
    path, index = words
    logging.basicConfig(level=logging.WARNING)
    spec = find_cluster(path, int(index), {})
    assert spec is not None
    found = measure_sums(spec, SIZES_MB)
    if spec.is_chief:
        sys.stdout.write(f"{RESULT_MARK}{json.dumps(found)}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
