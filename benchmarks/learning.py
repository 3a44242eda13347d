"""Learning from nothing: clips a second of the tiny model, with a voice prompt for each clip and with shared ones.

All settings train in one process, an epoch each in turn, single mode, two threads; codes are kept in memory and known before the
first epoch that counts. Settings differ in nothing else. The clips are those of the demo corpus unless others are given.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

# First: it imports TensorFlow without its remarks.
from myxtts.devices import runtime

# isort: split
from benchmarks.measuring import Windows, print_row, run_bench, tell_machine
from myxtts.config import XTTSConfig
from myxtts.devices.machine import read_machine
from myxtts.devices.plan import PlanRequest
from myxtts.devices.planning import plan_devices
from myxtts.tuning.profiling import MeasuredTraining, set_up_profile
from myxtts.utils.commons import get_device_context

BEFORE, SHARED, NARROW = "a prompt for each clip", "shared prompts", "shared prompts, bfloat16"
SETTINGS: dict[str, dict[str, Any]] = {
    BEFORE: {"prompt_from": "speaker"},
    SHARED: {"prompt_from": "shared"},
    NARROW: {"prompt_from": "shared", "mixed_precision": "mixed_bfloat16"},
}
AIM = 2.0
"""Times the clips a second of one prompt for each."""
WARM_EPOCHS = 2
WIDTHS = (26, 12, 12, 8, 14, 8)


class Epoch(NamedTuple):
    """What an epoch took."""

    clips: int
    seconds: float
    processor_s: float
    """Of this process; readers are others."""


def main(words: Sequence[str]) -> None:
    parser = argparse.ArgumentParser(prog="benchmarks.learning", description=__doc__)
    parser.add_argument("--train-data", metavar="DIR", help="a corpus (default: the demo corpus)")
    parser.add_argument("--batch-size", type=int, default=16, metavar="N", help="(default: 16)")
    parser.add_argument("--rounds", type=int, default=6, metavar="N", help="epochs of each setting (default: 6)")
    chosen = parser.parse_args(words)
    with tell_machine(), ExitStack() as stack:
        windows = Windows()
        runtime.set_thread_pools(2, 2)
        contenders = {name: open_learning(chosen, name, stack) for name in SETTINGS}
        taken = windows.take_turns(contenders, chosen.rounds)
        print_row(WIDTHS, "", "clips/s", "ms/clip", "x", "processor ms", "x")
        rates = {name: median(each.clips / each.seconds for each in epochs) for name, epochs in taken.items()}
        costs = {name: median(each.processor_s / each.clips for each in epochs) for name, epochs in taken.items()}
        for name, rate in rates.items():
            times = f"{rate / rates[BEFORE]:.2f}", f"{costs[BEFORE] / costs[name]:.2f}"
            cells = (f"{rate:.2f}", f"{1e3 / rate:.1f}", times[0], f"{1e3 * costs[name]:.1f}", times[1])
            print_row(WIDTHS, name, *cells)
        gains = {name: rate / rates[BEFORE] for name, rate in rates.items()}
        told = ", ".join(f"{name} {gains[name]:.2f} {windows.judge(gains[name] >= AIM)}" for name in (SHARED, NARROW))
        print(f"\nTarget   at least {AIM:g} times the clips a second: {told}\n{windows}")


def open_learning(chosen: argparse.Namespace, name: str, stack: ExitStack) -> Callable[[], Epoch]:
    """What trains for an epoch with a setting, warm."""
    folder = Path(stack.enter_context(TemporaryDirectory(prefix="myxtts-bench-")))
    config = XTTSConfig(
        model={"size": "tiny"},
        data={"train_data": chosen.train_data, "batch_size": chosen.batch_size, "cache": "memory", **SETTINGS[name]},
        training={"rehearsal": True, "mode": "single", "checkpoint_dir": str(folder)},
    )
    plan = plan_devices(PlanRequest.from_config(config), read_machine())
    runtime.apply_plan(plan)
    setup = set_up_profile(config, plan, folder)
    with get_device_context(plan.model.device):
        training = MeasuredTraining(setup)
    source = setup.open_batches()
    stack.callback(source.close)

    def learn() -> Epoch:
        clips, began, used = 0, time.perf_counter(), time.process_time()
        for _ in range(setup.data.sampler.steps_per_epoch):
            batch = source.take()
            with get_device_context(plan.model.device):
                training.dispatch(batch)
            source.advance()
            source.release()
            clips += batch.info.facts.clips
        training.settle()
        return Epoch(clips, time.perf_counter() - began, time.process_time() - used)

    for _ in range(WARM_EPOCHS):
        learn()
    return learn


if __name__ == "__main__":
    run_bench(main)
