"""`myxtts bench planner`: what is run, judged and told."""

import json

import pytest

from myxtts.cli import bench_planner
from myxtts.training.benches import planner as planner_bench
from myxtts.training.benches.planner import PlannerCases, PlannerOutcome, Workload, measure_workload
from tests.support.processes import run_code

MODES = ("single", "dual", "isolated", "data-parallel")


def make_outcome(chosen="dual", reached=(70.0, 41.0, 42.0, 43.0), **facts):
    figures = dict(zip(MODES, reached, strict=True))
    known = {"workload": Workload(30, 1, 40), "chosen": chosen, "predicted_ms": figures, "reached_ms": figures}
    return PlannerOutcome(**{**known, "steal": 0.0, **facts})


def test_a_short_measurement_finds_what_the_stages_take():
    costs = measure_workload(Workload(4, 2, 8), batches=3, batch_bytes=64 << 10)
    assert costs.prepare_s >= 0.004
    assert costs.transfer_s >= 0.002
    assert costs.train_s >= 0.008
    assert costs.single_s >= 0.012
    assert costs.dual_s >= 0.008


def test_every_mode_is_tried_and_the_choice_is_one_of_them():
    work = Workload(6, 0.2, 8, exchange_ms=5, half_share=0.75)
    cases = PlannerCases((work,), measured_batches=3, batches=6, batch_bytes=64 << 10)
    (outcome,) = planner_bench.bench_planner(cases)
    assert tuple(outcome.reached_ms) == tuple(outcome.predicted_ms) == MODES
    assert outcome.chosen in MODES
    assert outcome.reached_ms["single"] >= 14
    assert outcome.reached_ms["isolated"] >= 8
    # Half of preparing, what half the clips take to train on, and the gradients.
    assert outcome.reached_ms["data-parallel"] >= 3 + 6 + 5
    assert outcome.regret == outcome.reached_ms[outcome.chosen] / min(outcome.reached_ms.values()) - 1


def test_keeping_codes_is_tried_over_all_epochs(monkeypatch):
    monkeypatch.setattr(
        planner_bench, "_run", lambda layout, work, batches, batch_bytes: (work.prepare_ms + work.train_ms) / 1000
    )
    cases = PlannerCases((Workload(30, 1, 40, codes_ms=20, epochs=4),), measured_batches=1, batch_bytes=64 << 10)
    (outcome,) = planner_bench.bench_planner(cases)
    assert outcome.reached_ms["single"] == pytest.approx(70)
    assert outcome.reached_ms["single, codes kept"] == pytest.approx((70 + 3 * 50) / 4)
    assert len(outcome.reached_ms) == len(outcome.predicted_ms) == 2 * len(MODES)


@pytest.mark.parametrize(
    ("changes", "verdict"),
    [
        ({}, "met"),
        ({"chosen": "data-parallel"}, "met"),
        ({"chosen": "isolated"}, "met"),
        ({"chosen": "single"}, "missed"),
        ({"chosen": "single", "steal": 0.2}, "noisy"),
    ],
)
def test_a_choice_may_lose_five_percent(changes, verdict):
    outcome = make_outcome(**changes)
    row = bench_planner.format_row(outcome)
    assert row.endswith(verdict)
    assert len(row) <= 80
    foot = bench_planner.format_foot([make_outcome(), outcome])
    judged = 1 if verdict == "noisy" else 2
    assert f"{2 - (verdict != 'met')} of {judged} met" in foot
    assert max(map(len, foot.splitlines())) <= 80


def test_a_row_tells_which_modes_by_few_letters():
    figures = {"single": 70.0, "single, codes kept": 50.0, "data-parallel, codes kept": 25.0}
    work = Workload(30, 1, 40, codes_ms=20, half_share=0.75)
    outcome = PlannerOutcome(work, "single, codes kept", figures, figures, steal=0.0)
    row = bench_planner.format_row(outcome)
    assert row.split() == [
        "30",
        "20",
        "1",
        "40",
        "30",
        "4",
        "100",
        "sing*",
        "50.0",
        "50.0",
        "para*",
        "100.0%",
        "missed",
    ]
    assert max(map(len, bench_planner.format_head().splitlines())) <= 80
    assert len(row) <= 80


def test_the_command_prints_and_writes_all_figures(monkeypatch, capsys, tmp_path):
    monkeypatch.setattr(planner_bench, "bench_planner", lambda cases: iter([make_outcome()]))
    path = tmp_path / "planner.json"
    assert bench_planner.run(["--json", str(path)], "myxtts bench planner") == 0
    assert max(map(len, capsys.readouterr().out.splitlines()[:-1])) <= 80
    (row,) = json.loads(path.read_text())["workloads"]
    assert (row["best"], row["chosen"], row["regret"]) == ("dual", "dual", 0.0)


def test_help_needs_no_tensorflow():
    found = run_code(
        """
import contextlib, io
from myxtts.cli import bench
with contextlib.redirect_stdout(io.StringIO()) as said, contextlib.suppress(SystemExit):
    bench.run(["planner", "--help"], "myxtts bench")
report([said.getvalue(), "tensorflow" in sys.modules])
"""
    )
    assert "--mode auto" in found[0]
    assert found[1] is False
