"""From a recording to a voice, in a browser, with the real commands: nothing is stood in for."""

import contextlib
import csv
import os
import signal
import subprocess
import sys

import psutil
import pytest

from myxtts.recordings.book import read_book
from myxtts.training.run_folder import read_record
from tests.serving.browser import CHROMIUM, NO_CHROMIUM
from tests.studio.hosting import TOKEN
from tests.studio.material import join_clips
from tests.studio.visiting import choose_file, go, press, visit, wait_across
from tests.support.processes import ROOT, clean_environ

pytestmark = [pytest.mark.soak, pytest.mark.skipif(CHROMIUM is None, reason=NO_CHROMIUM)]

STATUS = "document.querySelector('#status').dataset.status"
STEP = "Number(document.querySelector('[data-part=figures] .tiles b').textContent.split(' ')[0])"


@contextlib.contextmanager
def start_studio(workspace, port):
    command = [sys.executable, "-m", "myxtts.cli.main", "studio", "--workspace", str(workspace), "--port", str(port), "--rehearsal"]  # fmt: skip
    environ = clean_environ(PYTHONPATH=str(ROOT), MYXTTS_STUDIO_TOKEN=TOKEN)
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, env=environ) as process:  # fmt: skip
        try:
            address = [process.stdout.readline() for _ in range(2)][1].split()[1].partition("/?")[0]
            yield address
        finally:
            process.send_signal(signal.SIGTERM)
            assert process.wait(60) == 0


def test_a_recording_becomes_a_voice_that_speaks(tmp_path):
    workspace = tmp_path / "workspace"
    join_clips(tmp_path / "reading.wav", 60)
    with start_studio(workspace, 0) as origin, visit(origin) as tab:
        port = int(origin.rpartition(":")[2])
        upload_and_cut(tab, origin, tmp_path / "reading.wav")
        mend_two(tab, origin, workspace)
        start_training(tab, origin)
        wait_across(tab, f"{STEP} >= 4")
        trainer = find_trainer(workspace)
    # Neither the page nor the studio is there any more, and the training does not mind.
    assert trainer.is_running()
    with start_studio(workspace, port) as origin, visit(origin, "/runs/voice") as tab:
        wait_across(tab, f"{STATUS} === 'training'")
        tab.click("#stop")
        wait_across(tab, f"{STATUS} === 'stopped'")
        stopped_at = tab.evaluate(STEP)
        assert 4 <= stopped_at < 60
        tab.click("#resume")
        wait_across(tab, f"{STATUS} === 'training' && {STEP} > {stopped_at}")
        tab.click("#stop")
        wait_across(tab, f"{STATUS} === 'stopped'")
        starts = read_record(workspace / "runs" / "voice").starts
        assert [start.step for start in starts] == [0, stopped_at]
        speak_and_download(tab, origin)
    assert not [each for each in psutil.process_iter(["cmdline"]) if str(workspace) in str(each.info["cmdline"])]


def upload_and_cut(tab, origin, recording):
    tab.click("#consent")
    choose_file(tab, "#files", recording)
    tab.wait_for("document.querySelector('#recordings article')")
    go(tab, origin, "/corpora")
    tab.type_into("input[name=name]", "mine")
    tab.click("form button.main")
    wait_across(tab, "document.querySelector('#corpora article').dataset.status === 'making'")
    wait_across(tab, "document.querySelector('#corpora article').dataset.status !== 'making'")
    assert tab.evaluate("document.querySelector('#corpora article').dataset.status") == "ready"


def mend_two(tab, origin, workspace):
    go(tab, origin, "/corpora/mine")
    for text in ("This one was mended by hand.", "And so was this."):
        press(tab, "e")
        press(tab, "Backspace")
        tab.call("Input.insertText", text=text)
        press(tab, "Enter")
        tab.wait_for(f"document.querySelector('.clip.current textarea').defaultValue === {text!r}")
        press(tab, "j")
    book = read_book(workspace / "corpora" / "mine")
    assert 12 <= sum(clip.kept for clip in book.clips) <= 24
    with open(workspace / "corpora" / "mine" / "metadata.csv", encoding="utf-8") as file:
        texts = [row[1] for row in csv.reader(file, delimiter="|")]
    assert {"This one was mended by hand.", "And so was this."} <= set(texts)


def start_training(tab, origin):
    go(tab, origin, "/training?corpus=mine")
    tab.type_into("input[name=name]", "voice")
    for field, value in (("steps", "60"), ("batch_size", "4"), ("validation_interval", "4")):
        tab.evaluate(f"document.querySelector('input[name={field}]').value = {value!r}")
    tab.click("[hx-post='/training/plan']")
    wait_across(tab, "document.querySelector('#plan').innerText.includes('Mode')")
    wait_across(tab, "/weights[^]*total/.test(document.querySelector('#plan').innerText)")
    tab.click("[hx-post='/training']")
    wait_across(tab, "location.pathname === '/runs/voice'")


def find_trainer(workspace):
    pid = int((workspace / "runs" / "voice" / "run.lock").read_text().split()[1])
    assert os.getsid(pid) == pid
    return psutil.Process(pid)


def speak_and_download(tab, origin):
    wait_across(tab, "document.querySelector('[data-part=samples] audio')")
    go(tab, origin, "/speak?model=runs/voice")
    assert tab.evaluate("document.querySelector('#model').value") == "runs/voice"
    tab.type_into("#text", "Hello there.")
    tab.evaluate("document.querySelector('#voice').value = document.querySelector('#references option').value")
    tab.click("#say")
    wait_across(tab, "!document.querySelector('#download').hidden || document.querySelector('#speak-told.bad')")
    size, head = tab.evaluate(
        "fetch(document.querySelector('#download').href).then(r => r.arrayBuffer())"
        ".then(b => [b.byteLength, new TextDecoder().decode(b.slice(0, 4))])"
    )
    assert head == "RIFF"
    assert size > 44 + 2 * 22050 * 0.2, "a fifth of a second of sound, at least"
