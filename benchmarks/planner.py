"""--mode auto: its choice against every mode tried.

Stages hold their device for a set time without using the CPU, so every mode can be tried on any machine, through the threads,
slots and processes of a real run. For each workload the planner measures a few batches and chooses; then every mode runs, with
and without kept codes where there are some. Takes about five minutes on an idle machine.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np

from benchmarks.measuring import (
    Windows,
    judge,
    print_row,
    report_result,
    run_bench,
    run_together,
    tell_machine,
    write_cluster,
)
from benchmarks.paced import BATCH_BYTES, make_batch, run_paced
from myxtts.cluster.meeting import open_link
from myxtts.cluster.spec import find_cluster
from myxtts.pipeline.ring import time_ring
from myxtts.training.mode import WORKERS, Candidate, Circumstances, Layout, StageCosts, choose_mode
from myxtts.tuning.profiling import WINDOWS

MOST_REGRET = 0.05
"""How much slower than the best the choice may be."""
FILL_BATCHES, MEASURED_BATCHES = 10, 8
HEAD = """\
Prepare, copy and train hold their device for so many ms per batch; half:
training with half the clips; exch: the exchange of gradients, where both
devices train. Codes are a part of preparing that is done in the first of ep
epochs only, if they are kept (*). The planner takes a mode from a short
measurement; then every mode runs for longer. Lost: what its choice costs over
the fastest.

                                            a batch, ms
