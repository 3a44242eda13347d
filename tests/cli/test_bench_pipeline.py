"""`myxtts bench pipeline`: what is judged and how it is told."""

import json
from dataclasses import replace

import pytest

from myxtts.cli import bench, bench_pipeline, pipeline_page
from myxtts.errors import CommandLineError
from myxtts.pipeline import paced_bench
from myxtts.pipeline.paced_bench import PacedCases, PacedOutcome
from myxtts.pipeline.ring_bench import RingSpeed
from myxtts.training.benches import pipeline as pipeline_bench
from myxtts.training.benches.pipeline import (
    DATASET,
    DUAL,
    ISOLATED,
    PREPARE,
    PROCESSES,
    SERIES,
    THREADS,
    TRAIN,
    ModelOutcome,
    WatchOutcome,
)
from tests.support.processes import run_code

PACED = PacedOutcome("dual", 0, 50.0, 1.0, 50.0, 51.0, variation=0.01, steal=0.0)
SECONDS = {
    PREPARE: 0.2, TRAIN: 0.4, SERIES: 0.6, THREADS: 0.44, PROCESSES: 0.42, DUAL: 0.48, ISOLATED: 0.45, DATASET: 0.55,
}  # fmt: skip
MODEL = ModelOutcome({name: (each, 2 * each, each) for name, each in SECONDS.items()}, discarded=1, noisy=0, cores=2)
WATCH = WatchOutcome((100.5, 101.0, 100.2), (100.0, 100.0, 100.0), (0.3, 0.2, 0.9), discarded=0, noisy=0)
RING = RingSpeed(5 << 20, 3.0, 20.0, 4.0, 2.5, steal=0.0)


@pytest.mark.parametrize(
    ("changes", "verdict"),
    [
        ({}, "met"),
        ({"per_batch_ms": 51.6}, "missed"),
        ({"engine": "isolated", "per_batch_ms": 51.6}, "met"),
        ({"engine": "isolated", "per_batch_ms": 52.7}, "missed"),
        ({"variation": 0.05}, "missed"),
        ({"steal": 0.06}, "noisy"),
        ({"slowest_ms": 10.0, "alone_ms": 10.0}, ""),
    ],
)
def test_hand_offs_are_judged_at_50_ms_by_efficiency_and_variation(changes, verdict):
    assert pipeline_page.judge_paced(replace(PACED, **changes)) == verdict


def test_modes_are_judged_by_their_own_ceiling_and_shown_beside_the_bound():
    text = pipeline_page.format_model(MODEL)
    # Medians: the one slow window of each does not count.
    assert MODEL.bound == 1.5
    assert MODEL.compute_share(DUAL) == pytest.approx(0.44 / 0.48)
    assert MODEL.compute_share(ISOLATED) == pytest.approx(0.42 / 0.45)
    assert MODEL.compute_gain(DUAL) == pytest.approx(1.25)
    assert "1 + min/max = 1.50" in text
    assert "dual met, isolated met" in text
    slow = replace(MODEL, windows={**MODEL.windows, DUAL: (0.5,)})
    assert "dual missed, isolated met" in pipeline_page.format_model(slow)
    assert "dual noisy, isolated noisy" in pipeline_page.format_model(replace(MODEL, noisy=1))
    assert "dual -, isolated -" in pipeline_page.format_model(replace(MODEL, cores=1))


def test_the_watch_is_judged_by_the_median_of_its_windows():
    assert WATCH.cost == pytest.approx(0.005)
    assert WATCH.inside == pytest.approx(0.003)
    assert "below 1% inside: met" in pipeline_page.format_watch(WATCH)
    dear = replace(WATCH, inside_ms=(1.1, 1.2, 0.1))
    assert "below 1% inside: missed" in pipeline_page.format_watch(dear)


