"""Pages: what stands on them, that they need nothing from outside, and that no name can change them."""

import io
import math
import os
import re
from dataclasses import replace
from html.parser import HTMLParser

import numpy as np
import pytest
import soundfile
from PIL import Image

from myxtts.cli.main import main
from myxtts.evaluation.page import format_page as format_evaluation_page
from myxtts.monitoring.findings import Settings
from myxtts.monitoring.memory import LEAK_EVENT
from myxtts.monitoring.metrics import EventRow, MemoryUse, Metrics, SummaryRow, open_metrics_log
from myxtts.monitoring.profile_facts import judge_profile
from myxtts.reports.charts import MOST_POINTS, Series, draw_histogram, draw_lines
from myxtts.reports.pages import (
    encode_png,
    format_run_page,
    name_sample,
    note_clip,
    write_listening_page,
    write_run_page,
)
from myxtts.tuning.profile import format_page as format_profile_page
from tests.evaluation.builders import ORIGINAL, SPOKEN, make_evaluation, make_failure, make_sentence
from tests.monitoring.profiles import Stages, make_profile, make_run
from tests.monitoring.runs import make_flow, make_rows, make_run_row, make_train_row

VOID = {"meta", "br", "line", "rect", "circle", "polyline", "img"}
HARMLESS = "name"
HOSTILE = "<script>alert(1)<b>\"'>&amp;{{ 7 * 7 }}\x1b[31m\x85\udc80z"
"""Of characters that a file's name may have."""


class Outline(HTMLParser):
    """The tags of a page with their attributes' names, in order; whatever is opened is closed."""

    def __init__(self, page):
        super().__init__()
        self.tags, self.open = [], []
        self.feed(page)
        assert self.open == []

    def handle_starttag(self, tag, attributes):
        self.tags.append((tag, *(name for name, _ in attributes)))
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag):
        if tag not in VOID:
            assert self.open.pop() == tag


def make_page(*rows, unreadable=0):
    page = format_run_page(Metrics(rows, unreadable))
    Outline(page)
    return page


def name_everything(name):
    """The rows of a run in which everything that has a name has this one."""
    flow = make_flow()
    flow = replace(flow, handoffs=tuple(replace(handoff, name=name) for handoff in flow.handoffs))
    return [
        make_run_row(stage=name, mode=name, devices={name: name}, settings={"data": {name: name}}, environment={name: name}),
        make_train_row(10, flow=flow, memory=(MemoryUse(f"model {name}", 2**30, None),)),
        EventRow(time_s=0.0, step=10, name=name, text=name),
        EventRow(time_s=0.0, step=10, name=LEAK_EVENT, text=name),
        SummaryRow(time_s=0.0, step=10, status=name, spent={}),
    ]  # fmt: skip


def write_rows(folder, rows):
    with open_metrics_log(folder / "metrics.jsonl")[0] as log:
        for row in rows:
            log.write(row)


def make_run_page(folder, name):
    return format_run_page(Metrics(name_everything(name), 0))


def make_profile_page(folder, name):
    run = replace(make_run(), mode=name, data_device=name, model_device=name, model=name, corpus=name, notes=(name,))
    profile = make_profile(Stages(read=40), run=run, card_problem=name, memory=(MemoryUse(f"data {name}", None, None),))
    verdict = judge_profile(profile, Settings({}))
    rules = tuple(replace(rule, title=name, evidence=name, advice=(name,)) for rule in verdict.rules)
    return format_profile_page(profile, replace(verdict, rules=rules))


def make_listening_page(folder, name):
    run, sound = folder / name, np.random.default_rng(1).normal(0, 0.1, 3000)
    (run / "samples").mkdir(parents=True)
    # A log is JSON, in which half a character is none.
    write_rows(run, name_everything(name.replace("\udc80", "")))
    soundfile.write(os.fsencode(run / "samples" / name_sample(10)), sound, 22050, format="WAV")
    note_clip(run, name, folder / f"{name}.wav")
    write_listening_page(run, folder / "listen.html")
    return (folder / "listen.html").read_text(encoding="utf-8")


