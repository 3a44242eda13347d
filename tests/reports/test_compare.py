"""`myxtts compare`: what is called better, what is not, and what is refused."""

import json
import math

import pytest

from myxtts.cli.runs import run_compare
from myxtts.errors import CommandLineError, NotARunError
from myxtts.monitoring.metrics import MemoryUse, MetricsLog, SummaryRow, ValidationRow
from tests.monitoring.runs import GIB, SETTINGS, make_run_row, make_train_row


def write_run(folder, rows):
    with MetricsLog(folder / "metrics.jsonl") as log:
        for row in rows:
            log.write(row)
    return folder


def make_run(steps=40, step_s=0.9, loss=3.0, *, memory_gib=9, rate=16.0, run=None, status="finished"):
    """A run of rows of ten steps, with a validation every twenty."""
    rows = [make_run_row(**(run or {}))]
    for step in range(10, steps + 1, 10):
        memory = (MemoryUse("model /GPU:1", memory_gib * GIB, 16 * GIB), MemoryUse("data /GPU:0", None, 8 * GIB))
        times = {"step_times_s": (step_s,) * 10, "clips_per_s": rate}
        rows.append(make_train_row(step, losses=(loss + 1 / step,) * 10, memory=memory, **times))
        if step % 20 == 0:
            rows.append(ValidationRow(time_s=0.0, step=step, loss=loss + 2 / step, is_best=True))
    if status:
        rows.append(SummaryRow(time_s=0.0, step=steps, status=status, spent={}))
    return rows


def compare_folders(*folders, **files):
    flags = [word for name, path in files.items() for word in (f"--{name}", str(path))]
    return run_compare([*map(str, folders), *flags], "myxtts compare")


@pytest.fixture
def compare_rows(tmp_path):
    """Compares runs of these rows; gives what is written as JSON, its figures by name."""

    def compare_all(*runs):
        folders = [write_run(tmp_path / f"run{number}", rows) for number, rows in enumerate(runs)]
        assert compare_folders(*folders, json=tmp_path / "compared.json") == 0
        found = json.loads((tmp_path / "compared.json").read_text())
        return found | {"figures": {figure["name"]: figure for figure in found["figures"]}}

    return compare_all


def test_the_better_figure_is_marked_by_what_better_means_for_it(compare_rows, capsys):
    slow, fast = make_run(step_s=0.9, loss=3.0, memory_gib=4), make_run(step_s=0.6, loss=3.5, memory_gib=9, rate=32.0)
    figures = compare_rows(slow, fast)["figures"]
    better = {name: figure["better"] for name, figure in figures.items()}
    assert better["step time p50"] == better["clips per s"] == ["B"]
    assert better["val loss at 40"] == better["memory, model"] == ["A"]
    assert better["steps"] == []
    assert better["goodput"] == [], "what reads the same is not better"
    # Nobody knows the data device's memory: no figure rather than a zero.
    assert "memory, data" not in figures
    said = capsys.readouterr().out
    assert "900 ms              600 ms *" in said


def test_losses_are_compared_at_the_same_step_and_an_unfinished_run_is_said_to_be_one(compare_rows):
    found = compare_rows(make_run(steps=40), make_run(steps=80, status=""))
    assert found["figures"]["train loss at 40"]["values"] == pytest.approx([3.025, 3.025])
    assert found["figures"]["val loss at 40"]["values"] == pytest.approx([3.05, 3.05])
    assert found["remarks"] == [
        "B is unfinished (it still runs, or was killed): its figures are of the 80 steps so far."
    ]


def change(section, **values):
    return {"settings": {**SETTINGS, section: {**SETTINGS[section], **values}}}


@pytest.mark.parametrize(
    ("run", "reason", "figure"),
    [
        ({"stage": "codec"}, "different stages (gpt, codec)", "best val loss"),
        (change("data", train_data="other"), "different corpora", "best val loss"),
        (change("training", codec="other"), "different codecs", "best val loss"),
        (change("data", batch_size=16), "a step is not the same work", "step time p50"),
    ],
)
def test_figures_of_different_things_are_not_ranked(compare_rows, run, reason, figure):
    found = compare_rows(make_run(loss=3.0, step_s=0.9), make_run(loss=4.0, step_s=1.2, run=run))
    assert reason in found["remarks"][0]
    assert found["figures"][figure]["better"] == []


def test_mode_devices_and_software_that_differ_are_listed_and_nothing_else(compare_rows, capsys):
    other = {
        "mode": "single",
        "devices": {"data": "/GPU:0", "model": "/GPU:0"},
        "environment": {"tensorflow": "2.18.0"},
    }
    found = compare_rows(make_run(), make_run(run=other | change("data", batch_size=16)))
    assert list(found["differences"]) == ["mode", "model device", "data.batch_size", "environment tensorflow"]
    assert found["differences"]["data.batch_size"] == ["8", "16"]
    assert "\nenvironment tensorflow\n" in capsys.readouterr().out, "a key too long for its column has a line"


def test_the_terminal_view_fits_80_columns_however_many_runs_there_are(compare_rows, capsys):
    compare_rows(*(make_run(step_s=0.5 + number / 10) for number in range(6)))
    lines = capsys.readouterr().out.splitlines()
    assert [line[:3] for line in lines[:6]] == [f"{name}  " for name in "ABCDEF"]
    assert max(map(len, lines[6:-1])) <= 80
    assert sum(line.startswith("step time p50") for line in lines) == 2, "more than four stand in a second block"


def test_a_loss_that_is_no_number_is_never_better_and_is_written(compare_rows, capsys):
    broken = [make_run_row(), make_train_row(10, losses=(math.nan,) * 10)]
    loss = compare_rows(broken, [make_run_row(), make_train_row(10)])["figures"]["train loss at 10"]
    assert (loss["values"][0], loss["better"]) == ("nan", [])
    assert " nan " in capsys.readouterr().out


def test_what_is_no_run_is_refused_with_what_is_there(tmp_path):
    one = write_run(tmp_path / "runs" / "one", make_run())
    (tmp_path / "empty").mkdir()
    for other, why in (
        (tmp_path / "runs", "is not a run, but holds some: one"),
        (tmp_path / "nowhere", "there is nothing with this name"),
        (tmp_path / "empty", r"it has no metrics\.jsonl"),
        (tmp_path / "runs" / ".." / "runs" / "one", "the same one"),
    ):
        with pytest.raises(NotARunError, match=why):
            compare_folders(one, other)
    (tmp_path / "empty" / "metrics.jsonl").touch()
    with pytest.raises(NotARunError, match="holds no rows"):
        compare_folders(one, tmp_path / "empty")
    with pytest.raises(CommandLineError, match="Two runs or more"):
        compare_folders(one)


def test_the_page_has_the_figures_and_says_where_it_is(tmp_path, capsys):
    folders = [write_run(tmp_path / name, make_run(step_s=step_s)) for name, step_s in (("one", 0.9), ("two", 0.6))]
    compare_folders(*folders, html=tmp_path / "page.html")
    assert f"Page     {tmp_path / 'page.html'}" in capsys.readouterr().out
    page = (tmp_path / "page.html").read_text()
    assert '<td>step time p50</td><td class="number">900 ms</td><td class="number"><b>600 ms</b></td>' in page
    assert "Nothing: mode, devices, settings and software are the same." in page
