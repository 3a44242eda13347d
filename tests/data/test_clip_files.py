import os
import unicodedata
from pathlib import Path

import pytest

from myxtts.data.ljspeech import ClipFinder, locate_clips, read_metadata
from tests.data.shared import write_metadata


def touch(root: Path, *names: str) -> None:
    for name in names:
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"12345")


@pytest.mark.parametrize(
    ("name", "files", "expected"),
    [
        ("a", ["wavs/a.wav"], "wavs/a.wav"),
        ("a.wav", ["wavs/a.wav"], "wavs/a.wav"),
        ("a", ["wavs/a.flac", "wavs/a.mp3"], "wavs/a.flac"),
        ("a.wav", ["wavs/a.ogg"], "wavs/a.ogg"),
        ("a", ["wavs/a.MP3"], "wavs/a.MP3"),
        ("a", ["a.wav"], "a.wav"),
        ("a", ["a.wav", "wavs/a.wav"], "wavs/a.wav"),
        ("wavs/a.wav", ["wavs/a.wav"], "wavs/a.wav"),
        ("sub/a", ["wavs/sub/a.wav"], "wavs/sub/a.wav"),
        ("clips/a.opus", ["clips/a.opus"], "clips/a.opus"),
        ("v1.2-a", ["wavs/v1.2-a.wav"], "wavs/v1.2-a.wav"),
        ("a", ["wavs/a"], None),
        ("a", ["wavs/b.wav"], None),
    ],
)
def test_finds_the_file_a_line_means(tmp_path, name, files, expected):
    touch(tmp_path, *files)

    found = ClipFinder(tmp_path).find("", name)

    assert (found.path if found else None) == expected
    if found:
        assert found.size_bytes == 5
        assert found.mtime_ns == (tmp_path / found.path).stat().st_mtime_ns


def test_finds_names_that_another_system_spelled(tmp_path):
    touch(tmp_path, unicodedata.normalize("NFD", "wavs/é.wav"))

    assert ClipFinder(tmp_path).find("", unicodedata.normalize("NFC", "é")) is not None


def test_never_takes_a_named_pipe_or_a_folder(tmp_path):
    (tmp_path / "wavs" / "b.wav").mkdir(parents=True)
    os.mkfifo(tmp_path / "wavs" / "a.wav")
    finder = ClipFinder(tmp_path)

    assert finder.find("", "a") is None
    assert finder.find("", "b") is None


def test_knows_which_clips_lie_behind_links(tmp_path):
    touch(tmp_path, "elsewhere/a.wav", "corpus/wavs/b.wav")
    corpus = tmp_path / "corpus"
    (corpus / "wavs" / "linked.wav").symlink_to(tmp_path / "elsewhere" / "a.wav")
    (corpus / "wavs" / "broken.wav").symlink_to(tmp_path / "nowhere")
    (corpus / "folder").symlink_to(tmp_path / "elsewhere")
    finder = ClipFinder(corpus)

    assert finder.find("", "b").link == ""
    assert finder.find("", "linked").link == "wavs/linked.wav"
    assert finder.find("", "folder/a").link == "folder"
    assert finder.find("", "broken") is None


def test_clips_of_a_speaker_folder_are_found_in_it(tmp_path):
    for speaker in ("ali", "sara"):
        write_metadata(tmp_path / speaker, "a|One.", "b|Two.")
        touch(tmp_path, f"{speaker}/wavs/a.wav")

    clips = locate_clips(read_metadata(tmp_path))

    assert list(clips.path) == ["ali/wavs/a.wav", "ali/b", "sara/wavs/a.wav", "sara/b"]
    assert clips.is_found.tolist() == [True, False, True, False]
    assert len(set(clips.key.tolist())) == 4