def make_corpus_page(folder, name):
    # A path that is given must be text.
    corpus = folder / name.replace("\udc80", "")
    (corpus / "wavs").mkdir(parents=True)
    for clip in ("a", "b"):
        sound = np.random.default_rng(1).normal(0, 0.1, 30000)
        soundfile.write(corpus / "wavs" / f"{clip}.wav", sound, 22050)
    (corpus / "metadata.csv").write_text(f"a|one\nb|two\n{corpus.name}|three\n", encoding="utf-8")
    page = folder / "corpus.html"
    assert main(["data", "--train-data", str(corpus), "--num-workers", "0", "--html", str(page)]) == 0
    return page.read_text(encoding="utf-8")


def make_evaluation_page(folder, name):
    voice = {"kind": name, "recordings": [name]}
    heard = {ORIGINAL: name, SPOKEN: name}
    sentence = make_sentence(0, heard, folder, name=name, text=name, speaker=name, voice=voice)
    facts = {
        "checkpoint": {"name": name, "sound": name, "vocoder": name}, "data": {"name": name, "split": name},
        "settings": {name: name}, "judges": {"recogniser": name, "speaker_judge": name},
    }  # fmt: skip
    gap = dict.fromkeys(("what", "why", "how"), name)
    return format_evaluation_page(make_evaluation([sentence], [make_failure(name, name)], [gap], **facts), folder)


PAGES = (make_run_page, make_profile_page, make_listening_page, make_corpus_page, make_evaluation_page)


@pytest.mark.parametrize("make", PAGES)
def test_no_name_changes_a_page(make, tmp_path):
    pages = []
    for number, name in enumerate((HARMLESS, HOSTILE)):
        (tmp_path / str(number)).mkdir()
        pages.append(make(tmp_path / str(number), name))
    harmless, hostile = pages
    assert Outline(hostile).tags == Outline(harmless).tags
    assert "<script" not in hostile
    assert "&lt;script&gt;alert(1)&lt;b&gt;&#34;&#39;&gt;&amp;amp;{{ 7 * 7 }}" in hostile
    assert r"\x1b[31m\x85" in hostile
    assert not re.search("[\x00-\x08\x0b-\x1f\x7f-\x9f\ud800-\udfff]", hostile)
    assert not re.search(r"https?://|<link|@import|url\(|src=\"(?!data:)", hostile), "it needs nothing from outside"


def test_the_page_of_a_run_has_every_section(tmp_path):
    write_rows(tmp_path, make_rows())
    write_run_page(tmp_path / "metrics.jsonl", tmp_path / "report.html")
    page = (tmp_path / "report.html").read_text(encoding="utf-8")
    assert len(re.findall("<h2>(.*?)</h2>", page)) == 9
    assert page.count("<svg") == 7
    assert "prefers-color-scheme: dark" in page
    assert set(re.findall(r'class="(c\d+)"', page)) <= set(re.findall(r"\.(c\d+) {", page)), "every part has its colour"
    for words in (
        "81.8%", "7 min 15 s", "Try first: --mixed-precision", "waits for a slot", "/GPU:1", "producer died", "p95",
        "GPU 1: the driver says: busy 90.0%, 310 W of 350 W", "GPU 0: the driver says: busy unknown, unknown, unknown",
        "Host: processors busy 40.0%, processes of", "killed by &lt;SIGKILL&gt; &amp; restarted", ">read: busy 5.0%<",
        ">prepare: busy 45.0%<", ">prepare: waits for a slot 40.0%<", ">transfer: waits for a batch", ">transfer: waits for a slot 30.0%<",
    ):  # fmt: skip
        assert words in page, words
    assert not re.search(">(read: waits|prepare: waits for a batch)", page)


