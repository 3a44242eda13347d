"""Runs side by side: what is called better, what is not, and what is refused."""

import json
import math
from html.parser import HTMLParser

import pytest

from myxtts.cli import compare
from myxtts.errors import CommandLineError
from myxtts.monitoring.compared_run import read_runs
from myxtts.monitoring.comparison_page import format_comparison_page
from myxtts.monitoring.comparison_view import format_comparison, format_comparison_json
from myxtts.monitoring.errors import MetricsFileError, NotARunError
from myxtts.monitoring.metrics_log import MetricsLog
from myxtts.monitoring.metrics_rows import MemoryUse, SummaryRow, ValidationRow
from myxtts.monitoring.run_comparison import compare_runs
from tests.monitoring.runs import GIB, SETTINGS, make_rows, make_run_row, make_train_row


def write_run(folder, rows):
    with MetricsLog(folder / "metrics.jsonl") as log:
        for row in rows:
            log.write(row)
    return folder


def make_run(steps=40, step_s=0.9, loss=3.0, *, memory_gib=9, run=None, status="finished"):
    """A run of rows of ten steps, with a validation every twenty."""
    rows = [make_run_row(**(run or {}))]
    for step in range(10, steps + 1, 10):
        memory = (MemoryUse("model /GPU:1", memory_gib * GIB, 16 * GIB), MemoryUse("data /GPU:0", None, 8 * GIB))
        rows.append(
            make_train_row(step, losses=(loss + 1 / step,) * 10, step_times_s=(step_s,) * 10, memory=memory)
        )  # fmt: skip
        if step % 20 == 0:
            rows.append(ValidationRow(time_s=0.0, step=step, loss=loss + 2 / step, is_best=True))
    if status:
        rows.append(SummaryRow(time_s=0.0, step=steps, status=status, spent={}))
    return rows


@pytest.fixture
def compare_rows(tmp_path):
    def compare_all(*runs):
        folders = [write_run(tmp_path / f"run{number}", rows) for number, rows in enumerate(runs)]
        return compare_runs(read_runs(folders))

    return compare_all


def find_figure(comparison, name):
    return next(figure for figure in comparison.figures if figure.name == name)


def test_the_better_figure_is_marked_by_what_better_means_for_it(compare_rows):
    comparison = compare_rows(
        make_run(step_s=0.9, loss=3.0, memory_gib=4), make_run(step_s=0.6, loss=3.5, memory_gib=9)
    )
    assert find_figure(comparison, "step time p50").best == {1}
    assert find_figure(comparison, "step time p50").texts == ("900 ms", "600 ms")
    assert find_figure(comparison, "val loss at 40").best == {0}
    assert find_figure(comparison, "memory, model").best == {0}
    assert find_figure(comparison, "steps").best == frozenset()
    assert find_figure(comparison, "goodput").best == frozenset(), "what reads the same is not better"
    # Nobody knows the data device's memory: no figure rather than a zero.
    assert not any(figure.name == "memory, data" for figure in comparison.figures)


def test_a_higher_rate_is_better(compare_rows):
    fast = [make_run_row(), make_train_row(10, clips_per_s=32.0)]
    comparison = compare_rows([make_run_row(), make_train_row(10)], fast)
    assert find_figure(comparison, "clips per s").best == {1}


def test_losses_are_compared_at_the_same_step(compare_rows):
    comparison = compare_rows(make_run(steps=40), make_run(steps=80))
    train = find_figure(comparison, "train loss at 40")
    assert train.values == pytest.approx((3.025, 3.025))
    (training, validation) = comparison.tables
    assert training.steps == (10, 20, 30, 40, 50, 60, 70, 80)
    assert training.losses[-1] == (None, pytest.approx(3 + 1 / 80)), "the shorter run has none there"
    assert validation.steps == (20, 40, 60, 80)
    assert validation.losses[1] == (pytest.approx(3.05), pytest.approx(3.05))


def test_an_unfinished_run_is_compared_and_said_to_be(compare_rows):
    comparison = compare_rows(make_run(), make_run(steps=20, status=""))
    assert comparison.remarks == (
        "B is unfinished (it still runs, or was killed): its figures are of the 20 steps so far.",
    )  # fmt: skip
    assert find_figure(comparison, "val loss at 20").values[1] is not None


@pytest.mark.parametrize(
    ("run", "reason"),
    [
        ({"stage": "codec"}, "different stages (gpt, codec)"),
        ({"settings": {**SETTINGS, "data": {**SETTINGS["data"], "train_data": "other"}}}, "different corpora"),
        ({"settings": {**SETTINGS, "training": {**SETTINGS["training"], "codec": "other"}}}, "different codecs"),
    ],
)
def test_losses_of_different_things_are_not_ranked(compare_rows, run, reason):
    comparison = compare_rows(make_run(loss=3.0), make_run(loss=4.0, run=run))
    assert reason in comparison.remarks[0]
    assert find_figure(comparison, "best val loss").best == frozenset()


