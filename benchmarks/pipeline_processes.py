"""The processes behind parts b and d of the pipeline bench: `python -m benchmarks.pipeline_processes NAME FOLDER`.

Each has its devices, is warmed up once, and answers (contender, batches) with seconds, once everything stands still again.
"""

from __future__ import annotations

import itertools
import logging
import os
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, ClassVar, Self

import psutil

# First: it imports TensorFlow without its remarks.
from myxtts.devices import runtime

# isort: split
import tensorflow as tf

from benchmarks import pipeline as bench
from benchmarks.measuring import answer_questions
from myxtts.config import XTTSConfig
from myxtts.devices.machine import read_machine
from myxtts.devices.plan import Mode, PlanRequest, Process, put_on_one_device
from myxtts.devices.planning import plan_devices
from myxtts.pipeline.batch import Batch
from myxtts.pipeline.batches import Batches, PipedBatches, place_batch
from myxtts.pipeline.factory import BatchFactory
from myxtts.pipeline.threads import SLOTS, Feed, Handoff, WorkerThread
from myxtts.training import trainer as story
from myxtts.training.run_log import RunLog
from myxtts.training.trainer import XTTSTrainer
from myxtts.tuning.profiling import NEVER, MeasuredTraining, ProfileSetup, set_up_profile
from myxtts.utils.commons import get_device_context

INTRA_OP, INTER_OP = 1, 8
"""One core for a device comes from running each call in one thread (`keep_to_one_core`), not from the pools. A call that
waits for one within it holds a thread of the inter-op pool: with two of them, two devices stood still for ever."""
DVAE_WIDTH = 512
"""The published codec's, which is what a fine-tuned model prepares with. A tiny one would cost next to nothing."""
READY = 2 * SLOTS + 2
"""Batches that a pipeline which stood still has ready at most. A window that starts with them shows training alone for as long
as they last, and two stages of nearly the same speed can live on them for a whole window."""
WARM_UP = 2
"""Batches until a pipeline that starts empty is at its own speed."""
LOOK_SECONDS, IDLE_SHARE, MOST_IDLE_WAIT_S = 0.1, 0.1, 20.0

Contenders = Mapping[str, Callable[[int], Any]]


def make_config(folder: Path, mode: Mode, **training: Any) -> XTTSConfig:
    """A small run: the tiny model, some clips of the demo corpus, no cache."""
    # All clips in one bucket: every batch costs the same, and one shape is traced.
    clips = {"min_clip_seconds": 2.61, "max_clip_seconds": 2.965, "max_text_length": 32, "prompt_seconds": 1.0}
    # Reading belongs to preparing here: reader processes would need a core of their own.
    reading = {"num_workers": 0, "use_tf_native_loading": False, "prefetch_buffer_size": 3, "model_start_delay": 0.0}
    return XTTSConfig(
        model={"size": "tiny", "dvae_width": DVAE_WIDTH},
        data={"batch_size": 4, "cache": "off", **clips, **reading},
        training={"rehearsal": True, "mode": str(mode), "checkpoint_dir": str(folder), **training},
    )


def set_up(folder: Path, mode: Mode) -> ProfileSetup:
    """The run with a codec of random weights, its plan in force in this process."""
    config = make_config(folder, mode)
    plan = plan_devices(PlanRequest.from_config(config), read_machine())
    runtime.set_thread_pools(INTRA_OP, INTER_OP)
    runtime.apply_plan(plan, Process.TRAINER)
    return set_up_profile(config, plan, folder)


def keep_to_one_core() -> Any:
    """A scope in which a graph runs in the thread that calls it. Otherwise one device takes up to 1.6 cores."""
    return tf.experimental.function_executor_type("SINGLE_THREADED_EXECUTOR")


def open_preparation(setup: ProfileSetup, stack: ExitStack) -> Callable[..., Batch]:
    """What makes the next batch, really made, on one core."""
    factory, numbers = BatchFactory(setup.data, setup.make_recipe()), itertools.count()
    stack.callback(factory.close)
    with keep_to_one_core():
        factory.warm_up()

    def prepare(_: int = 0) -> Batch:
        with keep_to_one_core():
            batch = factory.make(next(numbers))
        return factory.finish(batch, on_host=False)

    return prepare


