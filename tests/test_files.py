"""Files of others: what is read of them, and what never is."""

import os
from dataclasses import dataclass

import pytest

from myxtts import files
from myxtts.files import (
    FileError,
    MissingFileError,
    iter_lines,
    open_file,
    parse_json,
    read_bytes,
    read_json,
    read_text,
)


@dataclass(frozen=True)
class Point:
    x: int
    names: tuple[str, ...] = ()


def test_a_file_is_read_as_what_it_should_be(tmp_path):
    path = tmp_path / "a"
    path.write_bytes(b'\xef\xbb\xbf{"x": 1, "names": ["a"], "more": 2}')
    assert read_text(path) == '{"x": 1, "names": ["a"], "more": 2}'
    assert read_json(path, Point) == Point(1, ("a",))
    path.write_bytes(b"one\ntwo")
    assert list(iter_lines(path)) == [b"one\n", b"two"]


def test_a_file_that_is_not_there_is_told_from_one_that_cannot_be_read(tmp_path):
    with pytest.raises(MissingFileError, match="there is no such file"):
        open_file(tmp_path / "nothing")
    with pytest.raises(FileError, match=r"zero.*cannot be the path of a file"):
        open_file(tmp_path / "zero\0byte")


def test_a_pipe_that_takes_a_files_place_in_between_is_not_waited_for(tmp_path, monkeypatch):
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "file").touch()
    status = os.stat(tmp_path / "file")
    monkeypatch.setattr(files.os, "stat", lambda path: status)
    with pytest.raises(FileError, match="is a named pipe"):
        open_file(tmp_path / "pipe")


def test_sizes_are_bounded(tmp_path):
    path = tmp_path / "a"
    path.write_bytes(b"x" * 10)
    assert read_bytes(path, 10) == b"x" * 10
    with pytest.raises(FileError, match="must have at most 9 bytes, but has more"):
        read_bytes(path, 9)
    with pytest.raises(FileError, match="line 1 has more"):
        list(iter_lines(path, 9))


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("", "is not"),
        ('{"a": NaN}', "not finite"),
        ('{"a": 1e101}', "beyond 1e"),
        (f'{{"a": {2**64}}}', "64 bits"),
        ('{"a": ' + "9" * 5000 + "}", "64 bits"),
        ('{"a": "\\ud800"}', "half a character"),
        ('{"\\ud800": 1}', "half a character"),
        ("[" * 65 + "]" * 65, "nested more than 64 deep"),
        ("[" * 100_000, "nested more than 64 deep"),
    ],
)
def test_json_that_nothing_here_needs_is_refused(text, problem):
    with pytest.raises(ValueError, match=problem):
        parse_json(text)


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("[]", "must hold an object, but holds a list"),
        ("{}", "x: field required"),
        ('{"x": "1"}', "x: input should be a valid integer"),
        ('{"x": true}', "x: input should be a valid integer"),
        ('{"x": 1, "names": [1]}', r"names\.0: input should be a valid string"),
    ],
)
def test_what_does_not_fit_is_named(tmp_path, text, problem):
    (tmp_path / "a").write_text(text)
    with pytest.raises(FileError, match=problem):
        read_json(tmp_path / "a", Point)
