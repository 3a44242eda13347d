"""The processes behind parts b and d of the pipeline bench: `python -m benchmarks.pipeline_processes NAME FOLDER`.

A small run: the tiny model, some clips of the demo corpus, a codec of random weights, no cache. Each process has its devices,
is warmed up once, and answers (contender, batches) with seconds, once everything stands still again.
"""

from __future__ import annotations

import itertools
import os
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, ClassVar, Self

import psutil

# First: it imports TensorFlow without its remarks.
from myxtts.devices import runtime

# isort: split
import tensorflow as tf

from benchmarks.measuring import answer_questions
from benchmarks.pipeline import (
    BOTH,
    DATASET,
    DUAL,
    ISOLATED,
    PREPARE,
    PREPARER,
    SERIES,
    THREADS,
    TRAIN,
    TRAINER,
    WATCH,
    WATCH_WINDOWS,
    WRITER,
)
from myxtts.config import XTTSConfig
from myxtts.data.run_data import RunData, collect_run_data, load_run_data, save_run_data
from myxtts.devices.machine import read_machine
from myxtts.devices.plan import DevicePlan, Mode, PlanRequest, Process, put_on_one_device
from myxtts.devices.planning import plan_devices
from myxtts.pipeline.batch_factory import BatchFactory
from myxtts.pipeline.batch_facts import HOST_ARRAYS
from myxtts.pipeline.batch_meters import METERS
from myxtts.pipeline.batch_source import PRODUCER_FOLDER, BatchSource, SourceRequest
from myxtts.pipeline.code_cache import FOLDER_NAME
from myxtts.pipeline.handoff import SLOTS, Handoff
from myxtts.pipeline.preparation_settings import Target
from myxtts.pipeline.production import Production
from myxtts.pipeline.sources import open_source
from myxtts.pipeline.stage import Feed, Stage
from myxtts.pipeline.staged_source import StagedSource
from myxtts.pipeline.transfer import DeviceBatch, place_batch
from myxtts.training import stage_run
from myxtts.training.endless_production import NEVER, describe_endless_production
from myxtts.training.random_codec import write_random_codec
from myxtts.training.run_watch import RunWatch
from myxtts.training.starting_point import Codec, fit_model_config, read_codec
from myxtts.training.step import Turn
from myxtts.training.trained_model import build_gpt_step
from myxtts.training.trainer import XTTSTrainer
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
RATE = 1e-5


def make_config(folder: Path, mode: Mode, **training: Any) -> XTTSConfig:
    return XTTSConfig(
        model={"size": "tiny", "dvae_width": DVAE_WIDTH},
        data={
            "batch_size": 4,
            # All in one bucket: every batch costs the same, and one shape is traced.
            "min_clip_seconds": 2.61,
            "max_clip_seconds": 2.965,
            "max_text_length": 32,
            "prompt_seconds": 1.0,
            "cache": "off",
            # Reading belongs to preparing here: reader processes would need a core of their own.
            "num_workers": 0,
            "use_tf_native_loading": False,
            "prefetch_buffer_size": 3,
            "model_start_delay": 0.0,
        },
        training={"rehearsal": True, "mode": str(mode), "checkpoint_dir": str(folder), **training},
    )


def write_run(folder: Path) -> None:
    """Writes what all processes read: the order of the clips, and the codec."""
    config = make_config(folder, Mode.SINGLE)
    save_run_data(collect_run_data(config, folder=folder), folder)
    write_random_codec(config, folder / "codec")


@dataclass(frozen=True, eq=False)
class Run:
    """The run as one process sees it."""

    folder: Path
    config: XTTSConfig
    plan: DevicePlan
    data: RunData
    codec: Codec
    production: Production

    def open_source(self, plan: DevicePlan) -> BatchSource:
        order = self.production.make_order(self.data)
        return open_source(SourceRequest(plan, self.data, order, self.production, self.folder / PRODUCER_FOLDER))


def open_bench_run(folder: Path, mode: Mode) -> Run:
    """The run in a folder, with the plan of a mode in force in this process."""
    asked = make_config(folder, mode)
    plan = plan_devices(PlanRequest.from_config(asked), read_machine())
    runtime.set_thread_pools(INTRA_OP, INTER_OP)
    runtime.apply_plan(plan, Process.TRAINER)
    data, codec = load_run_data(folder), read_codec(folder / "codec")
    config = fit_model_config(asked, None, codec.config, data.text_tokens)
    production = describe_endless_production(
        config, Target.GPT, codec.mel_norms, codec_folder=codec.folder, cache_folder=folder / FOLDER_NAME
    )
    return Run(folder, config, plan, data, codec, production)


