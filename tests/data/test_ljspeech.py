import os
import re
import unicodedata
from pathlib import Path

import pytest

from myxtts.data.ljspeech import Metadata, find_metadata, read_metadata
from myxtts.errors import CorpusError
from tests.data.shared import write_metadata


def read_rows(metadata: Metadata) -> list[tuple[str, str, str, str]]:
    columns = metadata.audio, metadata.text, metadata.speaker, metadata.language
    return [tuple(column[row] for column in columns) for row in range(len(metadata))]


def read_text(tmp_path: Path, *lines: str) -> list[tuple[str, str]]:
    return [row[:2] for row in read_rows(read_metadata(write_metadata(tmp_path, *lines)))]


def refuse(tmp_path: Path, *lines: str) -> str:
    with pytest.raises(CorpusError) as caught:
        read_metadata(write_metadata(tmp_path, *lines))
    return str(caught.value)


QUOTED = [
    "audio_file|text|speaker_name",
    'a|"He said ""no"" | and left."|x',
    'b|"Quoted ""word"""|x',
    'c|"Yes," he said|x',
]


@pytest.mark.parametrize(
    ("lines", "rows"),
    [
        # The third column is the text that is trained on, where it has one.
        (["a|I ate 2.|I ate two.", "b|Mr. X.|Mister X."], {"a": "I ate two.", "b": "Mister X."}),
        (["a|One.|One.", "b|Two.|", "c|Three."], {"a": "One.", "b": "Two.", "c": "Three."}),
        (QUOTED, {"a": 'He said "no" | and left.', "b": 'Quoted "word"', "c": '"Yes," he said'}),
        # Separators of lines that are none here, and paths in one form.
        (["a|One\u2028two\x85three."], {"a": "One\u2028two\x85three."}),
        (["wavs\\a.wav|One.", "./wavs//b.wav|Two.", "c..d|Five."], {"wavs/a.wav": "One.", "wavs/b.wav": "Two.", "c..d": "Five."}),
    ],
    ids=["normalised", "absent", "quoted", "separators", "paths"],
)  # fmt: skip
def test_names_and_texts_are_read(tmp_path, lines, rows):
    assert dict(read_text(tmp_path, *lines)) == rows


class TestWithoutHeader:
    @pytest.mark.parametrize("speakers", [["anna"], ["anna", "ben"], ["p225", "p226", "p227", "p228", "p229"]])
    def test_a_third_column_of_speakers_is_refused_with_the_fix(self, tmp_path, speakers):
        lines = [f"wavs/{i}.wav|this is text number {i}|{speakers[i % len(speakers)]}" for i in range(6)]
        message = refuse(tmp_path, *lines)
        assert "audio_file|text|speaker_name" in message
        assert "anna" in message or "p225" in message

    def test_few_different_texts_are_no_reason_to_refuse(self, tmp_path):
        # Spoken digits: the third column has as few values as the second.
        lines = [f"d{i}|{i % 3}|{['zero', 'one', 'two'][i % 3]}" for i in range(30)]
        assert len(read_text(tmp_path, *lines)) == 30

    def test_a_bar_inside_a_text_sets_the_line_aside(self, tmp_path):
        metadata = read_metadata(write_metadata(tmp_path, "a|One.|One.", "b|He|she.|He|she.", "c|Two.|Two."))
        assert [row[0] for row in read_rows(metadata)] == ["a", "c"]
        (line,) = metadata.malformed
        assert line.where.endswith("metadata.csv, line 2")
        assert "5 columns where the file has 3" in line.detail

    def test_a_text_longer_than_any_clip_sets_the_line_aside(self, tmp_path):
        metadata = read_metadata(write_metadata(tmp_path, "a|One.", f"b|{'1' * 10_001}", f"c|{'1' * 10_000}"))
        assert [row[0] for row in read_rows(metadata)] == ["a", "c"]
        (line,) = metadata.malformed
        assert line.detail == "has 10001 characters of text, where a clip may have 10000 at most."


class TestWithHeader:
    def test_names_the_columns_in_any_order(self, tmp_path):
        path = write_metadata(tmp_path, "language|Text|id|extra|speaker_name", "fa|سلام|a|7|sara", "|Hi.|b|8|")
        rows = read_rows(read_metadata(path, language="en"))
        assert rows == [("a", "سلام", "sara", "fa"), ("b", "Hi.", tmp_path.name, "en")]

    def test_region_and_case_of_a_language_do_not_make_another_one(self, tmp_path):
        lines = [f"{n}|Hi.|{code}" for n, code in enumerate(("en_US", "EN", "zh", "pt-br", "tlh", ""))]
        path = write_metadata(tmp_path, "id|text|language", *lines)
        metadata = read_metadata(path, language="fr")
        assert [metadata.language[n] for n in range(6)] == ["en", "en", "zh-cn", "pt", "tlh", "fr"]


@pytest.mark.parametrize(
    ("lines", "words"),
    [
        (["a|One", "a|b|c|d|e", "a|b|c|d|e|f", "x|y|z|u"], "of 4 lines"),
        (["a,One two three.", "b,Four."], "line 1: .*id|text"),
        (["audio_file|words", "a|One"], "names no column for the text"),
        (["id|text|speaker_name|speaker", "a|One|x|y"], "speaker_name and speaker"),
        (["id|text"], "no clips"),
        *((["x|Fine.", f"{name}|Text."], "line 2: .*symbolic link") for name in ("../a.wav", "wavs/../../a", "..\\a.wav", "wavs/..")),
        *(([f"{name}|Text."], "is an absolute path") for name in ("/etc/passwd", "C:\\clips\\a.wav", "\\\\server\\a.wav")),
    ],
)  # fmt: skip
def test_what_cannot_be_metadata_is_refused(tmp_path, lines, words):
    assert re.search(words, refuse(tmp_path, *lines))


