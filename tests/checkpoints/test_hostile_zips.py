"""Zip files made to mislead a reader are refused, whatever they try."""

import zipfile

import pytest

from myxtts.checkpoints import torch_files
from myxtts.checkpoints.torch_files import read_torch_file
from myxtts.errors import ModelFileError
from tests.checkpoints.builders import (
    PROGRAM,
    directory_entry,
    end_record,
    local_header,
    zip_one_more,
    zip_program,
    zip_records,
)


def assert_refused(tmp_path, content, message):
    path = tmp_path / "hostile.pth"
    path.write_bytes(content)
    with pytest.raises(ModelFileError, match=message):
        read_torch_file(path)


HERE, INNER = local_header("archive/data.pkl", PROGRAM) + PROGRAM, local_header("archive/data/0", b"xyz") + b"xyz"
OUTER = local_header("archive/data.pkl", INNER)
LARGE = {"size": 2**32 - 1, "stored": 2**32 - 1}


def list_entry(*described, **changes):
    return directory_entry("archive/data.pkl", PROGRAM, *described, **changes)


LIES = {
    "bomb": (zip_records({"archive/data.pkl": PROGRAM, "archive/data/0": bytes(16 * 2**20)}, zipfile.ZIP_DEFLATED),
             r"is compressed or encrypted, which torch\.save never does.*zip -0 -r"),
    "a record in another": (end_record(OUTER + INNER, directory_entry("archive/data.pkl", INNER, 0)
                            + directory_entry("archive/data/0", b"xyz", len(OUTER)), 2), "overlaps the one before it"),
    "one name twice": (zip_one_more("archive/data.pkl", PROGRAM), "two records named 'archive/data.pkl'"),
    "64 bit size": (end_record(local_header("archive/data.pkl", PROGRAM, **LARGE) + PROGRAM, list_entry(
                    0, b"\x01\x00\x10\x00" + (2**62).to_bytes(8, "little") * 2, **LARGE), 1), "longer than the file"),
    "a header outside": (end_record(HERE, list_entry(2**31), 1), "not where it should be"),
    "another name": (end_record(HERE, directory_entry("archive/evil.pkl", PROGRAM, 0), 1), "described in two ways"),
    "bytes behind": (zip_program(b"N") + b"\0", "directory at its end is missing"),
    "bytes before": (b"PK\x03\x04" + zip_program(b"N"), "not where it should be"),
}  # fmt: skip


@pytest.mark.parametrize(("content", "message"), LIES.values(), ids=LIES)
def test_a_file_that_lies_about_its_records_is_refused(tmp_path, content, message):
    assert_refused(tmp_path, content, message)


@pytest.mark.parametrize(
    "name",
    ["/etc/passwd", "../x", "archive/../../x", "archive/..", "a\\b", "C:/x", "archive//x", "archive/\0", "./x", ""],
)
def test_a_name_that_points_elsewhere_is_refused(tmp_path, name):
    assert_refused(tmp_path, zip_one_more(name, b"x"), "points outside the file")


@pytest.mark.parametrize(
    ("local", "central", "message"),
    [
        ({"size": 999, "stored": 999}, {"size": 999, "stored": 999}, "longer than the file"),
        ({}, {"size": 2**32 - 2, "stored": 2**32 - 2}, "described in two ways"),
        ({"size": 9}, {}, "described in two ways"),
        ({"crc": 1}, {}, "described in two ways"),
        ({}, {"size": 2}, "is compressed"),
        ({"method": 8}, {"method": 8}, "is compressed"),
        ({"method": 8}, {}, "described in two ways"),
        ({"flags": 1}, {"flags": 1}, "or encrypted"),
        ({"flags": 8}, {}, "described in two ways"),
    ],
)
def test_sizes_and_flags_that_lie_are_refused(tmp_path, local, central, message):
    assert_refused(tmp_path, zip_one_more("archive/data/0", b"xyz", local, central), message)


@pytest.mark.parametrize("claimed", [0, 1, 3])
def test_a_directory_with_another_number_of_entries_is_refused(tmp_path, claimed):
    content = zip_one_more("archive/version", b"3\n")
    content = content[:-14] + claimed.to_bytes(2, "little") * 2 + content[-10:]
    assert_refused(tmp_path, content, "its zip directory has 2 entries, but says")


def test_a_comment_cannot_hide_a_second_directory(tmp_path):
    content = zip_program(b"N")
    other = zip_one_more("archive/version", b"3\n")
    joined = content[:-2] + len(other).to_bytes(2, "little") + other
    assert_refused(tmp_path, joined, "not where it should be|missing")


def test_too_many_records_are_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(torch_files, "MAX_RECORDS", 3)
    assert_refused(tmp_path, zip_records({f"archive/{index}": b"" for index in range(4)}), "at most 3")
    monkeypatch.setattr(torch_files, "MAX_DIRECTORY_BYTES", 99)
    assert_refused(tmp_path, zip_records({f"archive/{index}": b"" for index in range(4)}), "at most 99")


@pytest.mark.parametrize(
    "more", [{}, {"archive/version": b"3\n"}, {"archive/": b""}], ids=["plain", "more", "a folder"]
)
def test_what_lies_about_nothing_is_read(tmp_path, more):
    path = tmp_path / "honest.pth"
    path.write_bytes(zip_records({**more, "archive/data.pkl": PROGRAM}))
    assert read_torch_file(path) is None
    path.write_bytes(zip_one_more("archive/version", b"3\n"))
    assert read_torch_file(path) is None