def keep_to_one_core() -> Any:
    """A scope in which a graph runs in the thread that calls it. Otherwise one device takes up to 1.6 cores."""
    return tf.experimental.function_executor_type("SINGLE_THREADED_EXECUTOR")


class Preparation:
    """Makes batches on one core."""

    def __init__(self, run: Run):
        self._factory = BatchFactory(run.data, run.production, run.plan.data.device)
        self.close = self._factory.close
        with keep_to_one_core():
            self._factory.warm_up()
        self._numbers = itertools.count()

    def make_next(self, _: int = 0) -> Any:
        """The next batch, really made."""
        with keep_to_one_core():
            prepared = self._factory.make(next(self._numbers))
        self._factory.settle(prepared)
        return prepared

    def run(self, batches: int) -> float:
        started = time.perf_counter()
        for _ in range(batches):
            self.make_next()
        return time.perf_counter() - started

    def iterate_dataset(self, batches: int) -> Iterator[Any]:
        """So many batches through `tf.data`, made in its own thread and prefetched as deep as our slots are."""
        first = self.make_next()
        names = [name for name in first if name != METERS]
        signature = {name: tf.TensorSpec([None] * len(first[name].shape), first[name].dtype) for name in names}

        def generate() -> Iterator[dict[str, Any]]:
            for _ in range(batches):
                prepared = self.make_next()
                yield {name: prepared[name] for name in names}

        for tensors in tf.data.Dataset.from_generator(generate, output_signature=signature).prefetch(SLOTS):
            yield {name: tensor.numpy() if name in HOST_ARRAYS else tensor for name, tensor in tensors.items()}


class Training:
    """Trains on batches on one core: of a source, or on the first one there was again and again."""

    def __init__(self, run: Run):
        self._device = run.plan.model.device
        with get_device_context(self._device):
            self.model = build_gpt_step(run.config, run.data, run.codec, None)
        self.kept: DeviceBatch | None = None

    def train(self, batch: DeviceBatch) -> None:
        """One update, done when this returns."""
        step = self.model.step
        with get_device_context(self._device), keep_to_one_core():
            step.apply(step.compute(batch.tensors, Turn(batch.facts.updates, 0, 1)), RATE).numpy()
        self.kept = self.kept or batch

    def run(self, batches: int) -> float:
        """Seconds for so many updates for which nothing is waited."""
        assert self.kept is not None, "no batch was trained on yet"
        return self._time(itertools.repeat(self.kept, batches), 0)

    def run_source(self, source: BatchSource, batches: int, warm_up: int = 0, ready: int = 0) -> float:
        """Seconds for so many batches of a source, after `ready` that are thrown away and `warm_up` that are not counted."""

        def iterate(count: int) -> Iterator[DeviceBatch]:
            for _ in range(count):
                yield source.take()
                source.advance()
                source.release()

        for _ in iterate(ready):
            pass
        return self._time(iterate(warm_up + batches), warm_up)

    def run_prepared(self, prepared: Iterator[Any], warm_up: int) -> float:
        """Seconds for all batches but the first few, each copied to the model device before its step."""
        return self._time((place_batch(arrays, self._device) for arrays in prepared), warm_up)

    def _time(self, batches: Iterator[DeviceBatch], warm_up: int) -> float:
        for batch in itertools.islice(batches, warm_up):
            self.train(batch)
        started = time.perf_counter()
        for batch in batches:
            self.train(batch)
        return time.perf_counter() - started


def open_dual_source(run: Run, closing_: ExitStack) -> StagedSource:
    """The dual mode's stages and hand-offs, with a data thread that keeps to one core."""
    preparation = Preparation(run)
    prepared: Handoff[Any] = Handoff("prepared", run.config.data.prefetch_depth)
    closing_.callback(preparation.close)
    source = StagedSource(
        prepared,
        unpack=dict,
        stages=[Stage("prepare", preparation.make_next, Feed(iter(range(NEVER))), prepared)],
        resources=ExitStack(),
        device=run.plan.model.device,
        start_delay_s=run.config.data.model_start_delay,
    )
    return closing_.enter_context(closing(source))


def run_side_by_side(prepare: Callable[[int], float], train: Callable[[int], float], batches: int) -> float:
    """Seconds until so many batches were prepared by one thread and so many trained on by this one, without a hand-off."""
    started = time.perf_counter()
    with ThreadPoolExecutor(1) as beside:
        preparing = beside.submit(prepare, batches)
        train(batches)
        preparing.result()
    return time.perf_counter() - started