def open_training(setup: ProfileSetup) -> Callable[[Batch], None]:
    """What trains on a batch, on one core, and waits for it."""
    device = setup.plan.model.device
    with get_device_context(device):
        training = MeasuredTraining(setup)

    def train(batch: Batch) -> None:
        # Not around the source too: one that prepares in this thread was not traced for one core.
        with get_device_context(device), keep_to_one_core():
            training.train(batch)

    return train


def train_next(train: Callable[[Batch], None], source: Batches) -> Batch:
    """Trains on the next batch of a source, which is given back."""
    batch = source.take()
    train(batch)
    source.advance()
    source.release()
    return batch


def time_calls(work: Callable[[], object], count: int, warm_up: int = 0) -> float:
    """Seconds of so many calls, after some that are not counted."""
    for _ in range(warm_up):
        work()
    started = time.perf_counter()
    for _ in range(count):
        work()
    return time.perf_counter() - started


def time_pipeline(train: Callable[[Batch], None], source: Batches, batches: int) -> float:
    """Seconds for so many batches of a pipeline that has stood still."""
    for _ in range(READY):
        train_next(lambda batch: None, source)
    return time_calls(partial(train_next, train, source), batches, WARM_UP)


def open_dual_source(setup: ProfileSetup, stack: ExitStack) -> PipedBatches:
    """The dual mode's stages and hand-offs, with a data thread that keeps to one core."""
    prepared: Handoff[Any] = Handoff("prepared", setup.config.data.prefetch_depth)
    thread = WorkerThread("prepare", open_preparation(setup, stack), Feed(iter(range(NEVER))), prepared)
    source = PipedBatches(setup.make_recipe(), prepared, threads=[thread], close_source=lambda: None)
    return stack.enter_context(closing(source))


def iterate_dataset(prepare: Callable[..., Batch], batches: int) -> Iterator[Batch]:
    """So many batches through `tf.data`, made in its own thread and prefetched as deep as our slots are."""
    first = prepare()
    signature = {name: tf.TensorSpec([None] * len(each.shape), each.dtype) for name, each in first.tensors.items()}

    def generate() -> Iterator[dict[str, Any]]:
        for _ in range(batches):
            yield prepare().tensors

    for tensors in tf.data.Dataset.from_generator(generate, output_signature=signature).prefetch(SLOTS):
        yield Batch(tensors, first.info)


class TimedWatch(RunLog):
    """A watch that adds up what it takes: its calls, and its threads on the processor."""

    moments: ClassVar[list[tuple[float, float]]] = []
    """Of every batch of the last stage: when it came, and what the watch had taken until then, in seconds."""

    def __init__(self, *arguments: Any, **facts: Any):
        self._calls_s = 0.0
        self.moments.clear()
        self._others = set(threading.enumerate())
        super().__init__(*arguments, **facts)

    def __enter__(self) -> Self:
        super().__enter__()
        own = set(threading.enumerate()) - self._others
        self._clocks = [time.pthread_getcpuclockid(thread.ident) for thread in own if thread.ident is not None]
        return self

    def count_batch(self, *facts: Any, **more: Any) -> None:
        self.moments.append((time.perf_counter(), self._calls_s + sum(map(time.clock_gettime, self._clocks))))
        self._time(super().count_batch, *facts, **more)

    def end_phase(self, *facts: Any, **more: Any) -> None:
        self._time(super().end_phase, *facts, **more)

    def log_steps(self, **facts: Any) -> None:
        self._time(super().log_steps, **facts)

    def _time(self, call: Callable[..., None], *facts: Any, **more: Any) -> None:
        started = time.perf_counter()
        call(*facts, **more)
        self._calls_s += time.perf_counter() - started


def run_watched(folder: Path, updates: int) -> list[tuple[float, float]]:
    """Of some windows of so many updates of a real run on two devices: seconds, and those that the watch took of them."""
    story.RunLog = TimedWatch
    last = WARM_UP + 1 + bench.WATCH_WINDOWS * updates
    # Its codec is trained for a step, in a stage with a watch of its own.
    XTTSTrainer(make_config(folder, Mode.DUAL, codec_steps=1, speak=False, max_steps=last)).train()
    marks = TimedWatch.moments[WARM_UP::updates]
    return [(end - start, own_end - own_start) for (start, own_start), (end, own_end) in itertools.pairwise(marks)]


