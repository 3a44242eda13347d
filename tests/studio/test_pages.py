"""What the pages say and do, asked as a browser asks: words, corpora, runs and the commands behind them."""

import errno
import json
import os
import re
import signal
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from myxtts.errors import DropReason
from myxtts.recordings.book import read_book, write_corpus
from myxtts.studio import corpora
from myxtts.studio.app import PAGES, read_words
from myxtts.studio.jobs import Jobs
from myxtts.studio.trainings import find_trainer, make_config, read_settings, spell_words
from myxtts.training.run_folder import hold_run_folder
from tests.studio.material import write_book_of, write_run
from tests.support.processes import ROOT

TEMPLATES = ROOT / "myxtts" / "studio" / "templates"


@pytest.fixture
def corpus(studio):
    name = f"corpus-{time.monotonic_ns()}"
    return write_book_of(studio.workspace.corpora / name, 5)


@pytest.fixture
def run(studio):
    return write_run(studio.workspace.runs / f"run-{time.monotonic_ns()}")


def test_every_word_is_there_in_both_languages():
    words = read_words()
    assert {len(each) for each in words.values()} == {2}
    assert all(text.strip() for each in words.values() for text in each)
    for fa in (each[1] for key, each in words.items() if key not in ("run.loss", "speak.top_p", "training.cpu")):
        assert re.search("[\u0600-\u06ff]", fa), fa
    used = {key for path in TEMPLATES.glob("*.html") for key in re.findall(r"""say\(["']([\w.]+)["']""", path.read_text())}  # fmt: skip
    script = (ROOT / "myxtts" / "studio" / "static" / "studio.js").read_text()
    used |= {f"js.{key}" for key in re.findall(r'say\("(\w+)"', script)}
    used = {key for key in used if not key.endswith(".")}
    assert used - set(words) == set()
    assert {f"why.{reason}" for reason in DropReason} <= set(words)
    for status in ("starting", "training", "stopping", "finished", "stopped", "failed", "died"):
        assert {f"status.{status}", f"explain.{status}"} <= set(words)


def test_errors_of_the_studio_are_told_in_the_language_of_the_page(client, corpus):
    def say(method, path, fields=None):
        return client.ask(method, path, fields, **{"Accept-Language": "fa"}).error["message"]

    assert say("GET", f"/corpora/{corpus.name}/clips/none/sound") == "چنین چیزی نیست (clip)."
    assert say("POST", f"/corpora/{corpus.name}/clips/clip_00000", {"text": " "}).startswith("متن باید ۱ تا 2000 نویسه")
    assert say("POST", "/corpora", {"name": "x"}) == "یک ضبط یا بیشتر انتخاب کنید."
    english = client.ask("POST", "/corpora", {"name": "x"}).error["message"]
    assert english == "Choose one recording or more."
    assert say("POST", "/recordings", {}).isascii(), "what others say is left as it is"


def test_every_translated_error_is_one_that_is_said():
    """Where the words of an error change, its translation would no longer be found."""
    sources = "".join(path.read_text() for path in (ROOT / "myxtts" / "studio").glob("*.py"))
    joined = re.sub(r"\{[^{}\n]*(\{[^{}\n]*\}[^{}\n]*)*\}", "{}", re.sub(r'"\s*\n\s*f?"', "", sources))
    for key, (english, _) in read_words().items():
        if key.startswith("error."):
            assert re.sub(r"\{\w+\}", "{}", english) in joined, key


def test_a_script_is_split_where_its_sentences_end(client):
    def split(text):
        return json.loads(client.ask("POST", "/sentences", {"text": text}).body)

    assert split("Dr. Who paid 3.5 dollars. And left!\nA line") == ["Dr. Who paid 3.5 dollars.", "And left!", "A line"]
    assert split("سلام. خوبی؟ بله") == ["سلام.", "خوبی؟", "بله"]
    assert split(" \n ") == []


@pytest.mark.parametrize("page", PAGES)
def test_every_page_is_there_in_both_languages_and_the_choice_is_kept(client, corpus, run, page):
    persian = client.ask("GET", f"/{page}?lang=fa")
    assert persian.status == 200
    assert b'lang="fa" dir="rtl"' in persian.body
    assert "lang=fa" in persian.headers["Set-Cookie"]
    assert b'lang="en" dir="ltr"' in client.ask("GET", f"/{page}").body
    assert b'lang="fa"' in client.ask("GET", f"/{page}", **{"Accept-Language": "fa-IR,fa;q=0.9"}).body
    assert b"://" not in re.sub(rb"http://www.w3.org/\S+", b"", persian.body), "nothing is loaded from elsewhere"


def test_a_page_that_is_not_there_is_told_on_a_page(client):
    answer = client.ask("GET", "/corpora/none", Accept="text/html")
    assert answer.status == 404
    assert b"There is no such corpus." in answer.body
    assert b"<nav" in answer.body