def test_step_times_of_unequal_steps_are_not_ranked(compare_rows):
    larger = {**SETTINGS, "data": {**SETTINGS["data"], "batch_size": 16}}
    comparison = compare_rows(make_run(step_s=0.9), make_run(step_s=1.2, run={"settings": larger}))
    assert find_figure(comparison, "step time p50").best == frozenset()
    assert "a step is not the same work" in comparison.remarks[0]
    assert ("data.batch_size", ("8", "16")) in [(one.key, one.texts) for one in comparison.differences]


def test_mode_devices_and_software_that_differ_are_listed_and_nothing_else(compare_rows):
    other = {
        "mode": "single",
        "devices": {"data": "/GPU:0", "model": "/GPU:0"},
        "environment": {"tensorflow": "2.18.0"},
    }
    comparison = compare_rows(make_run(), make_run(run=other))
    assert [one.key for one in comparison.differences] == ["mode", "model device", "environment tensorflow"]


def test_the_terminal_view_fits_80_columns_however_many_runs_there_are(compare_rows):
    comparison = compare_rows(*(make_run(step_s=0.5 + number / 10) for number in range(6)))
    text = format_comparison(comparison)
    assert max(len(line) for line in text.splitlines()[6:]) <= 80
    assert "500 ms *" in text
    assert text.count("step time p50") == 2, "more than four stand in a second block"
    assert all(f"{name}  " in text for name in "ABCDEF")


def test_a_loss_that_is_no_number_is_never_better_and_is_written(compare_rows):
    broken = [make_run_row(), make_train_row(10, losses=(math.nan,) * 10)]
    comparison = compare_rows(broken, [make_run_row(), make_train_row(10)])
    assert find_figure(comparison, "train loss at 10").best == frozenset()
    content = json.loads(format_comparison_json(comparison))
    assert content["runs"][0]["training_losses"] == [[10, "nan"]]
    assert "nan" in format_comparison(comparison)


def test_the_page_stands_alone_and_overlays_the_curves(compare_rows):
    page = format_comparison_page(compare_rows(make_run(), make_run(steps=80, run={"mode": "<b>"})))
    tags = []
    reader = HTMLParser()
    reader.handle_starttag = lambda tag, attributes: tags.append((tag, dict(attributes)))
    reader.feed(page)
    assert not any(tag in ("script", "link", "img") for tag, _ in tags)
    assert "<b></td>" not in page, "what runs are called is escaped"
    lines = [attributes["class"] for tag, attributes in tags if tag == "polyline"]
    assert lines == ["c0", "c1", "c0", "c1"], "both runs in both charts, each in its colour"


def test_a_long_run_is_shown_at_a_few_steps(compare_rows):
    comparison = compare_rows(make_rows(), make_run())
    assert len(comparison.tables[0].steps) == 8
    assert comparison.tables[0].steps[0] == 10
    assert comparison.tables[0].steps[-1] == 400


def test_what_is_no_run_is_refused_with_what_is_there(tmp_path):
    write_run(tmp_path / "runs" / "one", make_run())
    with pytest.raises(NotARunError, match="is not a run, but holds some: one"):
        read_runs([tmp_path / "runs" / "one", tmp_path / "runs"])
    with pytest.raises(NotARunError, match="there is nothing with this name"):
        read_runs([tmp_path / "nowhere", tmp_path / "runs" / "one"])
    (tmp_path / "empty").mkdir()
    with pytest.raises(NotARunError, match=r"it has no metrics\.jsonl"):
        read_runs([tmp_path / "empty", tmp_path / "runs" / "one"])
    with pytest.raises(NotARunError, match="the same one"):
        read_runs([tmp_path / "runs" / "one", tmp_path / "runs" / ".." / "runs" / "one"])
    (tmp_path / "empty" / "metrics.jsonl").touch()
    with pytest.raises(MetricsFileError, match="holds no rows"):
        read_runs([tmp_path / "empty"])


def test_the_command_prints_and_writes(tmp_path, capsys):
    folders = [str(write_run(tmp_path / name, make_run())) for name in ("one", "two")]
    html, figures = tmp_path / "page.html", tmp_path / "figures.json"
    assert compare.run([*folders, "--html", str(html), "--json", str(figures)], "myxtts compare") == 0
    said = capsys.readouterr().out
    assert "step time p50" in said
    assert str(html) in said
    assert html.read_text().startswith("<!doctype html>")
    assert [run["name"] for run in json.loads(figures.read_text())["runs"]] == ["A", "B"]


def test_one_run_is_not_enough():
    with pytest.raises(CommandLineError, match="Two runs or more"):
        compare.run(["runs/one"], "myxtts compare")