def open_preparer(folder: Path, stack: ExitStack) -> Contenders:
    """Only prepares, on the first core."""
    first, _ = find_cores()
    pin_process(first)
    prepare = open_preparation(set_up(folder, Mode.ISOLATED), stack)
    prepare()
    pin_process(first)
    return {bench.PREPARE: partial(time_calls, prepare)}


def open_trainer(folder: Path, stack: ExitStack) -> Contenders:
    """Trains on the last core: on batches of a producer on the first, on some it prepares itself, or on one again and again."""
    first, last = find_cores()
    # A child stays on the core of the thread that starts it.
    pin_process(first)
    setup = set_up(folder, Mode.ISOLATED)
    recipe = setup.make_recipe()
    isolated = stack.enter_context(closing(setup.open_batches(recipe)))
    pin_process(last)
    series = stack.enter_context(closing(setup.open_batches(replace(recipe, plan=put_on_one_device(setup.plan)))))
    train = open_training(setup)
    kept = train_next(train, isolated)
    train_next(train, series)
    # Whatever threads there are by now.
    pin_process(last)
    return {
        bench.SERIES: lambda batches: time_calls(partial(train_next, train, series), batches, 1),
        bench.ISOLATED: partial(time_pipeline, train, isolated),
        bench.TRAIN: partial(time_calls, partial(train, kept)),
    }


def open_both(folder: Path, stack: ExitStack) -> Contenders:
    """Has both devices, each with one core's worth of threads."""
    pin_process(*find_cores())
    setup = set_up(folder, Mode.DUAL)
    source = open_dual_source(setup, stack)
    prepare, train = open_preparation(setup, stack), open_training(setup)
    kept = train_next(train, source)

    def time_dataset(batches: int) -> float:
        prepared = iterate_dataset(prepare, WARM_UP + batches)
        return time_calls(lambda: train(place_batch(next(prepared), setup.plan.model.device)), batches, WARM_UP)

    def time_threads(batches: int) -> float:
        """Until so many batches were prepared by one thread and so many trained on by this one, without a hand-off."""
        started = time.perf_counter()
        with ThreadPoolExecutor(1) as beside:
            preparing = beside.submit(time_calls, prepare, batches)
            time_calls(partial(train, kept), batches)
            preparing.result()
        return time.perf_counter() - started

    return {bench.DUAL: partial(time_pipeline, train, source), bench.DATASET: time_dataset, bench.THREADS: time_threads}


def find_cores() -> tuple[int, int]:
    cores = sorted(os.sched_getaffinity(0))
    return cores[0], cores[-1]


def pin_process(*cores: int) -> None:
    """Keeps every thread of this process on these cores."""
    for thread in os.listdir("/proc/self/task"):
        os.sched_setaffinity(int(thread), cores)


def await_idle() -> None:
    """Waits until this process and its children do nothing: the slots are full again."""
    me = psutil.Process()
    processes = [me, *me.children(recursive=True)]
    deadline, before = time.monotonic() + MOST_IDLE_WAIT_S, 0.0
    while time.monotonic() < deadline:
        now = float(sum(sum(process.cpu_times()[:2]) for process in processes))
        if now - before < IDLE_SHARE * LOOK_SECONDS:
            return
        before = now
        time.sleep(LOOK_SECONDS)


def main() -> None:
    # What is set aside of the corpus is no news here.
    logging.disable(logging.WARNING)
    name, folder = sys.argv[1:]
    openers = {
        bench.PREPARER: open_preparer,
        bench.TRAINER: open_trainer,
        bench.BOTH: open_both,
        bench.WATCH: lambda folder, stack: {bench.WATCH: partial(run_watched, folder)},
    }
    with ExitStack() as stack:
        contenders = openers[name](Path(folder), stack)

        def measure(question: Any) -> Any:
            # The first question is whether it is ready.
            figures = contenders[question[0]](question[1]) if question else None
            await_idle()
            return figures

        answer_questions(measure)


if __name__ == "__main__":
    main()
