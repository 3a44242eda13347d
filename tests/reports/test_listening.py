"""The page of what each validation said: checkpoints by ear."""

import re

import numpy as np
import pytest
import soundfile

from myxtts.errors import NotARunError
from myxtts.monitoring.metrics import MetricsLog, ValidationRow
from myxtts.reports.pages import name_sample, note_clip, write_listening_page
from tests.monitoring.runs import make_run_row


def write_sounds(folder, *names):
    (folder / "samples").mkdir(parents=True, exist_ok=True)
    for name in names:
        sound = np.random.default_rng(3).normal(0, 0.1, 3000)
        soundfile.write(folder / "samples" / name, sound, 22050, subtype="PCM_16")


def write_metrics(folder, losses, best):
    with MetricsLog(folder / "metrics.jsonl") as log:
        log.write(make_run_row())
        for step, loss in losses.items():
            log.write(ValidationRow(time_s=1.0, step=step, loss=loss, is_best=step in best))


def write_page(run, sounds):
    assert write_listening_page(run, run / "listen.html") == sounds
    return (run / "listen.html").read_text()


@pytest.fixture
def run(tmp_path):
    """A run of two stages with three validations of its GPT, of which the second was the best."""
    folder = tmp_path / "mine"
    write_sounds(folder, *map(name_sample, (10, 20, 30)))
    write_metrics(folder, {10: 3.5, 20: 2.25, 30: 2.5}, best={10, 20})
    (folder / "step-00000020").mkdir()
    write_sounds(folder / "codec", name_sample(7))
    return folder


def test_every_validation_is_heard_newest_first_with_its_loss(run):
    page = write_page(run, 4)
    assert re.findall(r"<figcaption><b>(.*?)</b><span>(.*?)</span>", page) == [
        ("Step 30", "loss 2.5"),
        ("Step 20", "loss 2.25 · best · checkpoint step-00000020"),
        ("Step 10", "loss 3.5"),
        ("Step 7", "loss unknown"),
    ]
    assert page.count("<audio") == page.count("<img") == 4
    assert "mine: checkpoints by ear" in page
    assert page.count("Griffin-Lim makes the sound here") == 1
    assert "On its own" not in page


def test_what_a_model_says_on_its_own_is_beside_what_it_says_when_it_is_led(run):
    write_sounds(run, name_sample(30, is_free=True))
    page = write_page(run, 5)
    assert re.findall(r'<p>(On its own|Led)</p><img alt="Spectrogram of ([^"]*)"', page) == [
        ("On its own", "step 30, on its own"),
        ("Led", "step 30"),
    ]
    assert page.count("cut off, at twice the recording's length or at 10 s") == 1


def test_a_sound_that_was_half_written_does_not_hide_the_others(run):
    (run / "samples" / "step-00000030.wav").write_bytes(b"RIFF")
    page = write_page(run, 4)
    assert "step-00000030.wav cannot be played" in page
    assert page.count("<audio") == 3


def test_the_clip_itself_is_there_to_compare_with(run):
    soundfile.write(run / "clip.flac", np.random.default_rng(5).normal(0, 0.1, 3000), 22050)
    note_clip(run, "Hello there.", run / "clip.flac")
    page = write_page(run, 4)
    assert "Hello there." in page
    assert "<b>Recording</b><span>clip.flac</span>" in page
    (run / "clip.flac").unlink()
    assert "clip.flac is no longer there" in write_page(run, 4)


def test_a_long_run_shows_some_of_its_sounds_and_always_the_best(tmp_path):
    write_sounds(tmp_path, *map(name_sample, range(1, 31)))
    write_metrics(tmp_path, dict.fromkeys(range(1, 31), 1.0), best={1, 3})
    page = write_page(tmp_path, 24)
    shown = [int(step) for step in re.findall(r"<b>Step (\d+)</b>", page)]
    assert shown == sorted(shown, reverse=True)
    assert {1, 3, 30} < set(shown)
    assert max(np.diff(sorted(shown))) == 2, "spread over the run"
    assert "6 more are in samples/" in page


def test_a_folder_without_sounds_has_no_page_and_a_note_that_is_none_is_an_error(run, tmp_path):
    assert write_listening_page(tmp_path, tmp_path / "listen.html") == 0
    assert not (tmp_path / "listen.html").exists()
    (run / "samples" / "clip.json").write_text("{}")
    with pytest.raises(NotARunError, match=r"clip\.json.*Remove the file"):
        write_listening_page(run, run / "listen.html")