def test_everything_fits_into_80_columns():
    machine = bench_pipeline.describe_machine() | {
        "processor": "A processor of sixty characters, which is as long as they get"
    }
    worst = replace(
        PACED, engine="isolated", busy_processes=2, per_batch_ms=151.25, alone_ms=150.5, steal=0.2, discarded=1
    )
    pages = [
        pipeline_page.format_machine(machine, (17.25, 8.5, 7.0)),
        pipeline_page.format_paced_head(PacedCases()),
        pipeline_page.format_paced_row(worst),
        pipeline_page.format_paced_foot([worst, PACED, replace(PACED, variation=1.0)]),
        pipeline_page.format_model(replace(MODEL, noisy=3, cores=1)),
        pipeline_page.format_ring(RING),
        pipeline_page.format_watch(replace(WATCH, noisy=2)),
    ]
    assert [line for page in pages for line in page.splitlines() if len(line) > 80] == []


class FakeBench:
    def __init__(self, folder):
        assert folder.is_dir()

    def __enter__(self):
        return self

    def __exit__(self, *failure):
        pass

    def measure_pipelines(self, cases):
        return MODEL

    def measure_watch(self, cases):
        return WATCH


@pytest.fixture
def quick(monkeypatch):
    monkeypatch.setattr(pipeline_bench, "ModelBench", FakeBench)
    monkeypatch.setattr(paced_bench, "bench_pacing", lambda cases: iter([PACED]))
    monkeypatch.setattr("myxtts.pipeline.ring_bench.bench_ring", lambda: RING)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")


def test_all_parts_are_told_and_written(quick, tmp_path, capsys):
    assert bench.run(["pipeline", "--json", str(tmp_path / "out.json")], "myxtts bench") == 0
    text = capsys.readouterr().out
    assert [line[0] for line in text.splitlines() if line[:1].strip() and line[1:3] == "  "] == ["a", "b", "d", "c"]
    assert "It proves the hand-offs, nothing else." in " ".join(text.split())
    figures = json.loads((tmp_path / "out.json").read_text())
    assert figures["a"][0]["efficiency"] == pytest.approx(50 / 51)
    assert figures["b"]["share_of_ceiling"][DUAL] == pytest.approx(0.44 / 0.48)
    assert figures["b"]["windows"][DUAL] == [0.48, 0.96, 0.48]
    assert figures["c"]["round_trip"] == 2.5
    assert figures["d"]["cost"] == pytest.approx(0.005)
    assert figures["machine"]["cores"] >= 1
    assert len(figures["load_average_before"]) == len(figures["load_average_after"]) == 3


@pytest.mark.parametrize(("flags", "parts"), [(["c"], "c"), (["d", "a"], "ad")])
def test_only_the_parts_asked_for_are_measured(flags, parts, quick, tmp_path):
    words = [word for part in flags for word in ("--part", part)]
    bench.run(["pipeline", *words, "--json", str(tmp_path / "out.json")], "myxtts bench")
    assert {key for key in json.loads((tmp_path / "out.json").read_text()) if len(key) == 1} == set(parts)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--part", "e"], "--part"),
        (["--parts", "a"], "Did you mean --part"),
        (["--json", "no/such/folder/x"], "cannot be written"),
    ],
)
def test_mistakes_are_named_before_anything_is_measured(words, message, monkeypatch):
    monkeypatch.setattr(paced_bench, "bench_pacing", lambda cases: pytest.fail("measured"))
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    with pytest.raises(CommandLineError, match=message):
        bench.run(["pipeline", *words], "myxtts bench")


def test_help_is_there_without_tensorflow():
    code = """
import contextlib, io
from myxtts.cli import bench
out = io.StringIO()
with contextlib.redirect_stdout(out), contextlib.suppress(SystemExit):
    bench.run(["pipeline", "--help"], "myxtts bench")
report([out.getvalue(), "tensorflow" in sys.modules, "numpy" in sys.modules])
"""
    text, *loaded = run_code(code)
    assert "--part" in text
    assert loaded == [False, False]