def test_a_mended_text_is_what_training_reads(client, corpus):
    answer = client.ask("POST", f"/corpora/{corpus.name}/clips/clip_00001", {"text": " A |mended\ntext. "})
    assert answer.status == 200
    lines = (corpus / "metadata.csv").read_text().splitlines()
    assert lines[1] == "clip_00001|A mended text.|A mended text."
    assert len(lines) == 4
    assert client.ask("POST", f"/corpora/{corpus.name}/clips/clip_00001", {"text": "  "}).status == 400
    assert client.ask("POST", f"/corpora/{corpus.name}/clips/clip_99999", {"text": "x"}).status == 404


def test_clips_are_dropped_and_kept_and_move_with_that(client, corpus):
    url = f"/corpora/{corpus.name}/clips"
    dropped = client.ask("POST", f"{url}/clip_00000", {"kept": "no"})
    assert "3 of 5 clips" in dropped.body.decode()
    assert (corpus / "aside" / "clip_00000.wav").exists()
    assert read_book(corpus).clips[0].reasons == ["by_hand"]
    assert client.ask("POST", f"{url}/clip_00004", {"kept": "yes"}).status == 200
    assert client.ask("POST", f"{url}/clip_00000", {"kept": "yes"}).status == 200
    book = read_book(corpus)
    assert [clip.kept for clip in book.clips] == [True] * 5
    assert (book.clips[0].reasons, book.clips[4].reasons) == ([], ["misheard"])
    assert client.ask("GET", f"{url}/clip_00000/sound", Range="bytes=0-3").body == b"RIFF"
    assert client.ask("GET", f"{url}/clip_00000/wave.svg").body.startswith(b"<svg")


def test_doubtful_clips_come_first_and_views_show_some(client, corpus):
    def list_ids(query=""):
        return re.findall(r'title="(clip_\d+)"', client.ask("GET", f"/corpora/{corpus.name}{query}").body.decode())

    assert list_ids() == ["clip_00003", "clip_00004", "clip_00000", "clip_00001", "clip_00002"]
    assert list_ids("?view=doubtful") == ["clip_00003", "clip_00004"]
    assert list_ids("?view=dropped") == ["clip_00004"]
    assert "clip_00004" not in list_ids("?view=kept")
    assert client.ask("GET", f"/corpora/{corpus.name}?view=../x").status == 404


def test_where_the_disk_is_full_a_change_is_told_and_taken_back(client, corpus, monkeypatch):
    def fail(*_):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(corpora, "write_corpus", fail)
    answer = client.ask("POST", f"/corpora/{corpus.name}/clips/clip_00000", {"text": "Lost."})
    assert answer.status == 507
    assert "full" in answer.error["message"]
    assert "Lost." not in client.ask("GET", f"/corpora/{corpus.name}").body.decode()


def test_a_clip_of_the_book_that_leads_out_is_not_played(client, corpus):
    book = json.loads((corpus / "clips.json").read_text())
    book["clips"][0]["id"] = "../../../../../../etc/hostname"
    (corpus / "clips.json").write_text(json.dumps(book))
    name = "..%2f..%2f..%2f..%2f..%2f..%2fetc%2fhostname"
    assert client.ask("GET", f"/corpora/{corpus.name}/clips/{name}/sound").status == 404


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"start": "base", "steps": "5"}, ["--init-from", "base", "--max-steps", "5"]),
        ({"start": "", "size": "small"}, ["--model-size", "small"]),
        ({"start": "base", "device": "two"}, ["--init-from", "base", "--rehearsal", "--mode", "isolated"]),
        ({"start": "base", "device": "3,1", "batch_size": "4"}, ["--init-from", "base", "--batch-size", "4", "--data-gpu", "3", "--model-gpu", "1", "--enable-memory-isolation"]),
    ],
)  # fmt: skip
def test_a_form_becomes_the_command_that_a_shell_would_be_given(studio, fields, words):
    settings = read_settings(studio.workspace, studio.corpora, {"name": "new", **fields}, rehearsal=False)
    assert spell_words(settings) == ["train", "--checkpoint-dir", str(studio.workspace.runs / "new"), *words]
    from myxtts.cli.main import make_parser
    from myxtts.config import resolve_config

    parsed = make_parser("train", "myxtts train").parse_all(spell_words(settings)[1:])
    assert resolve_config(flags=parsed.given).given_values() == make_config(settings).given_values()


@pytest.mark.parametrize("fields", [{"name": "../x"}, {"name": ""}, {"name": "A"}, {"name": "n", "corpus": "../.."}, {"name": "n", "start": "/etc"}, {"name": "n", "start": "runs/../../x"}, {"name": "n", "start": "", "size": "huge"}, {"name": "n", "steps": "-1"}])  # fmt: skip
def test_a_form_with_what_cannot_be_is_refused(client, fields):
    for path in ("/training", "/training/plan", "/training/bill"):
        assert client.ask("POST", path, fields).status in (400, 404), path


