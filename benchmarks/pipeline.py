"""The pipeline: hand-offs, the modes against one device, the ring, the cost of watching.

Parts: a  hand-offs, with stages that only take time     b  the tiny model on two cores: series, dual, isolated, tf.data
       c  the ring in shared memory                      d  the cost of watching a run
All of them take about six minutes on an idle machine with two cores. What each one does: docs/benchmarks.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager
from functools import partial
from itertools import product
from statistics import median
from tempfile import TemporaryDirectory

import numpy as np

from benchmarks.measuring import Child, Windows, print_load, print_machine, run_bench, start_module
from benchmarks.paced import BATCH_BYTES, DUAL, ISOLATED, hold, make_producer, run_paced
from myxtts.pipeline.ring import time_ring

LEAST_EFFICIENCY = {DUAL: 0.97, ISOLATED: 0.95}
MOST_VARIATION = 0.05
JUDGED_MS = 50.0
"""max(p, t), the time of the slower stage, at which hand-offs are judged."""
RATIOS = (0.5, 1.0, 2.0)
"""p / t: preparation time by training time."""
BUSY_PROCESSES = (0, 2)
FILL_BATCHES = 10
ALONE_ITEMS = 20

PREPARE, TRAIN, SERIES, DATASET = "prepare alone", "train alone", "series", "tf.data prefetch"
THREADS, PROCESSES = "side by side, two threads", "side by side, two processes"
PREPARER, TRAINER, BOTH = "preparer", "trainer", "both"
ASKED = {
    TRAIN: TRAINER,
    PREPARE: PREPARER,
    SERIES: TRAINER,
    THREADS: BOTH,
    DUAL: BOTH,
    ISOLATED: TRAINER,
    DATASET: BOTH,
}
"""Contender -> the process that measures it."""
CEILINGS = {DUAL: THREADS, ISOLATED: PROCESSES, DATASET: THREADS}
"""Contender -> the same two stages without a hand-off between them."""
LEAST_SHARE = 0.9
WATCH = "watch"
MOST_WATCH_COST = 0.01
WATCH_WINDOWS, RING_ROUNDS = 5, 40


def main(words: Sequence[str]) -> None:
    raw = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(prog="benchmarks.pipeline", description=__doc__, formatter_class=raw)
    parser.add_argument("--part", action="append", choices=tuple("abcd"), help="only this one; may be given again")
    parser.add_argument("--paced-batches", type=int, default=200, metavar="N", help="of each run in a (default: 200)")
    parser.add_argument("--batches", type=int, default=14, metavar="N", help="of each window in b (default: 14)")
    parser.add_argument(
        "--hand-overs", type=int, default=400, metavar="N", help="of the round trip in c (default: 400)"
    )
    parser.add_argument(
        "--rounds", type=int, default=3, metavar="N", help="windows of each contender in b (default: 3)"
    )
    parser.add_argument("--updates", type=int, default=10, metavar="N", help="of each window in d (default: 10)")
    parser.add_argument(
        "--slowest-ms", type=float, action="append", metavar="N", help="max(p, t) in a (default: 50, 10)"
    )
    arguments = parser.parse_args(words)
    parts = set(arguments.part or "abcd")
    print_machine()
    if "a" in parts:
        bench_hand_offs(arguments.paced_batches, arguments.slowest_ms or (JUDGED_MS, 10.0))
    if "b" in parts:
        bench_modes(arguments.batches, arguments.rounds)
    if "c" in parts:
        bench_ring(arguments.hand_overs)
    if "d" in parts:
        bench_watch(arguments.updates)
    print_load("after")


def bench_hand_offs(batches: int, all_slowest_ms: Sequence[float]) -> None:
    """Efficiency is the slowest stage's time alone, divided by the time per batch in the running pipeline."""
    print(f"a  Hand-offs: {batches} batches of {BATCH_BYTES >> 20} MB through stages that hold their")
    print("   device for a set time without using the CPU. It proves the hand-offs, nothing\n   else. Times in ms.\n")
    print("host    engine    max(p,t)  p/t  alone  per batch  efficiency  variation", flush=True)
    windows, verdicts = Windows(), []
    for busy in BUSY_PROCESSES:
        with keep_busy(busy):
            for slowest_ms, ratio, mode in product(all_slowest_ms, RATIOS, (DUAL, ISOLATED)):
                alone_s, intervals = windows.find_quiet(partial(time_paced, mode, slowest_ms / 1e3, ratio, batches))
                batch_s, variation = intervals.mean(), intervals.std() / intervals.mean()
                is_met = alone_s / batch_s >= LEAST_EFFICIENCY[mode] and variation < MOST_VARIATION
                verdict = windows.judge(is_met, windows.is_quiet) if slowest_ms == JUDGED_MS else ""
                verdicts += [verdict] if verdict else []
                row = f"{f'{busy} busy' if busy else 'idle':<7} {mode:<9} {slowest_ms:>8.0f} {ratio:>4g} {alone_s * 1e3:>6.2f} "
                row += f"{batch_s * 1e3:>10.2f} {alone_s / batch_s:>11.3f} {variation:>10.3f}  {verdict}"
                print(row.rstrip(), flush=True)
    least = ", ".join(f"{share} {mode}" for mode, share in LEAST_EFFICIENCY.items())
    told = ", ".join(f"{verdicts.count(word)} {word}" for word in ("met", "missed", "noisy") if word in verdicts)
    print(f"Target   at {JUDGED_MS:g} ms: efficiency at least {least},")
    print(f"         variation below {MOST_VARIATION}: {told}\n{windows}\n", flush=True)


