"""Workers that hold their devices for a set time and meet in every batch, as those of a data-parallel run do.

They are processes of their own and meet over the link of a real run; what they hold uses no processor, so that it works without
GPUs. Run by `run_paced_workers` as `python -m myxtts.cluster.paced_workers CLUSTER INDEX PACE`.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass

from myxtts.checkpoints.atomic_directory import open_scratch_folder
from myxtts.cluster.errors import ClusterError
from myxtts.cluster.link import open_link
from myxtts.cluster.loopback import make_cluster_file
from myxtts.cluster.process_group import Command, ProcessGroup
from myxtts.cluster.spec import ClusterSpec, find_cluster
from myxtts.devices.child_environment import make_importable
from myxtts.pipeline.paced_task import hold

_RESULT_MARK = "@done "
_SHOWN_LINES = 20


@dataclass(frozen=True)
class Pace:
    """Seconds for which each worker holds its device in every batch."""

    prepare_s: float
    train_s: float
    exchange_s: float
    """From the moment at which all have trained."""
    batches: int


def run_paced_workers(workers: int, pace: Pace) -> list[float]:
    """The moments at which the chief was done with its batches, in seconds from any beginning."""
    said: list[str] = []
    with open_scratch_folder("paced") as folder:
        path = folder / "cluster.yaml"
        path.write_text(make_cluster_file(workers), encoding="utf-8")
        python = [sys.executable, "-P", "-m", __name__, str(path)]
        environ = make_importable(os.environ)
        commands = [Command([*python, str(index), json.dumps(asdict(pace))], environ) for index in range(workers)]
        codes = ProcessGroup(commands, tell=lambda index, line: said.append(line)).run()
    if any(codes):
        raise ClusterError("A paced worker failed:\n" + "\n".join(said[-_SHOWN_LINES:]))
    line = next(line for line in said if line.startswith(_RESULT_MARK))
    done: list[float] = json.loads(line.removeprefix(_RESULT_MARK))
    return done


def _work(spec: ClusterSpec, pace: Pace) -> list[float]:
    done = []
    with open_link(spec) as link:
        for number in range(pace.batches):
            hold(pace.prepare_s)
            link.add_up(f"batch {number}", [0.0] * 6)
            hold(pace.train_s)
            # Nobody's gradients are summed before everybody has them.
            link.add_up(f"gradients {number}", [0.0])
            hold(pace.exchange_s)
            done.append(time.perf_counter())
    return done


def main(words: Sequence[str]) -> int:
    path, index, pace = words
    spec = find_cluster(path, int(index), {})
    assert spec is not None
    done = _work(spec, Pace(**json.loads(pace)))
    if spec.is_chief:
        sys.stdout.write(f"{_RESULT_MARK}{json.dumps(done)}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