class TimedWatch(RunWatch):
    """A watch that adds up what it takes: its calls, and its threads on the processor."""

    moments: ClassVar[list[tuple[float, float]]] = []
    """Of every batch: when it came, and what the watch had taken until then, in seconds."""

    def __init__(self, *arguments: Any, **facts: Any):
        self._calls_s = 0.0
        self._others = set(threading.enumerate())
        super().__init__(*arguments, **facts)

    def __enter__(self) -> Self:
        super().__enter__()
        own = set(threading.enumerate()) - self._others
        self._clocks = [time.pthread_getcpuclockid(thread.ident) for thread in own if thread.ident is not None]
        return self

    def count_batch(self, *facts: Any) -> None:
        self.moments.append((time.perf_counter(), self._calls_s + sum(map(time.clock_gettime, self._clocks))))
        self._time(super().count_batch, *facts)

    def end_phase(self, *facts: Any, **more: Any) -> None:
        self._time(super().end_phase, *facts, **more)

    def log_steps(self, **facts: Any) -> None:
        self._time(super().log_steps, **facts)

    def _time(self, call: Callable[..., None], *facts: Any, **more: Any) -> None:
        started = time.perf_counter()
        call(*facts, **more)
        self._calls_s += time.perf_counter() - started


def run_watched(folder: Path, updates: int) -> list[tuple[float, float]]:
    """Of some windows of so many updates of a real run: seconds, and those that the watch took of them."""
    stage_run.RunWatch = TimedWatch
    config = make_config(
        folder / "watched",
        Mode.DUAL,
        codec=str(folder / "codec"),
        speak=False,
        max_steps=WARM_UP + 1 + WATCH_WINDOWS * updates,
    )
    XTTSTrainer(config).train()
    marks = TimedWatch.moments[WARM_UP::updates]
    return [(end - start, own_end - own_start) for (start, own_start), (end, own_end) in itertools.pairwise(marks)]


Contenders = Mapping[str, Callable[[int], Any]]


def open_writer(folder: Path, closing_: ExitStack) -> Contenders:
    write_run(folder)
    return {}


def open_watched(folder: Path, closing_: ExitStack) -> Contenders:
    """A real run on two devices with the watch of a real run."""
    return {WATCH: partial(run_watched, folder)}


def open_preparer(folder: Path, closing_: ExitStack) -> Contenders:
    """Only prepares, on the first core."""
    first, _ = find_cores()
    pin_process(first)
    preparation = Preparation(open_bench_run(folder, Mode.ISOLATED))
    closing_.callback(preparation.close)
    preparation.run(1)
    pin_process(first)
    return {PREPARE: preparation.run}


def open_trainer(folder: Path, closing_: ExitStack) -> Contenders:
    """Trains on the last core: on batches of a producer on the first, on some it prepares itself, or on one again and again."""
    first, last = find_cores()
    # A child stays on the core of the thread that starts it.
    pin_process(first)
    run = open_bench_run(folder, Mode.ISOLATED)
    isolated = closing_.enter_context(closing(run.open_source(run.plan)))
    pin_process(last)
    series = closing_.enter_context(closing(run.open_source(put_on_one_device(run.plan))))
    training = Training(run)
    training.run_source(isolated, 1)
    training.run_source(series, 1)
    # Whatever threads there are by now.
    pin_process(last)
    return {
        SERIES: lambda batches: training.run_source(series, batches, 1),
        ISOLATED: lambda batches: training.run_source(isolated, batches, WARM_UP, READY),
        TRAIN: training.run,
    }


def open_both(folder: Path, closing_: ExitStack) -> Contenders:
    """Has both devices, each with one core's worth of threads."""
    pin_process(*find_cores())
    run = open_bench_run(folder, Mode.DUAL)
    source = open_dual_source(run, closing_)
    preparation, training = Preparation(run), Training(run)
    closing_.callback(preparation.close)
    training.run_source(source, 1)
    return {
        DUAL: lambda batches: training.run_source(source, batches, WARM_UP, READY),
        DATASET: lambda batches: training.run_prepared(preparation.iterate_dataset(WARM_UP + batches), WARM_UP),
        THREADS: lambda batches: run_side_by_side(preparation.run, training.run, batches),
    }


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
    name, folder = sys.argv[1:]
    openers = {WRITER: open_writer, WATCH: open_watched}
    openers |= {PREPARER: open_preparer, TRAINER: open_trainer, BOTH: open_both}
    with ExitStack() as closing_:
        contenders = openers[name](Path(folder), closing_)

        def measure(question: Any) -> Any:
            # The first question is whether it is ready.
            figures = contenders[question[0]](question[1]) if question else None
            await_idle()
            return figures

        answer_questions(measure)


if __name__ == "__main__":
    main()
