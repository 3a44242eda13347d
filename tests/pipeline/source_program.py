"""A process that takes the batches of a small run in several ways and tells what it got: `run_ways` starts it.

`python -m tests.pipeline.source_program JSON`, where the JSON names the folder of the run and the ways. A process of its
own, because devices are planned once in the life of a process.
"""

import gc
import hashlib
import json
import logging
import os
import sys
import threading
from collections import deque
from dataclasses import replace
from pathlib import Path

import numpy as np

from myxtts.config import XTTSConfig
from myxtts.devices.machine import read_machine
from myxtts.devices.plan import Mode, PlanRequest
from myxtts.devices.planning import plan_devices
from tests.support.processes import run_python


def run_ways(folder, ways):
    """What a process that takes all batches in these ways got, by way."""
    words = json.dumps({"folder": str(folder), "ways": ways})
    result = run_python(["-m", "tests.pipeline.source_program", words])
    assert result.returncode == 0, result.stderr[-4000:]
    return json.loads(result.stdout.rpartition("@@")[2])


def main(options):
    """What was got in each way, by its name."""
    from myxtts.devices import runtime

    runtime.set_thread_pools(1, 2)
    runtime.enable_determinism()
    # Enough devices for every mode.
    runtime.apply_plan(plan_mode(Mode.DUAL))
    return {name: run_way(Path(options["folder"]), way) for name, way in options["ways"].items()}


def plan_mode(mode):
    config = XTTSConfig(training={"rehearsal": True, "mode": str(mode)})
    return plan_devices(PlanRequest.from_config(config), read_machine())


def run_way(folder, way):
    from myxtts.pipeline.batches import open_batches
    from myxtts.pipeline.recipe import Target
    from tests.pipeline.small_runs import make_run

    collector = Collector()
    logging.getLogger("myxtts").addHandler(collector)
    plan = plan_mode(Mode(way["mode"]))
    data, recipe = make_run(folder, Target(way.get("target", "gpt")), plan, **way.get("sections", {}))
    recipe = replace(
        recipe,
        preparation=replace(recipe.preparation, rows_at_a_time=way.get("rows_at_a_time")),
        validation_interval=5,
        first_step=way.get("first_step", 0),
        end_step=way.get("end_step", 9),
    )
    os.environ.update(way.get("environ", {}))
    source = open_batches(recipe, data, folder=folder / "producer")
    try:
        batches = take_all(source)
        facts = source.read_facts()
    finally:
        source.close()
        logging.getLogger("myxtts").removeHandler(collector)
    return {
        "batches": batches,
        "model_device": plan.model.device,
        "workers": [[f.name, f.items, f.busy_s] for f in facts.work],
        "handoffs": [[f.name, f.items] for f in facts.handoffs],
        "events": [[event.kind, event.position, event.reason] for event in facts.events],
        "hits": facts.meters.cache_hits,
        "retraces": facts.meters.traces,
        "drops": [[drop.reason, drop.file, drop.where, drop.detail] for drop in data.report.replaced],
        "left_behind": list_what_is_left(),
        "log": collector.lines,
    }


def take_all(source):
    from myxtts.pipeline.threads import EndOfStream

    batches = []
    held = deque()
    while True:
        try:
            held.append(source.take())
        except EndOfStream:
            return batches + [describe(batch) for batch in held]
        source.advance()
        # Looked at two batches later: by then the slot it came from holds another one.
        if len(held) == 3:
            batches.append(describe(held.popleft()))
            source.release()


def describe(batch):
    return {
        "facts": list(batch.info.facts),
        "replaced": [[f.step, f.row, f.clip] for f in batch.info.replaced],
        "clips": list(batch.info.clip_numbers),
        "totals": list(batch.info.totals),
        "arrays": {name: digest(tensor.numpy()) for name, tensor in sorted(batch.tensors.items())},
        "devices": sorted({t.device for t in batch.tensors.values() if t.dtype.is_floating}),
    }


def digest(array):
    array = np.ascontiguousarray(array)
    return [array.dtype.name, list(array.shape), hashlib.sha256(array.tobytes()).hexdigest()[:16]]


class Collector(logging.Handler):
    def __init__(self):
        super().__init__(logging.INFO)
        self.lines = []

    def emit(self, record):
        self.lines.append(record.getMessage())


def list_what_is_left():
    """Threads, children and shared memory of a pipeline that should be gone."""
    gc.collect()
    threads = [thread.name for thread in threading.enumerate() if thread.name.startswith("myxtts")]
    children = [path.read_text() for path in Path("/proc/self/task").glob("*/children") if path.read_text()]
    maps = [line for line in Path("/proc/self/maps").read_text().splitlines() if "memfd:myxtts" in line]
    return threads + children + maps


if __name__ == "__main__":
    logging.basicConfig(stream=sys.stderr, level=logging.INFO, format="%(message)s")
    print("@@" + json.dumps(main(json.loads(sys.argv[1]))))
