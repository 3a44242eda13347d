"""--mode auto: its choice against every mode tried.

Stages hold their device for a set time without using the CPU, so every mode can be tried on any machine, through the threads,
slots and processes of a real run. For each workload the planner measures a few batches and chooses; then every mode runs, with
and without kept codes where there are some. Takes about five minutes on an idle machine.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import partial

import numpy as np

from benchmarks.measuring import Windows, judge, print_row, run_bench, tell_machine
from benchmarks.paced import BATCH_BYTES, make_batch, run_paced
from myxtts.devices.plan import Mode
from myxtts.pipeline.ring import time_ring
from myxtts.training.mode import MODES, Circumstances, Prediction, StageCosts, choose_mode
from myxtts.tuning.profiling import WINDOWS

MOST_REGRET = 0.05
"""How much slower than the best the choice may be."""
FILL_BATCHES, MEASURED_BATCHES = 10, 8
HEAD = """\
Prepare, copy and train hold their device for so many ms per batch. Codes are a
part of preparing that is done in the first of ep epochs only, if they are kept
(*). The planner takes a mode from a short measurement; then every mode runs
for longer. Lost: what its choice costs over the fastest.

                                  a batch, ms
prep codes copy train  ep  takes predict reached  fastest lost"""


@dataclass(frozen=True)
class Workload:
    """Milliseconds that each stage holds its device for a batch."""

    prepare_ms: float
    transfer_ms: float
    train_ms: float
    codes_ms: float = 0.0
    """Of preparing, what a cache saves; 0 for a run that can keep no codes."""
    epochs: int = 100


WORKLOADS = (
    # Preparing a hundredth, a tenth, half, all and twice of training: a published model, a middle one, small ones.
    *(Workload(40 * ratio, 1, 40) for ratio in (0.01, 0.1, 0.5, 1.0)),
    Workload(40, 1, 20),
    # A slow way between the devices.
    *(Workload(10, transfer, 30) for transfer in (20, 60)),
    Workload(30, 35, 10),
    # Codes that are made once: hidden behind training anyway, not hidden, and in a run too short for it.
    Workload(30, 1, 40, codes_ms=28),
    Workload(30, 1, 10, codes_ms=20),
    Workload(60, 1, 20, codes_ms=55),
    Workload(60, 1, 20, codes_ms=55, epochs=2),
)


def main(words: Sequence[str]) -> None:
    parser = argparse.ArgumentParser(prog="benchmarks.planner", description=__doc__)
    parser.add_argument("--workloads", type=int, default=len(WORKLOADS), metavar="N", help="only the last so many")
    parser.add_argument("--batches", type=int, default=60, metavar="N", help="of each mode that is tried (default: 60)")
    arguments = parser.parse_args(words)
    with tell_machine():
        bench_choices(WORKLOADS[-arguments.workloads :], arguments.batches)


def bench_choices(workloads: Sequence[Workload], batches: int) -> None:
    print(HEAD, flush=True)
    windows, lost = Windows(), []
    for work in workloads:
        chosen, predicted_ms, reached_ms = windows.find_quiet(partial(try_workload, work, batches))
        best = min(reached_ms, key=reached_ms.__getitem__)
        regret = reached_ms[chosen] / reached_ms[best] - 1
        lost += [regret] if windows.is_quiet else []
        cells = [f"{each:g}" for each in (work.prepare_ms, work.codes_ms, work.transfer_ms, work.train_ms, work.epochs)]
        cells += [f"  {shorten(chosen):<6}", f"{predicted_ms[chosen]:.1f}", f"{reached_ms[chosen]:.1f}"]
        cells += [f"  {shorten(best):<7}", f"{regret:.1%}", f" {judge(regret <= MOST_REGRET, windows.is_quiet)}"]
        print_row((0, 4, 6, 5, 6, 4, 8, 7, 8, 9, 5), "", *cells)
    met = sum(regret <= MOST_REGRET for regret in lost)
    print(f"Target   at most {MOST_REGRET:.0%} lost: {met} of {len(lost)} met, worst {max(lost, default=0.0):.1%}")
    print(windows)


def shorten(name: str) -> str:
    """A mode in few letters; a star stands for kept codes."""
    mode, _, codes = name.partition(", ")
    return f"{mode:.4}{'*' if codes else ''}"


def try_workload(workload: Workload, batches: int) -> tuple[str, dict[str, float], dict[str, float]]:
    """What the planner chooses, what it predicts for each candidate, and what each one reached: ms per batch, over all epochs."""
    obstacle = None if workload.codes_ms else "There are none."
    around = Circumstances(epochs=workload.epochs, kept_obstacle=obstacle)
    choice = choose_mode(measure_workload(workload), around, devices=("", ""))
    predicted_ms = {str(each): each.step_s * 1000 for each in choice.predictions}
    reached_ms = {}
    kept = replace(workload, prepare_ms=workload.prepare_ms - workload.codes_ms)
    for mode in MODES:
        reached_ms[str(mode)] = online_ms = 1000 * time_mode(mode, workload, batches)
        if workload.codes_ms:
            # The first epoch is one without them.
            later_ms = (workload.epochs - 1) * 1000 * time_mode(mode, kept, batches)
            reached_ms[str(Prediction(mode, True, 0.0))] = (online_ms + later_ms) / workload.epochs
    return str(Prediction(choice.layout, choice.keeps_codes, 0.0)), predicted_ms, reached_ms


def measure_workload(workload: Workload) -> StageCosts:
    """What a planner finds out about a workload from a few batches."""
    batch = make_batch()

    def time_holding(ms: float, copied: Iterable[np.ndarray] = ()) -> float:
        began = time.perf_counter()
        for _ in range(MEASURED_BATCHES):
            time.sleep(ms / 1000)
            [np.array(array) for array in copied]
        return (time.perf_counter() - began) / MEASURED_BATCHES

    pack_s, unpack_s = time_ring(BATCH_BYTES, MEASURED_BATCHES)
    return StageCosts(
        prepare_s=time_holding(workload.prepare_ms),
        transfer_s=time_holding(workload.transfer_ms, list(batch.values())),
        train_s=time_holding(workload.train_ms),
        single_s=min(time_mode(Mode.SINGLE, workload, MEASURED_BATCHES) for _ in range(WINDOWS)),
        dual_s=min(time_mode(Mode.DUAL, workload, MEASURED_BATCHES) for _ in range(WINDOWS)),
        codes_s=workload.codes_ms / 1000,
        pack_s=pack_s,
        unpack_s=unpack_s,
    )


def time_mode(mode: Mode, workload: Workload, batches: int) -> float:
    """Seconds per batch in a mode, after the batches that fill it."""
    stages_s = (workload.prepare_ms / 1000, workload.train_ms / 1000)
    done = run_paced(str(mode), *stages_s, FILL_BATCHES + batches, transfer_s=workload.transfer_ms / 1000)
    return float(np.diff(done[FILL_BATCHES - 1 :]).mean())


if __name__ == "__main__":
    run_bench(main)