def test_the_page_of_a_run_that_has_just_begun_says_what_is_unknown():
    page = make_page(make_run_row(), unreadable=1)
    for words in ("Nothing was trained yet.", "Running or killed", "No finite value yet.", "1 lines of the metrics"):
        assert words in page
    assert page.count('class="unknown"') == 7
    assert "nan" not in page.lower()
    assert "None" not in page.replace("<p>None.</p>", "")


def test_losses_that_are_not_finite_leave_a_gap():
    rows = [make_train_row(step, losses=(math.nan if step == 30 else 4.0 - step / 100,)) for step in range(10, 60, 10)]
    page = make_page(make_run_row(), *rows)
    assert page[page.index("<h2>Loss") : page.index("<h2>Where")].count("<polyline") == 2


def test_only_the_last_events_of_many_are_shown():
    events = [EventRow(time_s=1.0, step=n, name="retrace", text=f"number {n}") for n in range(300)]
    page = make_page(make_run_row(), *events)
    assert "The last 200 of 300." in page
    assert "number 299<" in page
    assert "number 99<" not in page


def test_pool_process_and_context_stand_apart_and_what_grows_is_said_first():
    use = MemoryUse("model /GPU:0", 2**30, 2**34, 2**30, 17 * 2**30, 2**29)
    leak = "Memory keeps growing: host memory of the trainer, 120 MB per 100 steps, in the training of the gpt stage"
    event = EventRow(time_s=0.0, step=10, name=LEAK_EVENT, text=leak)
    page = make_page(make_run_row(), make_train_row(10, memory=(use, MemoryUse("host, trainer", None, None))), event)
    cells = re.findall("<td[^>]*>([^<]*)</td>", page)
    first = cells.index("model /GPU:0")
    assert cells[first + 1 : first + 6] == ["1.0 GB", "16.0 GB", "1.0 GB", "17.0 GB", "512.0 MB"]
    assert cells[first + 6 : first + 12] == ["host, trainer", *["unknown"] * 5]
    assert page.index(leak) < page.index("<h2>")


def test_lines_are_drawn_to_scale_and_long_ones_are_thinned_to_their_means():
    picture = draw_lines([Series("loss", [(0.0, 0.0), (100.0, 10.0)])], "step", str)
    assert re.findall('points="(.*?)"', picture) == ["64.0,200.0 704.0,12.0"]
    anchors = {text: anchor for anchor, text in re.findall(r'text-anchor="(\w+)">(\d+)<', picture)}
    assert (anchors["60"], anchors["100"]) == ("middle", "end"), "the last label ends inside the picture"
    picture = draw_lines([Series("loss", [(float(n), float(n % 2)) for n in range(10 * MOST_POINTS)])], "step", str)
    (points,) = [line.split() for line in re.findall('points="(.*?)"', picture)]
    assert len(points) == MOST_POINTS
    assert len({point.partition(",")[2] for point in points}) == 1


def test_a_histogram_counts_every_value_once_and_in_whole_numbers():
    picture = draw_histogram([0.1] * 50 + [0.2] * 49 + [9.0], lambda seconds: f"{seconds:.3f}")
    counts = [int(count) for count in re.findall(r": (\d+)</title>", picture)]
    assert (sum(counts), counts[0]) == (100, 50)
    few = draw_histogram([0.1, 0.2, 0.3], lambda seconds: f"{seconds:.3f}")
    assert [label for label in re.findall(r'text-anchor="end">([^<]*)<', few) if label] == ["0", "1"]
    assert len(re.findall('<rect class="c0"', few)) == 3


def test_a_picture_is_a_png_with_its_pixels():
    pixels = np.random.default_rng(2).integers(0, 256, (5, 7, 3), dtype=np.uint8)
    np.testing.assert_array_equal(np.asarray(Image.open(io.BytesIO(encode_png(pixels)))), pixels)
