import math
import re
from html.parser import HTMLParser

import pytest

from myxtts.monitoring.memory_watch import LEAK_EVENT
from myxtts.monitoring.metrics_log import Metrics, open_metrics_log
from myxtts.monitoring.metrics_rows import EventRow, MemoryUse
from myxtts.monitoring.report import format_report, write_report
from myxtts.monitoring.svg import MOST_POINTS, Axis, Part, Series, draw_bars, draw_histogram, draw_lines, thin_points
from tests.monitoring.runs import make_rows, make_run_row, make_train_row

VOID = {"meta", "br", "line", "rect", "circle", "polyline"}


class Balance(HTMLParser):
    """Every tag that is opened is closed, in order."""

    def __init__(self):
        super().__init__()
        self.open = []

    def handle_starttag(self, tag, attributes):
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag):
        if tag not in VOID:
            assert self.open.pop() == tag


def make_page(*rows, unreadable=0):
    page = format_report(Metrics(rows, unreadable))
    balance = Balance()
    balance.feed(page)
    assert balance.open == []
    return page


def test_the_page_of_a_run_has_every_section(tmp_path):
    log, _ = open_metrics_log(tmp_path / "metrics.jsonl")
    with log:
        for row in make_rows():
            log.write(row)
    write_report(tmp_path / "metrics.jsonl", tmp_path / "report.html")
    page = (tmp_path / "report.html").read_text(encoding="utf-8")
    sections = re.findall("<h2>(.*?)</h2>", page)
    assert len(sections) == 9
    assert page.count("<svg") == 8
    for words in (
        "81.8%",
        "7 min 15 s",
        "Try first: --mixed-precision",
        "waits for a slot",
        "/GPU:1",
        "unknown",
        "producer died",
        "p95",
        "GPU 1: the driver says: busy 90.0%, 310 W of 350 W",
        "GPU 0: the driver says: busy unknown, unknown, unknown",
        "Host: processors busy 40.0%, disks read unknown",
    ):
        assert words in page, words
    assert "killed by &lt;SIGKILL&gt; &amp; restarted" in page


def test_the_page_needs_nothing_from_outside():
    page = make_page(*make_rows())
    assert not re.search(r"https?://|<script|<link|<img|@import|url\(|src=", page)
    assert "prefers-color-scheme: dark" in page


def test_the_page_of_a_run_that_has_just_begun_says_what_is_unknown():
    page = make_page(make_run_row(), unreadable=1)
    assert "Nothing was trained yet." in page
    assert "Running or killed" in page
    assert "No finite value yet." in page
    assert "1 lines of the metrics file could not be read" in page
    assert "nan" not in page.lower().replace("finance", "")


def test_losses_that_are_not_finite_leave_a_gap():
    rows = [make_train_row(step, losses=(math.nan if step == 30 else 4.0 - step / 100,)) for step in range(10, 60, 10)]
    page = make_page(make_run_row(), *rows)
    loss_chart = page[page.index("<h2>Loss") : page.index("<h2>Where")]
    assert loss_chart.count("<polyline") == 2


def test_only_the_last_events_of_many_are_shown():
    events = [EventRow(time_s=1.0, step=n, name="retrace", text=f"number {n}") for n in range(300)]
    page = make_page(make_run_row(), *events)
    assert "The last 200 of 300." in page
    assert "number 299" in page
    assert "number 99<" not in page


@pytest.mark.parametrize(
    ("low", "high", "ticks"),
    [(0.0, 1.0, [0.0, 0.2, 0.4, 0.6, 0.8, 1.0]), (3.1, 4.9, [3.5, 4.0, 4.5]), (10.0, 400.0, [100.0, 200.0, 300.0, 400.0]), (2.0, 2.0, [2.0])],
)  # fmt: skip
def test_ticks_are_round_and_inside(low, high, ticks):
    assert Axis(low, high, 0, 100).list_ticks(5) == pytest.approx(ticks)


def test_lines_are_drawn_to_scale():
    page = draw_lines([Series("loss", [(0.0, 0.0), (100.0, 10.0)])], "step", str)
    (points,) = re.findall('points="(.*?)"', page)
    assert points == "64.0,200.0 704.0,12.0"


def test_a_long_curve_is_thinned_to_its_means():
    points = [(float(n), float(n % 2)) for n in range(10 * MOST_POINTS)]
    thinned = thin_points(points)
    assert len(thinned) == MOST_POINTS
    assert all(y == 0.5 for _, y in thinned)
    assert thinned[-1][0] == points[-1][0]
    assert thin_points(points[:5]) == points[:5]


def test_a_histogram_counts_every_value_once():
    page = draw_histogram([0.1] * 50 + [0.2] * 49 + [9.0], lambda seconds: f"{seconds:.3f}")
    counts = [int(count) for count in re.findall(r": (\d+)</title>", page)]
    assert sum(counts) == 100
    assert counts[0] == 50
    assert "No value" in draw_histogram([], str)
    assert draw_histogram([1.0, 1.0], str).count("<title>") == 1


def test_the_last_label_of_an_axis_ends_inside_the_picture():
    page = draw_lines([Series("loss", [(0.0, 1.0), (100.0, 2.0)])], "step", str)
    anchors = {text: anchor for anchor, text in re.findall(r'text-anchor="(\w+)">(\d+)<', page)}
    assert anchors["100"] == "end"
    assert anchors["60"] == "middle"


def test_a_histogram_of_few_values_is_no_comb_and_counts_in_whole_numbers():
    page = draw_histogram([0.1, 0.2, 0.3], lambda seconds: f"{seconds:.3f}")
    labels = re.findall(r'text-anchor="end">([^<]*)<', page)
    assert [label for label in labels if label] == ["0", "1"]
    widths = [float(width) for width in re.findall(r'<rect class="c0" .*?width="([\d.]+)"', page)]
    assert len(widths) == 3
    assert min(widths) > 70, "an eighth of the picture"


def test_bars_never_leave_their_row():
    page = draw_bars([("train", [Part("busy", 0.8, 0), Part("waits", 0.5, 1)])])
    widths = [float(width) for width in re.findall(r'class="c\d" x="[\d.]+" y="\d+" width="([\d.]+)"', page)]
    (room,) = [float(width) for width in re.findall(r'class="rest".*? width="([\d.]+)"', page)]
    assert sum(widths) == pytest.approx(room)
    assert widths[0] == pytest.approx(0.8 * room, abs=0.1)


def test_pool_process_and_context_stand_apart_and_what_grows_is_said_first():
    use = MemoryUse("model /GPU:0", 2**30, 2**34, 2**30, 17 * 2**30, 2**29)
    leak = "Memory keeps growing: host memory of the trainer, 120 MB per 100 steps, in the training of the gpt stage"
    event = EventRow(time_s=0.0, step=10, name=LEAK_EVENT, text=leak)
    page = make_page(make_run_row(), make_train_row(10, memory=(use, MemoryUse("host, trainer", None, None))), event)
    cells = re.findall("<td[^>]*>([^<]*)</td>", page)
    start = cells.index("model /GPU:0")
    assert cells[start : start + 6] == ["model /GPU:0", "1.0 GB", "16.0 GB", "1.0 GB", "17.0 GB", "512.0 MB"]
    start = cells.index("host, trainer")
    assert cells[start : start + 6] == ["host, trainer", *["unknown"] * 5]
    assert page.index(leak) < page.index("<h2>")