def time_paced(mode: str, slowest_s: float, ratio: float, batches: int) -> tuple[float, np.ndarray]:
    """Seconds of the slower stage alone, before and after the run, and those of each batch in the run."""
    before_s = time_alone(slowest_s)
    done = run_paced(mode, slowest_s * min(1.0, ratio), slowest_s * min(1.0, 1.0 / ratio), batches)
    return (before_s + time_alone(slowest_s)) / 2, np.diff(done[min(FILL_BATCHES, batches // 2) :])


def time_alone(seconds: float) -> float:
    started = time.perf_counter()
    for _ in range(ALONE_ITEMS):
        hold(seconds)
    return (time.perf_counter() - started) / ALONE_ITEMS


@contextmanager
def keep_busy(processes: int) -> Iterator[None]:
    """So many processes compute without a pause, from before the block begins until it ends."""
    ended, end = os.pipe()
    code = "import select, sys; print('1', flush=True)\n"
    code += f"while not select.select([{ended}], [], [], 0)[0]:\n  for _ in range(200_000): pass"
    with ExitStack() as stack:
        # Whoever looks at the pipe sees that it is over when its other end is closed.
        stack.callback(os.close, ended)
        spinners = [
            stack.enter_context(Child([sys.executable, "-c", code], pass_fds=[ended])) for _ in range(processes)
        ]
        stack.callback(os.close, end)
        for spinner in spinners:
            spinner.receive()
        yield


@contextmanager
def start_process(name: str) -> Iterator[Child]:
    """A process of parts b and d, ready and idle."""
    with (
        TemporaryDirectory(prefix="myxtts-bench-") as folder,
        start_module("benchmarks.pipeline_processes", name, folder) as process,
    ):
        process.ask(None)
        yield process


def bench_modes(batches: int, rounds: int) -> None:
    """Medians over windows in which all contenders take turns, on rehearsal devices of one core each."""
    windows = Windows()
    with ExitStack() as stack:
        processes = {name: stack.enter_context(start_process(name)) for name in (PREPARER, TRAINER, BOTH)}

        def time_both() -> float:
            """Both stages in two processes at the same time; over when the slower is done."""
            processes[PREPARER].send([PREPARE, batches])
            processes[TRAINER].send([TRAIN, batches])
            return max(float(processes[name].receive()) for name in (PREPARER, TRAINER))

        contenders = {name: partial(processes[process].ask, [name, batches]) for name, process in ASKED.items()}
        taken = windows.take_turns({**contenders, PROCESSES: time_both}, rounds)
    ms = {name: [1e3 * seconds / batches for seconds in found] for name, found in taken.items()}
    batch = {name: median(found) for name, found in ms.items()}
    gain = {name: batch[SERIES] / each for name, each in batch.items()}
    share = {name: batch[ceiling] / batch[name] for name, ceiling in CEILINGS.items()}
    has_two_cores = len(os.sched_getaffinity(0)) > 1
    verdicts = {name: windows.judge(share[name] >= LEAST_SHARE) if has_two_cores else "-" for name in (DUAL, ISOLATED)}
    print("b  The tiny model on rehearsal devices of one core each, real clips, no cache\n")
    print("                            ms/batch  least   most  x series  of ceiling")
    for name in (PREPARE, TRAIN, SERIES, THREADS, PROCESSES, DUAL, ISOLATED, DATASET):
        row = f"{name:<27} {batch[name]:>8.0f} {min(ms[name]):>6.0f} {max(ms[name]):>6.0f}"
        row += f" {gain[name]:>9.2f}" if name not in (PREPARE, TRAIN) else ""
        row += f" {share[name]:>11.2f}" if name in share else ""
        print(f"{row}  {verdicts.get(name, '')}".rstrip())
    bound = 1 + min(batch[PREPARE], batch[TRAIN]) / max(batch[PREPARE], batch[TRAIN])
    print(f"\nBound    1 + min/max = {bound:.2f} times the series (p/t = {batch[PREPARE] / batch[TRAIN]:.2f})")
    print(
        f"Ceiling  side by side without a hand-off: {gain[THREADS]:.2f} by two threads, {gain[PROCESSES]:.2f} by processes"
    )
    print(
        f"Target   at least {LEAST_SHARE} of its ceiling: dual {verdicts[DUAL]}, isolated {verdicts[ISOLATED]}\n{windows}"
    )
    print(
        "" if has_two_cores else "Warning  one core only: nothing can run side by side, so nothing is judged\n",
        flush=True,
    )


def bench_ring(hand_overs: int) -> None:
    windows = Windows()

    def measure() -> list[float]:
        return [*time_ring(BATCH_BYTES, RING_ROUNDS), time_hand_over(hand_overs)]

    speeds = [BATCH_BYTES / seconds / 1e9 for seconds in windows.find_quiet(measure)]
    print(f"c  The ring: batches of {BATCH_BYTES >> 20} MB in shared memory, GB/s\n")
    for what, speed in zip(
        ("pack into a slot", "copy out of a slot", "round trip from process to process"), speeds, strict=True
    ):
        print(f"{what:<36} {speed:>7.2f}")
    print(f"{windows}\n", flush=True)


def time_hand_over(count: int) -> float:
    """The median time between two batches of a producer that has nothing to do but to pack."""
    with closing(make_producer(0.0, count, BATCH_BYTES)) as producer:
        moments = []
        for _ in range(count):
            [np.array(view) for view in producer.take().arrays.values()]
            producer.release()
            moments.append(time.perf_counter())
    return float(np.median(np.diff(moments)))


def bench_watch(updates: int) -> None:
    """What the watch of a real run takes by its own account."""
    windows = Windows()
    with start_process(WATCH) as process:
        taken: list[list[float]] = windows.find_quiet(partial(process.ask, [WATCH, updates]))
    update_ms, inside_ms = ([1e3 * seconds / updates for seconds in each] for each in zip(*taken, strict=True))
    share = median(inside / update for inside, update in zip(inside_ms, update_ms, strict=True))
    print("d  Watching: a run on two devices with metrics, view and TensorBoard\n")
    print(f"ms per update: {median(update_ms):.1f} ({min(update_ms):.1f} to {max(update_ms):.1f})")
    print(f"Inside   the watch: {median(inside_ms):.2f} ms, {share:.2%}: its calls, and its threads on the processor")
    print(
        f"Target   below {MOST_WATCH_COST:.0%} inside: {windows.judge(share < MOST_WATCH_COST)}\n{windows}\n",
        flush=True,
    )


if __name__ == "__main__":
    run_bench(main)
