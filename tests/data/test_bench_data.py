"""`myxtts bench data`."""

import json
from dataclasses import replace

import pytest

from myxtts.cli import bench, bench_data
from myxtts.data.throughput import Rate
from myxtts.data.throughput_bench import ALL_PINNED, HERE, NAIVE, NATIVE, ONE_PINNED, PLAIN, PROCESSES, BenchResult
from myxtts.errors import CommandLineError
from tests.support.processes import run_code


@pytest.fixture
def quick(monkeypatch):
    monkeypatch.setattr(bench_data, "ROUNDS", 1)
    monkeypatch.setattr("myxtts.data.throughput_loops.WARM_SECONDS", 0.0)
    monkeypatch.setattr("myxtts.data.throughput_tf.WARM_SECONDS", 0.0)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")


@pytest.mark.parametrize(
    ("corpus", "native", "workers", "in_force"),
    [
        pytest.param("lj", "auto", "2", PROCESSES, marks=pytest.mark.soak),
        ("lj", "true", "2", NATIVE),
        pytest.param("mixed", "true", "2", PROCESSES, marks=pytest.mark.soak),
        ("mixed", "auto", "0", HERE),
    ],
)
def test_all_contenders_are_measured_and_what_a_run_uses_is_judged(
    corpus, native, workers, in_force, request, quick, tmp_path, capsys
):
    root = request.getfixturevalue(corpus).corpus.root
    flags = ["--train-data", str(root), "--seconds", "0.05", "--buffer-size", "4", "--json", str(tmp_path / "out.json")]
    flags += ["--num-workers", workers, "--set", f"data.use_tf_native_loading={native}"]

    assert bench.run(["data", *flags], "myxtts bench") == 0

    text = capsys.readouterr().out
    figures = json.loads((tmp_path / "out.json").read_text())
    possible = {PROCESSES, NATIVE} if corpus == "lj" else {PROCESSES}
    assert set(figures["loading"]) == {PLAIN, NAIVE, ONE_PINNED, ALL_PINNED, in_force} | possible
    assert all(rate["clips_per_s"] > 0 for rate in figures["loading"].values())
    assert figures["in_force"] == in_force
    assert figures["clips_per_row"] == 2
    assert figures["rows_per_s"] == pytest.approx(figures["loading"][in_force]["clips_per_s"] / 2)
    assert figures["gain"] == pytest.approx(
        figures["loading"][in_force]["clips_per_s"] / figures["loading"][PLAIN]["clips_per_s"]
    )
    assert [line.startswith(in_force) for line in text.splitlines() if "a run uses this" in line] == [True]
    assert ("TF-native loading is in force." in text) == (in_force == NATIVE)
    assert "times the plain loop" in text
    assert "not below naive tf.data" in text


def make_result(workers=2, **rates):
    loading = {PLAIN: 100.0, NAIVE: 150.0, PROCESSES: 200.0, ONE_PINNED: 100.0, ALL_PINNED: 180.0} | rates
    return BenchResult(
        clips=10,
        mean_seconds=3.0,
        batch_size=8,
        workers=workers,
        clips_per_row=2,
        in_force=PROCESSES,
        native_objection="clips are flac",
        stages={"decode": Rate(50.0, 150.0), "resample": None},
        loading={name: Rate(rate, 3 * rate) for name, rate in loading.items()},
        load_average=(0.5, 1.0),
        windows=25,
        discarded=1,
        cores=2,
    )


def test_targets_are_computed_from_the_same_run(tmp_path):
    text = bench_data.format_result(make_result(), tmp_path)
    assert "The machine's own parallel gain: 1.80 (2 pinned processes over one)." in text
    assert "0.85 of it, 1.53 times the plain loop: 2.00, met" in text
    assert "not below naive tf.data: 1.33 times as fast, met" in text


def test_what_a_run_reads_for_its_prompts_is_said(tmp_path):
    text = bench_data.format_result(make_result(), tmp_path)
    assert "a second clip for each voice prompt (prompt_from speaker), so\nit gets at most 100 utterances/s" in text
    alone = bench_data.format_result(replace(make_result(), clips_per_row=1), tmp_path)
    assert "prompt" not in alone


def test_a_busy_machine_is_warned_of(tmp_path):
    quiet = make_result()
    busy = replace(quiet, load_average=(0.6, 1.0))
    assert "Warning" not in bench_data.format_result(quiet, tmp_path)
    assert "Warning  the machine was busy" in bench_data.format_result(busy, tmp_path)


def test_one_worker_has_no_parallel_gain_to_reach():
    assert make_result(workers=1).machine_gain == 1.0


@pytest.mark.parametrize(
    ("rates", "line"),
    [({PROCESSES: 152.0}, "1.53 times the plain loop: 1.52, not met"), ({NAIVE: 201.0}, "1.00 times as fast, not met")],
)
def test_a_missed_target_is_said(rates, line, tmp_path):
    assert line in bench_data.format_result(make_result(**rates), tmp_path)


def test_help_is_there_without_tensorflow():
    code = """
import contextlib, io
from myxtts.cli import bench
out = io.StringIO()
with contextlib.redirect_stdout(out):
    bench.run(["--help"], "myxtts bench")
    with contextlib.suppress(SystemExit):
        bench.run(["data", "--help"], "myxtts bench")
report([out.getvalue(), "tensorflow" in sys.modules, "numpy" in sys.modules])
"""
    text, *loaded = run_code(code)
    assert "usage: myxtts bench WHAT" in text
    assert "--seconds N" in text
    assert "--train-data PATH" in text
    assert loaded == [False, False]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["date"], "Did you mean `myxtts bench data`"),
        (["data", "--seconds", "0"], "--seconds must be a number from 0 to 3600, but is 0"),
        (["data", "--secnds", "1"], "Did you mean --seconds"),
    ],
)
def test_mistakes_are_named(words, message):
    with pytest.raises(CommandLineError, match=message):
        bench.run(words, "myxtts bench")