@pytest.mark.parametrize(
    ("files", "asked", "split", "words"),
    [
        (["metadata_train.csv", "metadata.csv"], "", "eval", r"no metadata_eval\.csv"),
        (["transcripts.csv"], "", "train", r"give its own path: .*transcripts\.csv"),
        (["LJSpeech-1.1"], "LJSpeech-1.0", "train", r"Did you mean \".*LJSpeech-1\.1\"\?"),
    ],
)
def test_a_corpus_that_is_not_there_says_what_is(tmp_path, files, asked, split, words):
    for name in files:
        write_metadata(tmp_path, "a|One.", name=name)
    with pytest.raises(CorpusError, match=words):
        find_metadata(tmp_path / asked, split)


class TestEncoding:
    @pytest.mark.parametrize(
        "content", [b"a|One.\rb|Two.\r", b"\xef\xbb\xbfa|One.\r\n\r\nb|Two.", b"\n a | One. \n\nb|Two.\n\n"]
    )
    def test_line_ends_marks_and_blanks_do_not_matter(self, tmp_path, content):
        (tmp_path / "metadata.csv").write_bytes(content)
        assert [row[:2] for row in read_rows(read_metadata(tmp_path))] == [("a", "One."), ("b", "Two.")]

    @pytest.mark.parametrize(
        ("content", "problem"),
        [
            ("a|é".encode("latin-1"), "line 1: is not UTF-8"),
            ("a|One".encode("utf-16"), "UTF-16"),
            (b"\n\n", "is empty"),
        ],
    )
    def test_other_encodings_are_refused(self, tmp_path, content, problem):
        (tmp_path / "metadata.csv").write_bytes(content)
        with pytest.raises(CorpusError, match=problem):
            read_metadata(tmp_path)


class TestFindMetadata:
    def test_a_split_made_by_hand_wins(self, tmp_path):
        for name in ("metadata.csv", "metadata_train.csv", "metadata_eval.csv"):
            write_metadata(tmp_path, "a|One.", name=name)
        for split in ("train", "eval"):
            assert find_metadata(tmp_path, split)[0].path.name == f"metadata_{split}.csv"

    def test_each_speaker_may_have_a_folder(self, tmp_path, caplog):
        write_metadata(tmp_path / "sara", "s1|One.")
        write_metadata(tmp_path / "ali", "id|text|speaker_name", "s1|Two.|ali reza", "a2|Three.|")
        touch(tmp_path, "ali/wavs/s1.wav", "ben/notes.txt", ".myxtts/notes.txt")
        metadata = read_metadata(tmp_path)
        assert [row[2] for row in read_rows(metadata)] == ["ali reza", "ali", "sara"]
        assert list(metadata.audio) == ["ali/wavs/s1.wav", "ali/a2", "sara/s1"]
        assert metadata.is_found.tolist() == [True, False, False]
        assert len(set(metadata.key.tolist())) == 3
        assert [record.levelname for record in caplog.records] == ["WARNING"]
        assert caplog.text.rstrip().endswith("folders without metadata are left out: ben.")

    @pytest.mark.parametrize("start", [b"RIFF\x24\0\0\0WAVE", b"fLaC\0", b"OggS\0", b"ID3\x04", b"\xff\xfb\x90"])
    def test_a_sound_file_is_not_taken_for_text_of_another_encoding(self, tmp_path, start):
        (tmp_path / "clip").write_bytes(start + b"\xe9" * 50)
        with pytest.raises(CorpusError, match=r"clip: is a sound file\. Give the corpus folder"):
            read_metadata(tmp_path / "clip")


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
    clips = read_metadata(write_metadata(tmp_path, f"{name}|One."))
    assert (clips.audio[0], clips.is_found[0]) == (expected or name, expected is not None)
    if expected:
        assert clips.size_bytes.tolist() == [5]
        assert clips.mtime_ns.tolist() == [(tmp_path / expected).stat().st_mtime_ns]


def test_odd_files_and_those_behind_links_are_known(tmp_path):
    corpus = tmp_path / "corpus"
    touch(tmp_path, "elsewhere/a.wav", "corpus/wavs/b.wav", unicodedata.normalize("NFD", "corpus/wavs/é.wav"))
    (corpus / "wavs" / "linked.wav").symlink_to(tmp_path / "elsewhere" / "a.wav")
    (corpus / "wavs" / "broken.wav").symlink_to(tmp_path / "nowhere")
    (corpus / "folder").symlink_to(tmp_path / "elsewhere")
    (corpus / "wavs" / "directory.wav").mkdir()
    os.mkfifo(corpus / "wavs" / "pipe.wav")
    names = ["b", unicodedata.normalize("NFC", "é"), "linked", "folder/a", "broken", "directory", "pipe", "b"]
    write_metadata(corpus, *(f"{name}|One." for name in names))
    (tmp_path / "link").symlink_to(corpus)
    clips = read_metadata(tmp_path / "link", follow_symlinks=False)
    assert clips.is_found.tolist() == [True] * 4 + [False] * 3 + [True]
    assert clips.is_linked.tolist()[:4] == [False, False, True, True]
    assert clips.is_repeated.tolist() == [False] * 7 + [True]
