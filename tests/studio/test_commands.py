"""The commands behind the pages: how they ended, how they go on here and in a shell, and which devices they hold."""

import asyncio
import contextlib
import itertools
import json
import os
import re
import shlex
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import pytest
from filelock import FileLock

from myxtts.config import XTTSConfig
from myxtts.config.data import LANGUAGES
from myxtts.devices.nvml import Card
from myxtts.recordings.book import read_book, write_book
from myxtts.studio import trainings
from myxtts.studio.app import SPOKEN, Studio
from myxtts.studio.jobs import JobRecord, read_environ
from myxtts.studio.speaking import ServerAnswer, Speaking
from myxtts.studio.trainings import read_settings, read_words, spell_words
from myxtts.studio.workspace import Workspace, is_held
from myxtts.training.run_folder import open_run, read_record
from tests.studio.hosting import DEMO
from tests.studio.material import write_book_of, write_run
from tests.support.processes import ROOT, clean_environ
from tests.support.tiny_run import PATIENCE_S, at_step, count_steps, tiny_words, wait_for

CARDS = tuple(Card(id, "RTX", f"GPU-{id}", f"0:{id}", 24_000, 24_000) for id in (0, 1))
NUMBERS = itertools.count()


@pytest.fixture
def name():
    return f"it-{next(NUMBERS)}"


@pytest.fixture
def started(studio, monkeypatch):
    """What would be started: by name, words and folder."""
    started = []
    monkeypatch.setattr(studio.jobs, "start", lambda *given: started.append(given))
    return started


def change_record(folder, **facts):
    record = json.loads((folder / "run.json").read_text())
    record["starts"][-1] |= facts
    (folder / "run.json").write_text(json.dumps(record))


def note_job(studio, job, words=("train",), *, started_s=None, **facts):
    """A command that has ended, which no studio has seen."""
    studio.jobs._write(job, JobRecord(words, 1, 1.0, time.time() if started_s is None else started_s, **facts))


def add_summary(folder, status, time_s):
    with open(folder / "metrics.jsonl", "a") as file:
        file.write(json.dumps({"kind": "summary", "time_s": time_s, "step": 10, "status": status, "spent": {}}) + "\n")


def wait_until_ended(studio, job):
    assert studio.jobs._children[job].wait(60) is not None


def test_a_resume_that_fails_before_its_first_row_shows_what_it_said(client, studio, name):
    folder = write_run(studio.workspace.runs / name)
    change_record(folder, command=["myxtts", "train", "--checkpoint-dir", str(folder), "--batch-size", "none"])
    assert client.ask("POST", f"/runs/{name}/resume", {}).status == 200
    wait_until_ended(studio, f"train-{name}")
    for each in (studio, Studio(studio.workspace)):
        run = each.trainings.describe(name)
        assert run.status == "failed"
        assert "must be a whole number" in run.problem
    add_summary(folder, "stopped", time.time())
    assert studio.trainings.describe(name).status == "stopped", "a shell has gone on with it since"


def test_a_resume_that_was_stopped_before_its_first_row_is_stopped(studio, name):
    write_run(studio.workspace.runs / name)
    note_job(studio, f"train-{name}", is_stopped=True)
    assert studio.trainings.describe(name).status == "stopped"
    note_job(studio, f"train-{name}")
    assert studio.trainings.describe(name).status == "failed"


@pytest.mark.parametrize(
    ("codec", "facts", "status"),
    [("finished", {}, "died"), ("finished", {"is_stopped": True}, "stopped"), ("stopped", {}, "stopped"), ("failed", {}, "failed")],
)  # fmt: skip
def test_a_codec_that_is_done_is_no_run_that_is(client, studio, name, codec, facts, status):
    folder = studio.workspace.runs / name
    write_run(folder / "codec", status=codec)
    note_job(studio, f"train-{name}", started_s=1.0, **facts)
    assert studio.trainings.describe(name).status == status
    assert b'id="resume"' in client.ask("GET", f"/runs/{name}").body


def begin(config, command, *, only_codec=False):
    with open_run(config, command=command) as run:
        if only_codec:
            with run.open_codec() as codec:
                codec.begin(10, {})
        else:
            run.begin(10, {})


