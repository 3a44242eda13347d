"""A process that takes the batches of a small run in one mode and tells what it got: `python -m tests.pipeline.source_program`.

Its argument is JSON with what `make_run` was given, the mode, and what to do meanwhile. A process of its own, because
devices are planned once in the life of a process.
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
from myxtts.data.replacements import Failure
from myxtts.data.run_data import collect_run_data
from myxtts.devices.machine import read_machine
from myxtts.devices.plan import PlanRequest, plan_devices

MODES = {
    "single": {},
    "dual": {"mode": "dual"},
    "isolated": {"mode": "isolated"},
}


def make_config(folder: Path, **sections: Any) -> XTTSConfig:
    """A configuration of the smallest model that reads the demo corpus."""
    data = {
        "train_data": str(folder / "corpus"),
        "batch_size": 6,
        "num_workers": 1,
        "cache": "off",
        "prompt_seconds": 1.0,
        **sections.get("data", {}),
    }
    training = {"rehearsal": True, "checkpoint_dir": str(folder), **sections.get("training", {})}
    return XTTSConfig(model={"size": "tiny", **sections.get("model", {})}, data=data, training=training)


def digest(array: Any) -> list[Any]:
    array = np.ascontiguousarray(array)
    return [array.dtype.name, list(array.shape), hashlib.sha256(array.tobytes()).hexdigest()[:16]]


def main(options: dict[str, Any]) -> dict[str, Any]:
    folder = Path(options["folder"])
    config = make_config(folder, **options.get("sections", {}))
    config = config.replace(training=MODES[options["mode"]])
    plan = plan_devices(PlanRequest.from_config(config), read_machine())
    from myxtts.devices import runtime

    runtime.set_thread_pools(1, 2)
    runtime.enable_determinism()
    runtime.set_synchronous_execution(not options.get("asynchronous", False))
    runtime.apply_plan(plan)
    from myxtts.pipeline.handoff import EndOfStream
    from myxtts.pipeline.order import RunOrder
    from myxtts.pipeline.preparation_settings import Target, choose_preparation
    from myxtts.pipeline.production import Production
    from myxtts.pipeline.sources import SourceRequest, open_source

    data = collect_run_data(config, folder=folder)
    target = Target(options.get("target", "gpt"))
    first_step, end_step = options.get("first_step", 0), options.get("end_step", 9)
    production = Production(
        config=config,
        preparation=choose_preparation(config, target, np.linspace(0.5, 2.0, 80).tolist()),
        validation_interval=options.get("validation_interval", 5),
        first_step=first_step,
        end_step=end_step,
        codec_folder=folder / "codec" if target is Target.GPT else None,
        cache_folder=folder / "features",
        failures=tuple(Failure(*failure) for failure in options.get("failures", [])),
    )
    rows = options.get("rows_at_a_time")
    production = replace(production, preparation=replace(production.preparation, rows_at_a_time=rows))
    order = RunOrder(
        data.sampler, data.validation_batches, validation_interval=production.validation_interval,
        first_step=first_step, end_step=end_step,
    )  # fmt: skip
    source = open_source(SourceRequest(plan, data, order, production, folder / "producer"))
    batches: list[Any] = []
    held: deque[Any] = deque()
    kills = set(options.get("kill_at", []))
    try:
        while True:
            try:
                held.append(source.take())
            except EndOfStream:
                break
            source.advance()
            if held[-1].facts.number in kills:
                os.kill(source._producer.pid, signal.SIGKILL)
            # Looked at two batches later: by then the slot it came from holds another one.
            if len(held) == 3:
                batches.append(describe(held.popleft()))
                source.release()
        batches += [describe(batch) for batch in held]
        facts = source.read_facts()
    finally:
        source.close()
    return {
        "batches": batches,
        "model_device": plan.model.device,
        "stages": [[f.name, f.items, f.busy_s] for f in facts.stages],
        "handoffs": [[f.name, f.items, f.readiness] for f in facts.handoffs],
        "events": [[event.kind, event.position, event.reason] for event in facts.events],
        "meters": [facts.meters.cache_hits, facts.meters.cache_misses, facts.meters.traces],
        "drops": [[drop.reason, drop.file, drop.where] for drop in data.report.replaced],
        "left_behind": list_what_is_left(),
    }


def describe(batch: Any) -> dict[str, Any]:
    return {
        "facts": list(batch.facts),
        "replaced": [[f.step, f.row, f.clip] for f in batch.replaced],
        "clips": batch.clips_B.tolist(),
        "arrays": {name: digest(tensor.numpy()) for name, tensor in sorted(batch.tensors.items())},
        "devices": sorted({t.device for t in batch.tensors.values() if t.dtype.is_floating}),
    }


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