prep codes copy train half exch  ep  takes predict reached  fastest lost"""


@dataclass(frozen=True)
class Workload:
    """Milliseconds that each stage holds its device for a batch."""

    prepare_ms: float
    transfer_ms: float
    train_ms: float
    codes_ms: float = 0.0
    """Of preparing, what a cache saves; 0 for a run that can keep no codes."""
    exchange_ms: float = 4.0
    """Of the gradients, where two devices train."""
    half_share: float = 0.5
    """Of the time of training, what it takes with half the clips."""
    epochs: int = 100


WORKLOADS = (
    # Preparing a hundredth, a tenth, half, all and twice of training: a published model, a middle one, small ones.
    *(Workload(40 * ratio, 1, 40) for ratio in (0.01, 0.1, 0.5, 1.0)),
    Workload(40, 1, 20),
    # Gradients that take long to cross, and batches too small to fill a device.
    Workload(0.4, 1, 40, exchange_ms=30),
    Workload(20, 1, 40, half_share=0.9),
    # A slow way between the devices, for batches and for gradients.
    *(Workload(10, transfer, 30, exchange_ms=40) for transfer in (20, 60)),
    Workload(30, 35, 10, exchange_ms=40),
    # Codes that are made once: hidden behind training anyway, not hidden, and in a run too short for it.
    Workload(30, 1, 40, codes_ms=28, exchange_ms=40),
    Workload(30, 1, 10, codes_ms=20, exchange_ms=40),
    Workload(60, 1, 20, codes_ms=55),
    Workload(60, 1, 20, codes_ms=55, exchange_ms=40, epochs=2),
)


def main(words: Sequence[str]) -> None:
    if words[:1] == ["worker"]:
        work_in_turn(*words[1:])
        return
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
        given = (work.prepare_ms, work.codes_ms, work.transfer_ms, work.train_ms, work.train_ms * work.half_share)
        cells = [f"{each:g}" for each in (*given, work.exchange_ms, work.epochs)]
        cells += [f"  {shorten(chosen):<6}", f"{predicted_ms[chosen]:.1f}", f"{reached_ms[chosen]:.1f}"]
        cells += [f"  {shorten(best):<7}", f"{regret:.1%}", f" {judge(regret <= MOST_REGRET, windows.is_quiet)}"]
        print_row((0, 4, 6, 5, 6, 5, 5, 4, 8, 7, 8, 9, 5), "", *cells)
    met = sum(regret <= MOST_REGRET for regret in lost)
    print(f"Target   at most {MOST_REGRET:.0%} lost: {met} of {len(lost)} met, worst {max(lost, default=0.0):.1%}")
    print(windows)


def shorten(name: str) -> str:
    """A candidate in few letters; a star stands for kept codes."""
    layout, _, codes = name.partition(", ")
    return f"{'parallel' if layout == 'data-parallel' else layout:.4}{'*' if codes else ''}"


def try_workload(workload: Workload, batches: int) -> tuple[str, dict[str, float], dict[str, float]]:
    """What the planner chooses, what it predicts for each candidate, and what each one reached: ms per batch, over all epochs."""
    obstacle = None if workload.codes_ms else "There are none."
    around = Circumstances(epochs=workload.epochs, kept_obstacle=obstacle)
    choice = choose_mode(measure_workload(workload), around, devices=("", ""))
    predicted_ms = {str(each.candidate): each.step_s * 1000 for each in choice.predictions}
    reached_ms = {}
    kept = replace(workload, prepare_ms=workload.prepare_ms - workload.codes_ms)
    for layout in Layout:
        reached_ms[str(Candidate(layout))] = online_ms = 1000 * time_mode(layout, workload, batches)
        if workload.codes_ms:
            # The first epoch is one without them.
            later_ms = (workload.epochs - 1) * 1000 * time_mode(layout, kept, batches)
            reached_ms[str(Candidate(layout, keeps_codes=True))] = (online_ms + later_ms) / workload.epochs
    return str(Candidate(choice.layout, choice.keeps_codes)), predicted_ms, reached_ms


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
        single_s=min(time_mode(Layout.SINGLE, workload, MEASURED_BATCHES) for _ in range(WINDOWS)),
        dual_s=min(time_mode(Layout.DUAL, workload, MEASURED_BATCHES) for _ in range(WINDOWS)),
        codes_s=workload.codes_ms / 1000,
        pack_s=pack_s,
        unpack_s=unpack_s,
        exchange_s=workload.exchange_ms / 1000,
        half_share=time_holding(workload.train_ms * workload.half_share) / time_holding(workload.train_ms),
    )


def time_mode(layout: Layout, workload: Workload, batches: int) -> float:
    """Seconds per batch in a mode, after the batches that fill it."""
    prepare_s, train_s, count = workload.prepare_ms / 1000, workload.train_ms / 1000, FILL_BATCHES + batches
    if layout is Layout.DATA_PARALLEL:
        done = run_workers(prepare_s / WORKERS, train_s * workload.half_share, workload.exchange_ms / 1000, count)
    else:
        done = run_paced(str(layout), prepare_s, train_s, count, transfer_s=workload.transfer_ms / 1000)
    return float(np.diff(done[FILL_BATCHES - 1 :]).mean())


def run_workers(*pace: float) -> list[float]:
    """The moments at which the chief of two workers, which meet in every batch over the link of a real run, was done."""
    with TemporaryDirectory(prefix="myxtts-bench-") as folder:
        workers = write_cluster(Path(folder), WORKERS)
        words = [["worker", *worker, json.dumps(pace)] for worker in workers]
        done: list[float] = run_together("benchmarks.planner", words)
    return done


def work_in_turn(path: str, index: str, pace: str) -> None:
    """A worker that holds its device in every batch: prepares, trains, and from the moment all have trained, exchanges."""
    prepare_s, train_s, exchange_s, batches = json.loads(pace)
    spec, done = find_cluster(path, int(index), {}), []
    with open_link(spec) as link:
        for number in range(batches):
            time.sleep(prepare_s)
            link.add_up(f"batch {number}", [0.0] * 6)
            time.sleep(train_s)
            # Nobody's gradients are summed before everybody has them.
            link.add_up(f"gradients {number}", [0.0])
            time.sleep(exchange_s)
            done.append(time.perf_counter())
    if spec.is_chief:
        report_result(done)


if __name__ == "__main__":
    run_bench(main)