@pytest.mark.parametrize("only_codec", [False, True])
def test_a_run_of_a_shell_goes_on_where_its_paths_mean_the_same(client, studio, name, started, monkeypatch, only_codec):
    folder = studio.workspace.runs / name
    monkeypatch.chdir(studio.workspace.root.parent)
    relative = folder.relative_to(studio.workspace.root.parent)
    config = XTTSConfig(training={"checkpoint_dir": str(relative), "rehearsal": True})
    begin(config, ("myxtts", "train", "--checkpoint-dir", str(relative), "--rehearsal"), only_codec=only_codec)
    monkeypatch.chdir("/")
    assert client.ask("POST", f"/runs/{name}/resume", {}).status == 200
    ((job, words, cwd, _),) = started
    assert (job, words[-1]) == (f"train-{name}", "--resume")
    assert (cwd / words[words.index("--checkpoint-dir") + 1]).resolve() == folder
    told = f"cd {shlex.quote(str(cwd))} &amp;&amp; myxtts train --checkpoint-dir {relative} --rehearsal --resume"
    assert told in client.ask("GET", f"/runs/{name}").body.decode()


def test_a_run_whose_folder_of_old_has_gone_says_so(client, studio, name, started):
    change_record(write_run(studio.workspace.runs / name), cwd="/none")
    answer = client.ask("POST", f"/runs/{name}/resume", {})
    assert (answer.status, "was started in /none" in answer.error["message"], started) == (409, True, [])


def test_the_language_of_a_corpus_is_that_of_its_training(client, studio, name):
    folder = write_book_of(studio.workspace.corpora / name, 2)
    book = read_book(folder)
    book.language = "fa"
    write_book(folder, book)
    fields = {"name": name, "corpus": name, "size": "tiny"}
    words = spell_words(read_settings(studio.workspace, studio.corpora, fields, rehearsal=True))
    assert words[words.index("--language") + 1] == "fa"
    assert f'value="{name}"' in client.ask("GET", "/training").body.decode()
    book.complete = False
    write_book(folder, book)
    for page in ("training", "voices"):
        assert f">{name}</option>" not in client.ask("GET", f"/{page}").body.decode()
    assert client.ask("POST", "/training", fields).status == 409
    assert client.ask("POST", "/evaluations", {"model": "base", "corpus": name}).status == 409


def test_every_language_that_can_be_trained_can_be_chosen_with_a_recogniser(client, studio, monkeypatch):
    assert tuple(SPOKEN) == LANGUAGES
    monkeypatch.setattr(studio, "_recogniser", "hear {wav}")
    assert client.upload((DEMO / "slt_01.flac").read_bytes()).status == 201
    page = client.ask("GET", "/corpora").body.decode()
    assert [code for code in LANGUAGES if f'<option value="{code}">' not in page] == []


def test_a_run_holds_the_devices_of_its_words_until_it_has_said_what_it_is(client, studio, name, monkeypatch, started):
    monkeypatch.setattr(
        trainings, "read_machine", lambda environ=None: SimpleNamespace(cards=CARDS, environ=environ or {})
    )
    monkeypatch.setattr(studio, "rehearsal", False)
    (studio.workspace.runs / name).mkdir()
    note_job(studio, f"train-{name}", ("train", "--checkpoint-dir", "x"), card="1")
    monkeypatch.setattr(studio.jobs, "is_running", lambda job: job == f"train-{name}")
    refused = client.ask("POST", "/training", {"name": f"{name}-b", "start": "base", "device": "1"})
    assert (refused.status, f"{name} trains on GPU 1 already" in refused.error["message"]) == (409, True)
    assert client.ask("POST", "/training", {"name": f"{name}-c", "start": "base", "device": "0"}).status == 201
    assert started[0][-1] == "0"
    pair = client.ask("POST", "/training", {"name": f"{name}-d", "start": "base", "device": "0,1"})
    assert pair.status == 409
    assert "CUDA_VISIBLE_DEVICES=1 myxtts train --checkpoint-dir x" in client.ask("GET", f"/runs/{name}").body.decode()


def test_a_command_sees_the_card_that_was_chosen(studio, name):
    studio.jobs.start(name, ["studio", "--workspace", str(studio.workspace.root / "other"), "--port", "0"], None, "1")
    assert read_environ(studio.jobs.find(name).pid)["CUDA_VISIBLE_DEVICES"] == "1"
    studio.jobs.stop(name)
    wait_until_ended(studio, name)


def test_each_of_several_cards_can_be_chosen(client, monkeypatch):
    monkeypatch.setattr("myxtts.studio.app.list_cards", lambda: CARDS)
    page = client.ask("GET", "/training").body.decode()
    assert re.findall(r'<option value="(\d(?:,\d)?)">', page) == ["0", "1", "0,1", "1,0"]


