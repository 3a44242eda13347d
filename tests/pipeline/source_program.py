"""A process that takes the batches of a small run in several ways and tells what it got.

`python -m tests.pipeline.source_program JSON`, where the JSON names the folder of the run and the ways. A process of its
own, because devices are planned once in the life of a process.
"""

from __future__ import annotations

import gc
import hashlib
import json
import logging
import os
import signal
import sys
import threading
from collections import deque
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from myxtts.config import XTTSConfig
from myxtts.data.run_data import collect_run_data
from myxtts.devices.machine import read_machine
from myxtts.devices.plan import DevicePlan, Mode, PlanRequest
from myxtts.devices.planning import plan_devices


def make_config(folder: Path, **sections: Any) -> XTTSConfig:
    """A configuration of the smallest model that reads the corpus in the folder."""
    data = {
        "train_data": str(folder / "corpus"),
        "batch_size": 6,
        "num_workers": 1,
        "cache": "off",
        "prompt_seconds": 1.0,
    }
    training = {"rehearsal": True, "checkpoint_dir": str(folder), "mode": "single"}
    return XTTSConfig(
        model={"size": "tiny", **sections.get("model", {})},
        data={**data, **sections.get("data", {})},
        training={**training, **sections.get("training", {})},
    )


def main(options: dict[str, Any]) -> dict[str, Any]:
    """What was got in each way, by its name."""
    from myxtts.devices import runtime

    runtime.set_thread_pools(1, 2)
    runtime.enable_determinism()
    runtime.set_synchronous_execution(not options["asynchronous"])
    # Enough devices for every mode.
    runtime.apply_plan(plan_mode(Mode.DUAL))
    return {name: run_way(Path(options["folder"]), way) for name, way in options["ways"].items()}


def plan_mode(mode: Mode) -> DevicePlan:
    config = XTTSConfig(training={"rehearsal": True, "mode": str(mode)})
    return plan_devices(PlanRequest.from_config(config), read_machine())


def run_way(folder: Path, way: dict[str, Any]) -> dict[str, Any]:
    from myxtts.pipeline.order import RunOrder
    from myxtts.pipeline.preparation_settings import Target, choose_preparation
    from myxtts.pipeline.production import Production
    from myxtts.pipeline.sources import SourceRequest, open_source

    collector = Collector()
    logging.getLogger("myxtts").addHandler(collector)
    config = make_config(folder, **way.get("sections", {}))
    data = collect_run_data(config, folder=folder)
    target = Target(way.get("target", "gpt"))
    preparation = choose_preparation(config, target, np.linspace(0.5, 2.0, 80).tolist())
    production = Production(
        config=config,
        preparation=replace(preparation, rows_at_a_time=way.get("rows_at_a_time")),
        validation_interval=5,
        first_step=way.get("first_step", 0),
        end_step=way.get("end_step", 9),
        codec_folder=folder / "codec" if target is Target.GPT else None,
        cache_folder=folder / "features",
    )
    order = RunOrder(
        data.sampler, data.validation_batches, validation_interval=production.validation_interval,
        first_step=production.first_step, end_step=production.end_step,
    )  # fmt: skip
    plan = plan_mode(Mode(way["mode"]))
    os.environ.update(way.get("environ", {}))
    source = open_source(SourceRequest(plan, data, order, production, folder / "producer"))
    try:
        batches = take_all(source, set(way.get("kill_at", [])))
        facts = source.read_facts()
    finally:
        source.close()
        logging.getLogger("myxtts").removeHandler(collector)
    return {
        "batches": batches,
        "model_device": plan.model.device,
        "stages": [[f.name, f.items, f.busy_s] for f in facts.stages],
        "handoffs": [[f.name, f.items] for f in facts.handoffs],
        "events": [[event.kind, event.position, event.reason] for event in facts.events],
        "hits": facts.meters.cache_hits,
        "retraces": facts.meters.traces,
        "drops": [[drop.reason, drop.file, drop.where, drop.detail] for drop in data.report.replaced],
        "left_behind": list_what_is_left(),
        "log": collector.lines,
    }


def take_all(source: Any, kills: set[int]) -> list[Any]:
    from myxtts.pipeline.handoff import EndOfStream

    batches: list[Any] = []
    held: deque[Any] = deque()
    while True:
        try:
            held.append(source.take())
        except EndOfStream:
            return batches + [describe(batch) for batch in held]
        source.advance()
        if held[-1].facts.number in kills:
            os.kill(source._producer.pid, signal.SIGKILL)
        # Looked at two batches later: by then the slot it came from holds another one.
        if len(held) == 3:
            batches.append(describe(held.popleft()))
            source.release()


def describe(batch: Any) -> dict[str, Any]:
    return {
        "facts": list(batch.facts),
        "replaced": [[f.step, f.row, f.clip] for f in batch.replaced],
        "clips": batch.clips_B.tolist(),
        "arrays": {name: digest(tensor.numpy()) for name, tensor in sorted(batch.tensors.items())},
        "devices": sorted({t.device for t in batch.tensors.values() if t.dtype.is_floating}),
    }


def digest(array: Any) -> list[Any]:
    array = np.ascontiguousarray(array)
    return [array.dtype.name, list(array.shape), hashlib.sha256(array.tobytes()).hexdigest()[:16]]


class Collector(logging.Handler):
    def __init__(self) -> None:
        super().__init__(logging.INFO)
        self.lines: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.lines.append(record.getMessage())


def list_what_is_left() -> list[str]:
    """Threads, children and shared memory of a pipeline that should be gone."""
    gc.collect()
    threads = [thread.name for thread in threading.enumerate() if thread.name.startswith("myxtts")]
    children = [path.read_text() for path in Path("/proc/self/task").glob("*/children") if path.read_text()]
    maps = [line for line in Path("/proc/self/maps").read_text().splitlines() if "memfd:myxtts" in line]
    return threads + children + maps


if __name__ == "__main__":
    logging.basicConfig(stream=sys.stderr, level=logging.INFO, format="%(message)s")
    print("@@" + json.dumps(main(json.loads(sys.argv[1]))))
