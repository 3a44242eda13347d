"""The processes behind `myxtts bench pipeline`: each has its devices, is warmed up once, and then measures on demand."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from myxtts.data.workers import Work
from myxtts.devices.plan import Mode
from myxtts.pipeline.sources import open_source
from myxtts.training.benches.pipeline import (
    CLOSE,
    DATASET,
    DUAL,
    ISOLATED,
    PREPARE,
    SERIES,
    THREADS,
    TRAIN,
    WATCH,
)
from myxtts.training.benches.run import open_bench_run, write_bench_run
from myxtts.training.benches.stages import (
    READY,
    WARM_UP,
    Preparation,
    Training,
    await_idle,
    open_one_core_dual_source,
    pin_process,
    run_side_by_side,
)
from myxtts.training.benches.watching import WatchBench


def make_writer() -> Work:
    """The work of a process that writes the run to a folder."""

    def write(folder: str) -> None:
        write_bench_run(Path(folder))

    return write


def make_preparer(folder: str, core: int) -> Work:
    """The work of the process that only prepares, on one core."""
    pin_process({core})
    preparation = Preparation(open_bench_run(Path(folder), Mode.ISOLATED))
    preparation.run(1)
    pin_process({core})
    return _make_work({PREPARE: preparation.run}, preparation.close)


def make_trainer(folder: str, core: int, producer_core: int) -> Work:
    """The work of the process that trains on one core: on the batches of a producer process pinned to another core, on
    batches it prepares itself, or on one batch again and again."""
    # A child stays on the core of the thread that starts it.
    pin_process({producer_core})
    run = open_bench_run(Path(folder), Mode.ISOLATED)
    isolated = open_source(run.request_source())
    pin_process({core})
    series = open_source(run.request_source(in_series=True))
    training = Training(run)
    training.run_source(isolated, 1, 0)
    training.run_source(series, 1, 0)
    watch = WatchBench(run, training.trained, training.get_kept())
    # Whatever threads there are by now.
    pin_process({core})

    def close() -> None:
        watch.close()
        series.close()
        isolated.close()

    return _make_work(
        {
            SERIES: lambda batches: training.run_source(series, batches, 1),
            ISOLATED: lambda batches: training.run_source(isolated, batches, WARM_UP, READY),
            TRAIN: training.run,
            WATCH: watch.run,
        },
        close,
    )


def make_dual(folder: str, cores: list[int]) -> Work:
    """The work of the process that has both devices, each with one core's worth of threads."""
    pin_process(set(cores))
    run = open_bench_run(Path(folder), Mode.DUAL)
    source = open_one_core_dual_source(run)
    preparation, training = Preparation(run), Training(run)
    training.run_source(source, 1, 0)

    def run_dataset(batches: int) -> float:
        return training.run_prepared(preparation.iterate_dataset(WARM_UP + batches), WARM_UP)

    def close() -> None:
        source.close()
        preparation.close()

    return _make_work(
        {
            DUAL: lambda batches: training.run_source(source, batches, WARM_UP, READY),
            DATASET: run_dataset,
            THREADS: lambda batches: run_side_by_side(preparation.make_next, training.run, batches),
        },
        close,
    )


def _make_work(contenders: Mapping[str, Callable[[int], Any]], close: Callable[[], None]) -> Work:
    """Answers (contender, batches) with what it measured, once everything stands still again."""

    def work(item: list[Any]) -> Any:
        name, batches = item
        if name == CLOSE:
            close()
            return None
        figures = contenders[name](batches)
        await_idle()
        return figures

    await_idle()
    return work