def test_words_mean_the_settings_they_were_spelled_from():
    settings = {"training.checkpoint_dir": "x", "training.rehearsal": True, "data.batch_size": "1"}
    assert read_words(spell_words(settings)) == settings


@pytest.mark.parametrize(
    "fields", [{"steps": "9" * 5000}, {"device": "GPU 1"}, {"device": "1,2,3"}, {"device": "\u0661"}]
)
def test_what_a_form_cannot_mean_is_refused(client, name, fields):
    answer = client.ask("POST", "/training", {"name": name, "start": "base", **fields})
    assert (answer.status, answer.error["param"]) == (400, next(iter(fields)))


def test_the_studio_speaks_of_itself_where_nothing_is_there(client):
    for method, path, status in (("PUT", "/recordings", 405), ("GET", "/v1/models", 404)):
        answer = client.ask(method, path)
        assert (answer.status, answer.error["message"]) == (status, "There is no such page.")
    assert "myxtts studio" in client.ask("GET", "/", Host="evil.example").error["message"]


def upload_some(client, studio, *queries):
    """The ids of recordings, each uploaded with its own text."""
    clip, header, ids = (DEMO / "slt_01.flac").read_bytes(), {"Content-Type": "application/octet-stream"}, []
    for query in queries:
        before = {each.id for each in studio.workspace.list_recordings()}
        assert client.ask("POST", f"/recordings?{query}", clip, **header).status == 201
        ids += {each.id for each in studio.workspace.list_recordings()} - before
    return ids


def test_a_script_that_not_all_recordings_have_is_not_dropped_in_silence(client, studio, name, started):
    ids = upload_some(client, studio, "title=a&text=One.", "title=b", "title=c&text=Three.")
    form = {"name": name, "language": "en"}

    def make(*chosen, **more):
        return client.ask("POST", "/corpora", [*form.items(), *(("recording", id) for id in chosen), *more.items()])

    refused = make(*ids)
    assert (refused.status, "2 of the 3 recordings were read from a script" in refused.error["message"]) == (409, True)
    assert make(*ids, heard="yes").status == 200
    assert "--script" not in started[-1][1]
    assert make(ids[0], ids[2]).status == 200
    script = started[-1][1][-1]
    assert Path(script).read_text() == "One.\nThree."
    assert make("20260101-000000-ffffff").status == 404


def test_a_text_that_is_too_long_is_refused_and_not_cut(client, studio):
    before = studio.workspace.list_recordings()
    answer = client.ask("POST", f"/recordings?text={'x' * 1001}", b"x", **{"Content-Type": "application/octet-stream"})
    assert (answer.status, "1000 characters at most, but has 1001" in answer.error["message"]) == (400, True)
    assert studio.workspace.list_recordings() == before


def test_making_a_corpus_is_stopped_and_goes_on_and_says_why_it_failed(client, studio, name, monkeypatch):
    monkeypatch.setattr(studio, "_recogniser", f"{sys.executable} -c 'import time; time.sleep(600)' {{wav}}")
    ids = upload_some(client, studio, "title=a")
    job = f"corpus-{name}"

    def ask(path, **fields):
        body = client.ask("POST", path, {"recording": ids[0], "language": "en", **fields}).body.decode()
        return re.search(r'data-status="(\w+)"><div class="grow">(?:<a[^>]*>)?<b>' + name, body)[1]

    assert ask("/corpora", name=name) == "making"
    assert client.ask("POST", "/training", {"name": name, "corpus": name, "start": "base"}).status == 409
    client.ask("POST", f"/corpora/{name}/stop", {})
    wait_until_ended(studio, job)
    page = client.ask("GET", "/corpora/list").body.decode()
    assert 'data-status="stopped"' in page
    assert f"/corpora/{name}/go-on" in page
    assert ask(f"/corpora/{name}/go-on") == "making"
    client.ask("POST", f"/corpora/{name}/stop", {})
    wait_until_ended(studio, job)
    failing = f"{name}-failing"
    monkeypatch.setattr(studio, "_recogniser", "no-such-program {wav}")
    assert client.ask("POST", "/corpora", {"recording": ids[0], "language": "en", "name": failing}).status == 200
    wait_until_ended(studio, f"corpus-{failing}")
    page = client.ask("GET", "/corpora/list").body.decode()
    assert 'data-status="failed"' in page
    assert "there is no &#39;no-such-program" in page
    assert "Traceback" not in page


