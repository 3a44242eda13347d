"""The measurement of hand-offs and ring: what it counts, not how fast this machine is."""

import os

import psutil
import pytest

from myxtts.pipeline import paced_bench, ring_bench
from myxtts.pipeline.busy_processes import keep_busy
from myxtts.pipeline.paced_bench import DUAL, ISOLATED, SERIES, PacedCases, PacedOutcome, bench_pacing, run_paced
from myxtts.pipeline.paced_task import hold, make_batch
from myxtts.pipeline.ring_bench import bench_ring

SMALL_BYTES = 64 << 10


def make_outcome(**facts):
    known = {
        "engine": DUAL,
        "busy_processes": 0,
        "slowest_ms": 50.0,
        "ratio": 1.0,
        "alone_ms": 50.0,
        "per_batch_ms": 51.0,
    }
    return PacedOutcome(**(known | {"variation": 0.01, "steal": 0.0, "discarded": 0} | facts))


@pytest.mark.parametrize("engine", [DUAL, ISOLATED])
def test_every_batch_comes_through_and_none_faster_than_the_slowest_stage(engine):
    done = run_paced(engine, prepare_s=0.002, train_s=0.004, batches=12, batch_bytes=SMALL_BYTES)
    assert len(done) == 12
    assert (done[-1] - done[0]) / 11 >= 0.004


def test_in_series_nothing_is_copied_and_beside_each_other_a_slow_copy_counts(monkeypatch):
    paces = {"prepare_s": 0.002, "train_s": 0.002, "batches": 8, "batch_bytes": SMALL_BYTES, "transfer_s": 0.05}
    held = []
    monkeypatch.setattr(paced_bench, "hold", lambda seconds: (held.append(seconds), hold(seconds)))
    assert len(run_paced(SERIES, **paces)) == 8
    assert 0.05 not in held
    dual = run_paced(DUAL, **paces)
    assert (dual[-1] - dual[0]) / 7 >= 0.05


def test_all_cases_are_run_once_in_turn():
    cases = PacedCases((0.002,), (0.5, 2.0), (0,), (DUAL,), batches=6, batch_bytes=SMALL_BYTES, alone_items=2)
    outcomes = list(bench_pacing(cases))
    assert [(o.engine, o.busy_processes, o.slowest_ms, o.ratio) for o in outcomes] == [
        (DUAL, 0, 2.0, 0.5),
        (DUAL, 0, 2.0, 2.0),
    ]
    # A sleep is never too short; beside other work it may be much too long.
    assert all(o.alone_ms >= 2.0 and o.per_batch_ms >= 2.0 for o in outcomes)


@pytest.mark.parametrize(
    ("steals", "counted", "is_quiet"), [([0.0], 0.0, True), ([0.2, 0.01], 0.01, True), ([0.1, 0.3], 0.1, False)]
)
def test_a_run_the_host_spoilt_is_done_again_and_counted(steals, counted, is_quiet, monkeypatch):
    monkeypatch.setattr(paced_bench, "run_paced", lambda *words: [n * 0.05 for n in range(20)])
    left = list(steals)
    monkeypatch.setattr(paced_bench.StealMeter, "read_share", lambda meter: left.pop(0))
    (outcome,) = bench_pacing(PacedCases((0.0,), (1.0,), (0,), (DUAL,), batches=20, alone_items=1))
    assert (outcome.steal, outcome.is_quiet, left) == (counted, is_quiet, [])
    assert outcome.discarded == len(steals) - 1


def test_efficiency_is_the_slowest_stage_alone_over_the_time_per_batch():
    assert make_outcome(alone_ms=40.0, per_batch_ms=50.0).efficiency == 0.8


def test_busy_processes_compute_while_the_block_runs_and_are_gone_behind_it():
    with keep_busy(2):
        busy = psutil.Process().children()
        assert len(busy) == 2
        before = [sum(process.cpu_times()[:2]) for process in busy]
        while any(sum(process.cpu_times()[:2]) <= past for process, past in zip(busy, before, strict=True)):
            os.sched_yield()
    assert not any(process.is_running() for process in busy)


def test_a_batch_has_the_size_asked_for():
    assert sum(array.nbytes for array in make_batch(SMALL_BYTES).values()) == SMALL_BYTES


def test_the_ring_is_measured_with_batches_of_the_size_asked_for():
    speed = bench_ring(SMALL_BYTES, rounds=2, hand_overs=4)
    assert speed.batch_bytes == SMALL_BYTES
    assert min(speed.pack, speed.read, speed.copy_out, speed.round_trip) > 0


def test_the_ring_is_measured_again_while_the_host_takes_much_away(monkeypatch):
    left = [0.5, 0.4, 0.02]
    monkeypatch.setattr(ring_bench.StealMeter, "read_share", lambda meter: left.pop(0))
    monkeypatch.setattr(ring_bench, "_time_hand_overs", lambda batch_bytes, count: 1.0)
    speed = bench_ring(SMALL_BYTES, rounds=1, hand_overs=1)
    assert (speed.steal, speed.discarded) == (0.02, 2)
