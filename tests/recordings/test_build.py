"""`myxtts corpus`: from a recording to what `train` takes, and what is doubtful in a corpus that exists."""

import json
import os
import shutil
import signal

import numpy as np
import pytest
import soundfile

from myxtts.audio.resampling import resample_clip
from myxtts.cli.main import main
from myxtts.data.scan import scan_corpus
from myxtts.errors import DropReason
from myxtts.recordings import build
from myxtts.recordings.book import read_book, write_corpus
from myxtts.recordings.judging import (
    LEVEL_DB,
    count_flat_tops,
    describe_voice,
    judge_clip,
    measure_sound,
    measure_voices,
)
from tests.recordings.joined import join, read_speech
from tests.support.processes import run_python

EARS = "tests.recordings.joined:"
KILLED = """
import sys
from myxtts.audio.resampling import resample_clip
from myxtts.cli.main import main
from myxtts.recordings import build
build.SAVE_SECONDS = 0.0
main(["corpus", *sys.argv[1:]])
"""


@pytest.fixture(scope="module")
def talk(tmp_path_factory):
    """A recording of seven clips."""
    clips, texts = read_speech(7)
    return join(tmp_path_factory.mktemp("talk") / "talk.flac", clips, texts, rate_hz=24000, channels=2)


def run(*words, code=0):
    assert main(["corpus", *map(str, words)]) == code


def list_files(folder):
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file())


def test_a_recording_and_its_script_become_a_corpus_that_training_takes(tmp_path, talk, capsys):
    script = tmp_path / "script.txt"
    script.write_text("\n".join(talk.texts))
    before = list_files(tmp_path)
    out = tmp_path / "voice"
    run(talk.path, "--script", script, "--out", out)
    assert f"--train-data {out}" in capsys.readouterr().out
    book = read_book(out)
    kept = [clip for clip in book.clips if clip.kept]
    assert len(kept) >= 5
    for clip in kept:
        place = next(n for n, each in enumerate(talk.places) if abs(each[0] - clip.start) < 0.1)
        assert clip.text == talk.texts[place]
        assert measure_sound(soundfile.read(out / "wavs" / f"{clip.id}.wav", dtype="float32")[0])["level_db"] == (
            pytest.approx(LEVEL_DB, abs=0.3)
        )
    assert list_files(tmp_path) == sorted([
        *before, *(f"voice/{name}" for name in (".lock", "clips.json", "metadata.csv", "set_aside.json")),
        *(f"voice/{'wavs' if clip.kept else 'aside'}/{clip.id}.wav" for clip in book.clips),
    ])  # fmt: skip
    scan = scan_corpus(out, processes=0, index_folder=tmp_path / "index")
    assert (len(scan.corpus), scan.drops.drops) == (len(kept), ())
    # A clip that is dropped by hand, and one whose text is mended.
    kept[0].kept, kept[0].reasons, kept[1].text = False, ["by_hand"], "Mended | by hand."
    write_corpus(out, book)
    run(talk.path, "--script", script, "--out", out)
    lines = (out / "metadata.csv").read_text().splitlines()
    assert lines[0] == f"{kept[1].id}|Mended by hand.|Mended by hand."
    assert (out / "aside" / f"{kept[0].id}.wav").exists()
    assert len(scan_corpus(out, processes=0, index_folder=tmp_path / "index").corpus) == len(kept) - 1


def test_a_killed_run_goes_on_and_ends_as_one_that_was_not(tmp_path, talk, monkeypatch):
    monkeypatch.setattr(build, "SAVE_SECONDS", 0.0)
    asked = tmp_path / "asked"
    monkeypatch.setenv("ASKED_FILE", str(asked))
    words = [talk.path, "--recogniser", f"{EARS}hear_until_killed", "--out"]
    killed = run_python(["-c", KILLED, *map(str, words), str(tmp_path / "killed")], os.environ)
    assert killed.returncode == -signal.SIGKILL, killed.stderr
    assert not (tmp_path / "killed" / "metadata.csv").exists()
    run(*words, tmp_path / "killed")
    # The clip that was asked about when the process died, and no other, is asked about again.
    assert len(asked.read_text()) == len(talk.places) + 1
    asked.write_text("x" * 100)
    run(*words, tmp_path / "whole")
    assert list_files(tmp_path / "killed") == list_files(tmp_path / "whole")
    for name in list_files(tmp_path / "whole"):
        assert (tmp_path / "killed" / name).read_bytes() == (tmp_path / "whole" / name).read_bytes(), name


def test_what_cannot_be_read_is_told_and_does_not_end_the_run(tmp_path, talk, capsys):
    (tmp_path / "broken.wav").write_bytes(b"RIFF and nothing else")
    cut = tmp_path / "cut.flac"
    cut.write_bytes(talk.path.read_bytes()[:60_000])
    ears = ["--recogniser", f"{EARS}hear_nothing_new"]
    run(tmp_path / "broken.wav", tmp_path / "none.wav", cut, talk.path, *ears, "--out", tmp_path / "voice")
    told = capsys.readouterr().out
    assert all(name in told for name in ("broken.wav", "none.wav", "cut.flac", "missing", "corrupt"))
    # The script did not fit every clip alike, but they are there.
    assert len(read_book(tmp_path / "voice").clips) == len(talk.places)