def test_a_corpus_that_a_shell_makes_is_under_way_and_not_changed(client, studio, name):
    folder = write_book_of(studio.workspace.corpora / name, 2)
    assert not is_held(folder / ".lock")
    with FileLock(folder / ".lock"):
        assert studio.corpora.describe(name).status == "making"
        assert client.ask("POST", f"/corpora/{name}/clips/clip_00000", {"text": "x"}).status == 409
    assert studio.corpora.describe(name).status == "ready"


def test_what_was_measured_is_told_and_why_it_was_not(client, studio, started, name):
    assert client.ask("POST", "/evaluations", {"model": "base", "corpus": ""}).status == 200
    ((job, words),) = started
    folder = studio.workspace.evaluations / job.removeprefix("evaluate-")
    assert words[:5] == ["evaluate", "--checkpoint", "base", "--out", str(folder)]
    note_job(studio, job, tuple(words))
    (studio.workspace.jobs / f"{job}.log").write_text("myxtts evaluate: error: no room")
    assert "error: no room" in client.ask("GET", "/evaluations").body.decode()
    spoken = {"word_error_rate": 0.125, "likeness_to_own_speaker": 0.5, "mel_distance_db": 7.5}
    summary = {"spoken": spoken, "code_accuracy": 0.25, "stop_failures": 1, "sentences": 5}
    (folder / "evaluation.json").write_text(json.dumps({"summary": summary}))
    page = client.ask("GET", "/evaluations").body.decode()
    assert "error: no room" not in page
    for figure in ("base", "12.5%", "1 / 5"):
        assert figure in page
    (studio.workspace.corpora / name).mkdir()
    (studio.workspace.corpora / name / "metadata.csv").write_text("a|b|b\n")
    assert client.ask("POST", "/evaluations", {"model": "base", "corpus": name}).status == 200


def test_two_pages_that_ask_for_two_models_get_each_its_own(tmp_path):
    speaking, asked = Speaking(tmp_path / "log"), []

    class Server:
        model = None

        async def load(self, model, flags):
            await asyncio.sleep(0.01)
            self.model = model

    @contextlib.asynccontextmanager
    async def ask(method, path, body=b"", kind=""):
        await asyncio.sleep(0.01)
        asked.append((speaking._server.model, json.loads(body)["input"]))

        async def take_parts():
            yield b"x"

        yield ServerAnswer(200, {}, take_parts())

    async def clone(path):
        await asyncio.sleep(0.05 if path.name == "a" else 0)
        return path.name

    speaking._server, speaking._ask, speaking._clone = Server(), ask, clone

    async def speak():
        await asyncio.gather(*(speaking.speak(each, {"input": each}, tmp_path / each) for each in "ab"))

    asyncio.run(speak())
    assert asked == [("a", "a"), ("b", "b")]


@pytest.mark.soak
def test_a_training_goes_from_the_shell_to_the_page_and_back(tmp_path):
    workspace = Workspace(tmp_path / "studio")
    workspace.make()
    studio, folder = Studio(workspace, rehearsal=True), workspace.runs / "it"
    words = tiny_words(Path("studio/runs/it"), "--max-steps", 5000, "--codec-steps", 3)
    environ = clean_environ(PYTHONPATH=str(ROOT), PATH=f"{Path(sys.executable).parent}:{os.environ['PATH']}")

    def end_in_order(command, moment):
        with subprocess.Popen(["sh", "-c", command], cwd=tmp_path, env=environ, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as shell:  # fmt: skip
            wait_for(moment, lambda: shell.poll() is None, "it has ended before its time")
            studio.trainings.stop("it")
            assert shell.wait(PATIENCE_S) == 0
        assert studio.trainings.describe("it").status == "stopped"
        return read_record(folder).starts

    assert len(end_in_order(shlex.join(["myxtts", "train", *words]), at_step(folder, 2))) == 1
    moment = at_step(folder, count_steps(folder) + 1)
    studio.trainings.resume("it")
    wait_for(moment, lambda: studio.jobs.is_running("train-it"), "it has ended before its time")
    studio.trainings.stop("it")
    assert studio.jobs._children["train-it"].wait(PATIENCE_S) == 0
    assert studio.trainings.describe("it").status == "stopped"
    starts = end_in_order(studio.trainings.spell_resume("it"), at_step(folder, count_steps(folder) + 1))
    assert [start.cwd for start in starts] == [str(tmp_path)] * 3
    assert 0 == starts[0].step < starts[1].step < starts[2].step
    assert not (workspace.root / "studio").exists()
