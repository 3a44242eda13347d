"""The measurement with the real model: its turns, its discarded windows, its processes."""

import time

import pytest

from myxtts.data.errors import WorkerError
from myxtts.training.benches import pipeline as pipeline_bench
from myxtts.training.benches.pipeline import (
    CLOSE,
    DUAL,
    PREPARE,
    PROCESSES,
    SERIES,
    THREADS,
    TRAIN,
    WATCH,
    BenchProcess,
    ModelBench,
    ModelCases,
)
from myxtts.training.benches.stages import run_side_by_side

CASES = ModelCases(rounds=2, batches=5, watch_rounds=3, watch_updates=10)


class FakeProcess:
    """Notes what it is asked, and answers at once: 10 s for preparing, 20 s for anything else."""

    asked: list

    def __init__(self, name, settings):
        self.name = name
        FakeProcess.asked.append((name, "started"))

    def ask(self, item):
        self.item = item
        FakeProcess.asked.append((self.name, item[0] if isinstance(item, list) else item))

    def await_answer(self):
        if self.item[0] == WATCH:
            return {"watched": 1.01, "unwatched": 1.0, "inside": 0.002}
        return 10.0 if self.item[0] == PREPARE else 20.0

    def stop(self):
        FakeProcess.asked.append((self.name, "stopped"))


@pytest.fixture
def asked(monkeypatch):
    FakeProcess.asked = []
    monkeypatch.setattr(pipeline_bench, "BenchProcess", FakeProcess)
    return FakeProcess.asked


def set_steal(monkeypatch, shares):
    left = list(shares)
    monkeypatch.setattr(pipeline_bench.StealMeter, "read_share", lambda meter: left.pop(0) if left else 0.0)


def test_contenders_take_turns_and_both_stages_run_at_the_same_time(asked, monkeypatch, tmp_path):
    set_steal(monkeypatch, [])
    with ModelBench(tmp_path) as bench:
        outcome = bench.measure_pipelines(CASES)
    names = [what for _, what in asked if what in outcome.windows]
    half = len(names) // 2
    assert names[:half] == names[half:]
    assert names[:half][-2:] == [PREPARE, TRAIN]
    assert outcome.windows[PROCESSES] == (4.0, 4.0)
    assert outcome.windows[PREPARE] == (2.0, 2.0)
    assert outcome.bound == 1.5
    assert outcome.compute_share(DUAL) == 1.0


def test_windows_the_host_spoilt_are_measured_again_and_counted(asked, monkeypatch, tmp_path):
    # The first window is spoilt once, the second always.
    set_steal(monkeypatch, [0.2, 0.0, 0.3, 0.3, 0.3])
    with ModelBench(tmp_path) as bench:
        outcome = bench.measure_pipelines(CASES)
    assert (outcome.discarded, outcome.noisy) == (3, 1)
    assert len(outcome.windows[SERIES]) == CASES.rounds


def test_watching_is_measured_in_windows(asked, monkeypatch, tmp_path):
    set_steal(monkeypatch, [])
    with ModelBench(tmp_path) as bench:
        outcome = bench.measure_watch(CASES)
    assert outcome.watched_ms == pytest.approx((101.0,) * 3)
    assert outcome.cost == pytest.approx(0.01)
    assert outcome.inside == pytest.approx(0.002)


def test_every_process_is_closed_and_stopped(asked, tmp_path):
    with ModelBench(tmp_path):
        pass
    started = [name for name, what in asked if what == "started"]
    assert sorted(started) == sorted(name for name, what in asked if what == "stopped")
    assert [name for name, what in asked if what == CLOSE] == started[1:]


def test_every_process_is_stopped_when_measuring_fails(asked, tmp_path):
    with pytest.raises(ZeroDivisionError), ModelBench(tmp_path):
        raise ZeroDivisionError
    assert [what for _, what in asked].count("stopped") == [what for _, what in asked].count("started")


def test_a_process_that_dies_is_an_error_and_not_a_wait(monkeypatch):
    monkeypatch.setattr(pipeline_bench, "_WORKERS", "tests.training.dying_worker")
    process = BenchProcess("make_suicide", {})
    process.ask([THREADS, 1])
    with pytest.raises(WorkerError, match="died of signal 9"):
        process.await_answer()


def test_side_by_side_is_over_when_both_are_done():
    done = []

    def prepare(number):
        time.sleep(0.02)
        done.append(number)

    taken_s = run_side_by_side(prepare, lambda batches: 0.0, 5)
    assert done == [0, 1, 2, 3, 4]
    assert taken_s >= 0.1


def test_what_fails_beside_the_training_is_raised():
    with pytest.raises(Exception, match=r"prepare.*division by zero"):
        run_side_by_side(lambda number: 1 / 0, lambda batches: 0.0, 1)
