"""Whatever stands in the place of a file that a command reads: one message that names it, in bounded time, no traceback."""

import os
import shutil
import signal

import numpy as np
import pytest
import soundfile

from myxtts.cli.main import main

DEEP = b'{"a":' * 100_000

OBSTACLES = {
    "a named pipe": lambda path: os.mkfifo(path),
    "a folder": lambda path: path.mkdir(),
    "an endless device": lambda path: path.symlink_to("/dev/zero"),
    "a link to itself": lambda path: path.symlink_to(path.name),
    "a disk that gives errors": lambda path: path.symlink_to("/proc/self/mem"),
    "nothing in it": lambda path: path.write_bytes(b""),
    "no UTF-8": lambda path: path.write_bytes(b"\xff\xfe\xfa{}"),
    "zero bytes": lambda path: path.write_bytes(b"\0" * 100),
    "three empty gigabytes": lambda path: os.truncate(os.open(path, os.O_CREAT | os.O_WRONLY), 3 << 30),
    "depth": lambda path: path.write_bytes(DEEP),
    "a list": lambda path: path.write_bytes(b"[1, 2]\n"),
}


@pytest.fixture(autouse=True)
def end_hanging_tests():
    """A command that waits for the writer of a pipe would wait for ever."""

    def fail(*_):
        raise AssertionError("hangs")

    before = signal.signal(signal.SIGALRM, fail)
    signal.alarm(120)
    yield
    signal.alarm(0)
    signal.signal(signal.SIGALRM, before)


@pytest.fixture
def place(tmp_path, coqui):
    """A folder with every kind of file, small and sound; only what a command needs of each."""
    (tmp_path / "corpus" / "wavs").mkdir(parents=True)
    noise = np.random.default_rng(1).normal(0, 0.1, 2 * 22050)
    for name in ("a", "b"):
        soundfile.write(tmp_path / "corpus" / "wavs" / f"{name}.wav", noise, 22050)
    (tmp_path / "corpus" / "metadata.csv").write_text("a|One little text.\nb|Two little texts.\n")
    (tmp_path / "text.txt").write_text("Hello there.")
    (tmp_path / "config.yaml").write_text("data:\n  language: en\n")
    shutil.copytree(coqui / "ours", tmp_path / "model", copy_function=os.link)
    shutil.copytree(coqui / "theirs", tmp_path / "coqui", copy_function=os.link)
    return tmp_path


SPEAK = ("synthesize", "--checkpoint", "model", "--language", "en", "--out", "out.wav")
READERS = {
    "config.yaml": ("train", "--config", "config.yaml", "--print-config"),
    "corpus/metadata.csv": ("data", "--train-data", "corpus"),
    "vocab.json": ("data", "--train-data", "corpus", "--vocabulary", "vocab.json"),
    "text.txt": (*SPEAK, "--reference", "corpus/wavs/a.wav", "--text-file", "text.txt"),
    "reference.wav": (*SPEAK, "--text", "Hello.", "--reference", "reference.wav"),
    "voice.safetensors": (*SPEAK, "--text", "Hello.", "--voice", "voice.safetensors"),
    "voices/voice.safetensors": ("serve", "--checkpoint", "model", "--voices", "voices"),
    "voices/voice.wav": ("serve", "--checkpoint", "model", "--voices", "voices"),
    "model/manifest.json": ("export", "model", "--out", "exported"),
    "model/dvae.safetensors": ("export", "model", "--out", "exported"),
    "model/config.yaml": ("export", "model", "--out", "exported"),
    "coqui/model.pth": ("import", "coqui/model.pth", "--out", "imported"),
    "coqui/vocab.json": ("import", "coqui/model.pth", "--vocab", "coqui/vocab.json", "--out", "imported"),
}
CONTENTS = ("nothing in it", "zero bytes", "depth", "a list")
PLAIN_TEXT = ("config.yaml", "text.txt")
"""Their contents are told by others than who reads them, or are none that could be wrong: an empty YAML file sets nothing."""


def put(place, name, obstacle):
    path = place / name
    path.parent.mkdir(exist_ok=True)
    path.unlink(missing_ok=True)
    OBSTACLES[obstacle](path)


@pytest.mark.parametrize("obstacle", OBSTACLES)
@pytest.mark.parametrize("name", READERS)
def test_what_is_not_the_file_it_should_be_is_named(place, name, obstacle, refuse, monkeypatch):
    monkeypatch.chdir(place)
    put(place, name, obstacle)
    if obstacle not in CONTENTS or name not in PLAIN_TEXT:
        assert os.path.basename(name) in refuse(*READERS[name])


@pytest.mark.parametrize("name", READERS)
def test_a_path_that_no_file_system_takes_is_named(place, name, refuse, monkeypatch):
    monkeypatch.chdir(place)
    long = "x" * 5000
    words = [long if word == name or word == name.partition("/")[0] else word for word in READERS[name]]
    assert "xxx" in refuse(*words)


def test_a_clip_that_cannot_be_read_is_dropped_like_any_other(place, capsys, monkeypatch):
    monkeypatch.chdir(place)
    put(place, "corpus/wavs/b.wav", "a disk that gives errors")
    for _ in range(2):
        assert main(["data", "--train-data", "corpus"]) == 0
        assert "unreadable        1  wavs/b.wav" in capsys.readouterr().out
    # The disk came back: what failed was not remembered.
    put(place, "corpus/wavs/b.wav", "nothing in it")
    soundfile.write(place / "corpus" / "wavs" / "b.wav", np.random.default_rng(2).normal(0, 0.1, 22050), 22050)
    assert main(["data", "--train-data", "corpus"]) == 0
    assert "2 of 2 clips" in capsys.readouterr().out


def test_names_from_files_cannot_steer_the_terminal(place, capsys, monkeypatch):
    monkeypatch.chdir(place)
    steering = "\x1b]0;title\x07\x9b2J\u202e"
    (place / "corpus" / "metadata.csv").write_text(
        f"audio_file|text|speaker_name|language\na|One little text.|{steering}|en\ngone{steering}|Two texts.|x|{steering}\n"
    )
    assert main(["data", "--train-data", "corpus"]) == 0
    shown = capsys.readouterr()
    assert not set("\x1b\x07\x9b\u202e") & set(shown.out + shown.err)
    assert r"\x1b]0;title\x07\x9b2J\u202e" in shown.out
    assert main(["export", f"{steering}\r", "--out", "out"]) == 2
    assert r"\x1b]0;title\x07\x9b2J\u202e\r" in capsys.readouterr().err