def test_who_trains_is_known_without_touching_the_lock(run):
    assert find_trainer(run) is None
    with hold_run_folder(run):
        assert find_trainer(run) == os.getpid()
    # The file still names this process, which lives.
    assert (run / "run.lock").read_text().startswith(f"process {os.getpid()} ")
    assert find_trainer(run) is None


def test_one_training_at_a_time_on_a_device(client, run):
    with hold_run_folder(run):
        answer = client.ask("POST", "/training", {"name": "second", "start": "base"})
        assert answer.status == 409
        assert f"{run.name} trains on CPU already" in answer.error["message"]
        assert client.ask("POST", f"/runs/{run.name}/resume", {}).status == 409


@pytest.mark.parametrize(("facts", "status"), [({}, "stopped"), ({"status": None}, "died"), ({"status": "failed"}, "failed"), ({"ending": "done"}, "finished")])  # fmt: skip
def test_how_a_run_ended_is_read_from_its_folder(client, studio, facts, status):
    folder = write_run(studio.workspace.runs / f"ended-{time.monotonic_ns()}", **facts)
    body = client.ask("GET", f"/runs/{folder.name}").body.decode()
    assert f'data-status="{status}"' in body
    assert ('id="resume"' in body) == (status != "finished")
    assert f"myxtts train --checkpoint-dir {folder} --rehearsal --resume" in body


def test_a_run_is_told_live_and_its_samples_are_heard(client, run):
    with client.open("GET", f"/runs/{run.name}/events") as response:
        text = b""
        while b"event: samples" not in text or not text.endswith(b": \n\n"):
            text += response.readline()
    told = text.decode()
    for word in ("4.375", "500 ms", "16.7%", "host, trainer", "10 / 20", "<svg"):
        assert word in told, word
    assert client.ask("GET", f"/runs/{run.name}/samples/step-00000010-free.wav").body == b"RIFF-sample"
    for name in ("..%2frun.json", "run.json", "step-00000011.wav"):
        assert client.ask("GET", f"/runs/{run.name}/samples/{name}").status == 404


def test_a_command_outlives_the_studio_and_is_found_and_stopped_by_the_next(tmp_path):
    jobs = Jobs(tmp_path / "jobs")
    jobs.start("long", ["studio", "--workspace", str(tmp_path / "other"), "--port", "0"])
    pid = jobs.find("long").pid
    assert os.getsid(pid) == pid, "a session of its own"
    following = Jobs(tmp_path / "jobs")
    assert following.is_running("long")
    with pytest.raises(Exception, match="still goes on"):
        following.start("long", ["devices"])
    while "Studio" not in following.read_log("long"):
        time.sleep(0.1)
    following.stop("long")
    assert jobs._children["long"].wait(30) == 0
    assert not following.is_running("long")
    assert "Trainings that were started go on" in following.read_log("long")


def test_the_command_says_where_it_is_and_ends_when_told(tmp_path):
    command = [sys.executable, "-m", "myxtts.cli.main", "studio", "--workspace", str(tmp_path / "w"), "--port", "0"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, cwd=ROOT) as process:
        told = [process.stdout.readline() for _ in range(2)]
        process.send_signal(signal.SIGTERM)
        assert process.wait(60) == 0
    assert re.fullmatch(r"Studio +http://127\.0\.0\.1:\d+/\?token=[\w-]{32}\n", told[1])


def test_changes_at_the_same_time_are_all_kept(client, studio, monkeypatch):
    folder = write_book_of(studio.workspace.corpora / f"busy-{time.monotonic_ns()}", 20)
    read_slowly = corpora.read_book

    def read(path):
        book = read_slowly(path)
        time.sleep(0.05)
        return book

    monkeypatch.setattr(corpora, "read_book", read)

    def mend(number):
        return client.ask("POST", f"/corpora/{folder.name}/clips/clip_{number:05}", {"text": f"Mended {number}."})

    with ThreadPoolExecutor(20) as pool:
        assert {answer.status for answer in pool.map(mend, range(20))} == {200}
    assert [clip.text for clip in read_book(folder).clips] == [f"Mended {number}." for number in range(20)]
    texts = [line.split("|")[1] for line in (folder / "metadata.csv").read_text().splitlines()]
    assert texts == [f"Mended {number}." for number in range(19)]


def test_a_book_that_somebody_else_has_written_is_read_again(client, studio, corpus):
    url = f"/corpora/{corpus.name}/clips"
    assert client.ask("POST", f"{url}/clip_00000", {"text": "Of the page."}).status == 200
    book = read_book(corpus)
    book.clips[1].text = "Of a shell."
    write_corpus(corpus, book)
    assert client.ask("POST", f"{url}/clip_00002", {"text": "Of the page again."}).status == 200
    assert [clip.text for clip in read_book(corpus).clips[:3]] == ["Of the page.", "Of a shell.", "Of the page again."]
