"""The pipeline: hand-offs, the modes against one device, the ring, the cost of watching.

Parts: a  hand-offs, with stages that only take time     b  the tiny model on two cores: series, dual, isolated, tf.data
       c  the ring in shared memory                      d  the cost of watching a run
All together take about six minutes on an idle machine with two cores. What each one does: docs/benchmarks.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager
from functools import partial
from itertools import product
from statistics import median
from tempfile import TemporaryDirectory

import numpy as np

from benchmarks.measuring import Child, Windows, judge, print_row, run_bench, start_module, tell_machine
from benchmarks.paced import BATCH_BYTES, DUAL, ISOLATED, make_producer, run_paced
from myxtts.pipeline.ring import time_ring

BATCHES = {"a": 200, "b": 14, "c": 400, "d": 10}
"""Of each window; in d updates."""
LEAST_EFFICIENCY = {DUAL: 0.97, ISOLATED: 0.95}
MOST_VARIATION = 0.05
JUDGED_MS, REPORTED_MS = 50, 10
"""max(p, t), the time of the slower stage, at which hand-offs are judged, and at which they are only reported."""
RATIOS = (0.5, 1.0, 2.0)
"""p / t: preparation time by training time."""
BUSY_PROCESSES = (0, 2)
BUSY = (
    "import select\nprint(1, flush=True)\nwhile not select.select([0], [], [], 0)[0]:\n  for _ in range(200_000): pass"
)
"""Computes without a pause until its standard input is closed."""
FILL_BATCHES, ALONE_ITEMS = 10, 20

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
    parser.add_argument("--part", action="append", choices=tuple(BATCHES), help="only this one; may be given again")
    defaults = ", ".join(f"{part} {batches}" for part, batches in BATCHES.items())
    parser.add_argument("--batches", type=int, metavar="N", help=f"of each window (default: {defaults})")
    parser.add_argument("--rounds", type=int, default=3, metavar="N", help="windows of a contender in b (default: 3)")
    arguments = parser.parse_args(words)
    benches = {"a": bench_hand_offs, "b": partial(bench_modes, arguments.rounds), "c": bench_ring, "d": bench_watch}
    with tell_machine():
        for part, bench in benches.items():
            if part in (arguments.part or BATCHES):
                windows = Windows()
                bench(windows, arguments.batches or BATCHES[part])
                print(f"{windows}\n", flush=True)


def bench_hand_offs(windows: Windows, batches: int) -> None:
    """Efficiency is the slowest stage's time alone, divided by the time per batch in the running pipeline."""
    print(f"a  Hand-offs: {batches} batches of {BATCH_BYTES >> 20} MB through stages that hold their")
    print("   device for a set time without using the CPU. It proves the hand-offs, nothing\n   else. Times in ms.\n")
    widths, verdicts = (18, 8, 5, 7, 11, 12, 11), []
    print_row(widths, "host    engine", "max(p,t)", "p/t", "alone", "per batch", "efficiency", "variation")
    for busy in BUSY_PROCESSES:
        with ExitStack() as stack:
            for _ in range(busy):
                stack.enter_context(Child([sys.executable, "-c", BUSY])).receive()
            for slowest_ms, ratio, mode in product((JUDGED_MS, REPORTED_MS), RATIOS, (DUAL, ISOLATED)):
                alone_s, intervals = windows.find_quiet(partial(time_paced, mode, slowest_ms / 1e3, ratio, batches))
                batch_s, variation = intervals.mean(), intervals.std() / intervals.mean()
                is_met = alone_s / batch_s >= LEAST_EFFICIENCY[mode] and variation < MOST_VARIATION
                verdict = judge(is_met, windows.is_quiet) if slowest_ms == JUDGED_MS else ""
                verdicts.append(verdict)
                cells = [f"{slowest_ms}", f"{ratio:g}", f"{alone_s * 1e3:.2f}", f"{batch_s * 1e3:.2f}"]
                cells += [f"{alone_s / batch_s:.3f}", f"{variation:.3f}", f"  {verdict}"]
                print_row(widths, f"{f'{busy} busy' if busy else 'idle':<7} {mode}", *cells)
    least = ", ".join(f"{share} {mode}" for mode, share in LEAST_EFFICIENCY.items())
    told = ", ".join(f"{verdicts.count(word)} {word}" for word in ("met", "missed", "noisy") if word in verdicts)
    print(f"Target   at {JUDGED_MS} ms: efficiency at least {least},")
    print(f"         variation below {MOST_VARIATION}: {told}")