def test_a_folder_that_holds_something_else_stays_as_it_is(tmp_path, talk, capsys):
    out = tmp_path / "voice"
    out.mkdir()
    (out / "letter.txt").write_text("dear")
    run(talk.path, "--recogniser", "none", "--out", out, code=2)
    assert "letter.txt" in capsys.readouterr().err
    assert list_files(out) == ["letter.txt"]
    (out / "letter.txt").unlink()
    run(talk.path, "--recogniser", "none", "--out", out, code=2)
    assert "no clip can be used as it is" in capsys.readouterr().err
    assert {tuple(clip.reasons) for clip in read_book(out).clips} == {("text_empty",)}
    run(talk.path, "--recogniser", f"{EARS}hear_nothing_new", "--out", out, code=2)
    assert "Give the same again" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ([], "Give one or more recordings"),
        (["a.wav"], "--out FOLDER"),
        (["a.wav", "--check", "b", "--out", "c"], "leave the recordings"),
        (["a.wav", "--language", "fa", "--out", "c"], "English only"),
        (["--check", "no/such/corpus", "--recogniser", "none"], "no such file or folder"),
    ],
)
def test_what_does_not_fit_together_is_refused(words, message, capsys):
    run(*words, code=2)
    assert message in capsys.readouterr().err


def test_a_corpus_is_checked_and_not_touched(tmp_path, capsys):
    clips, texts = read_speech(10)
    corpus = tmp_path / "corpus"
    (corpus / "wavs").mkdir(parents=True)
    for number, clip in enumerate(clips):
        soundfile.write(corpus / "wavs" / f"c{number}.wav", clip, 22050)
    soundfile.write(corpus / "wavs" / "c3.wav", np.clip(6 * clips[3], -1, 1), 22050)
    noise = 0.03 * np.random.default_rng(1).standard_normal(len(clips[4]))
    soundfile.write(corpus / "wavs" / "c4.wav", clips[4] + noise, 22050)
    soundfile.write(corpus / "wavs" / "c5.wav", clips[5][:15000], 22050)
    shutil.copy(corpus / "wavs" / "c0.wav", corpus / "wavs" / "c6.wav")
    (corpus / "metadata.csv").write_text(
        "".join(f"c{n}|{text}|{text}\n" for n, text in enumerate([*texts, "No file."]))
    )
    before = {name: (corpus / name).stat().st_mtime_ns for name in list_files(corpus)}
    run("--check", corpus, "--out", tmp_path / "found")
    assert {name: (corpus / name).stat().st_mtime_ns for name in list_files(corpus)} == before
    reasons = {clip.id: clip.reasons for clip in read_book(tmp_path / "found", is_check=True).clips if not clip.kept}
    expected = {"c3.wav": "clipped", "c4.wav": "noisy", "c5.wav": "too_short", "c6.wav": "misheard", "c10": "missing"}
    for name, reason in expected.items():
        assert reason in next(found for clip, found in reasons.items() if clip.endswith(name)), name
    assert len(reasons) <= len(expected) + 1
    assert "misheard" in capsys.readouterr().out


def test_speech_without_a_pause_is_cut_and_set_aside_with_the_reason(tmp_path, capsys):
    speech = np.concatenate(read_speech(10)[0])
    frames = speech[: len(speech) // 220 * 220].reshape(-1, 220)
    power = np.square(frames).mean(1)
    soundfile.write(tmp_path / "talk.wav", frames[power > 0.02 * power.mean()].ravel()[: 18 * 22050], 22050)
    run(tmp_path / "talk.wav", "--recogniser", f"{EARS}hear_nothing_new", "--out", tmp_path / "out", code=2)
    assert "no_pause" in capsys.readouterr().err
    forced = [clip for clip in read_book(tmp_path / "out").clips if clip.is_forced]
    assert len(forced) >= 2
    assert not any(clip.kept for clip in forced)
    assert all("no_pause" in clip.reasons and clip.seconds <= 11.61 for clip in forced)
    assert (tmp_path / "out" / "metadata.csv").read_text() == ""


def test_what_was_overdriven_and_made_quieter_is_clipped_and_nothing_else():
    clips = read_speech(20)[0]
    found = dict.fromkeys((0, 6, 12), 0)
    for samples in clips:
        high = resample_clip(samples.astype(np.float32), 22050, 44100)
        for decibels in found:
            quiet = 0.3 * np.clip(high / np.abs(high).max() * 10 ** (decibels / 20), -1, 1)
            figure = count_flat_tops(resample_clip(quiet.astype(np.float32), 44100, 22050))
            found[decibels] += judge_clip({"flat_tops": figure}, 5.0, "A text.") == [DropReason.CLIPPED]
    assert found[0] == 0
    assert found[6] >= 0.9 * len(clips)
    assert found[12] == len(clips)
    assert count_flat_tops(np.zeros(22050, np.float32)) == 0.0


def test_another_voice_is_told_from_that_of_most():
    speakers = [read_speech(count, corpus)[0] for corpus, count in (("kathleen", 12), ("ljspeech_mini", 4))]
    distances = measure_voices([describe_voice(clip.astype(np.float32)) for clips in speakers for clip in clips])
    assert max(distances[:12]) < 2.0 < min(distances[12:])
    assert measure_voices([[0.0] * 13] * 3) == [None] * 3


def test_the_language_goes_on_to_training(tmp_path, talk, capsys):
    run(talk.path, "--language", "de", "--recogniser", f"{EARS}hear_nothing_new", "--out", tmp_path / "voice")
    assert f"--train-data {tmp_path / 'voice'} --language de" in capsys.readouterr().out


def test_the_book_is_what_the_page_says(tmp_path, talk):
    run(talk.path, "--recogniser", f"{EARS}hear_nothing_new", "--out", tmp_path / "voice")
    content = json.loads((tmp_path / "voice" / "clips.json").read_text())
    assert set(content) >= {"version", "complete", "recordings", "clips", "language", "recogniser", "script"}
    names = {"id", "source", "start", "end", "seconds", "text", "heard", "reasons", "kept", "figures"}
    assert names <= set(content["clips"][0])
    assert content["clips"][0]["source"] == os.fspath(talk.path)