def time_paced(mode: str, slowest_s: float, ratio: float, batches: int) -> tuple[float, np.ndarray]:
    """Seconds of the slower stage alone, before and after the run, and those of each batch in the run."""

    def time_alone(items: int) -> float:
        started = time.perf_counter()
        for _ in range(items):
            time.sleep(slowest_s)
        return (time.perf_counter() - started) / items

    items = min(ALONE_ITEMS, batches)
    before_s = time_alone(items)
    done = run_paced(mode, slowest_s * min(1.0, ratio), slowest_s * min(1.0, 1.0 / ratio), batches)
    return (before_s + time_alone(items)) / 2, np.diff(done[min(FILL_BATCHES, batches // 2) :])


@contextmanager
def start_process(name: str) -> Iterator[Child]:
    """A process of parts b and d, ready and idle."""
    with (
        TemporaryDirectory(prefix="myxtts-bench-") as folder,
        start_module("benchmarks.pipeline_processes", name, folder) as process,
    ):
        process.ask(None)
        yield process


def bench_modes(rounds: int, windows: Windows, batches: int) -> None:
    """Medians over windows in which all contenders take turns, on rehearsal devices of one core each."""
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
    verdicts = {name: windows.judge(share[name] >= LEAST_SHARE) for name in (DUAL, ISOLATED)}
    print("b  The tiny model on rehearsal devices of one core each, real clips, no cache\n")
    widths = (27, 9, 7, 7, 10, 12)
    print_row(widths, "", "ms/batch", "least", "most", "x series", "of ceiling")
    for name in (PREPARE, TRAIN, SERIES, THREADS, PROCESSES, DUAL, ISOLATED, DATASET):
        cells = [f"{each:.0f}" for each in (batch[name], min(ms[name]), max(ms[name]))]
        cells += [f"{gain[name]:.2f}"] if name not in (PREPARE, TRAIN) else []
        cells += [f"{share[name]:.2f}", f"  {verdicts.get(name, '')}"] if name in share else []
        print_row(widths, name, *cells)
    bound = 1 + min(batch[PREPARE], batch[TRAIN]) / max(batch[PREPARE], batch[TRAIN])
    ceilings = f"{gain[THREADS]:.2f} by two threads, {gain[PROCESSES]:.2f} by processes"
    print(f"\nBound    1 + min/max = {bound:.2f} times the series (p/t = {batch[PREPARE] / batch[TRAIN]:.2f})")
    print(f"Ceiling  side by side without a hand-off: {ceilings}")
    print(f"Target   at least {LEAST_SHARE} of its ceiling: dual {verdicts[DUAL]}, isolated {verdicts[ISOLATED]}")


def bench_ring(windows: Windows, batches: int) -> None:
    pack_s, unpack_s, trip_s = windows.find_quiet(
        lambda: [*time_ring(BATCH_BYTES, RING_ROUNDS), time_hand_over(batches)]
    )
    print(f"c  The ring: batches of {BATCH_BYTES >> 20} MB in shared memory, GB/s\n")
    taken_s = {"pack into a slot": pack_s, "copy out of a slot": unpack_s, "round trip from process to process": trip_s}
    for what, seconds in taken_s.items():
        print_row((36, 8), what, f"{BATCH_BYTES / seconds / 1e9:.2f}")


def time_hand_over(count: int) -> float:
    """The median time between two batches of a producer that has nothing to do but to pack."""
    with closing(make_producer(0.0, count)) as producer:
        moments = []
        for _ in range(count):
            [np.array(view) for view in producer.take().arrays.values()]
            producer.release()
            moments.append(time.perf_counter())
    return float(np.median(np.diff(moments)))


def bench_watch(windows: Windows, updates: int) -> None:
    """What the watch of a real run takes by its own account."""
    with start_process(WATCH) as process:
        taken: list[list[float]] = windows.find_quiet(partial(process.ask, [WATCH, updates]))
    update_ms, inside_ms = ([1e3 * seconds / updates for seconds in each] for each in zip(*taken, strict=True))
    share = median(inside / update for inside, update in zip(inside_ms, update_ms, strict=True))
    print("d  Watching: a run on two devices with metrics, view and TensorBoard\n")
    print(f"ms per update: {median(update_ms):.1f} ({min(update_ms):.1f} to {max(update_ms):.1f})")
    print(f"Inside   the watch: {median(inside_ms):.2f} ms, {share:.2%}: its calls, and its threads on the processor")
    print(f"Target   below {MOST_WATCH_COST:.0%} inside: {windows.judge(share < MOST_WATCH_COST)}")


if __name__ == "__main__":
    run_bench(main)
