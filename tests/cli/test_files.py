"""Files that commands write: what is there stays until what takes its place is whole."""

import errno
import os
from pathlib import Path

import pytest

from myxtts.cli.main import main
from myxtts.cli.output import check_writable, write_text
from myxtts.errors import CommandLineError

OLD = "of an earlier day\n"


@pytest.fixture
def old(tmp_path):
    """A file, alone in its folder before and after."""
    path = tmp_path / "old.html"
    path.write_text(OLD)
    yield path
    assert [path.name for path in tmp_path.iterdir() if not path.is_symlink()] == ["old.html"]


def test_a_place_is_tried_without_a_trace_and_what_is_no_file_is_written_to(old):
    check_writable(old, old.parent / "new.html", None, Path("/dev/null"))
    assert old.read_text() == OLD
    write_text(Path("/dev/null"), "new")
    assert Path("/dev/null").is_char_device()


@pytest.mark.parametrize(
    ("place", "why"), [("no/x.html", "No such file"), (".", "Is a directory"), ("file/x.html", "Not a directory")]
)
@pytest.mark.parametrize("write", [check_writable, lambda path: write_text(path, "new")])
def test_a_place_that_takes_nothing_is_named(tmp_path, place, why, write):
    (tmp_path / "file").touch()
    with pytest.raises(CommandLineError, match=f"cannot be written: {why}"):
        write(tmp_path / place)
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


@pytest.mark.parametrize(("call", "code"), [("mkdir", errno.EACCES), ("mkdir", errno.EROFS), ("replace", errno.EBUSY)])
def test_a_file_that_nothing_can_replace_is_written_in_place(old, monkeypatch, call, code):
    inode = old.stat().st_ino
    check_writable(old)

    def refuse(*arguments, **options):
        raise OSError(code, "refused")

    with monkeypatch.context() as patch:
        patch.setattr(os, call, refuse)
        write_text(old, "new\n")
    assert old.read_text() == "new\n"
    assert old.stat().st_ino == inode


@pytest.mark.parametrize(
    "words",
    [
        ["profile", "--rehearsal", "--train-data", "nothere", "--html"],
        ["diagnose", "--rehearsal", "--set", "data.batch_size=0", "--json"],
        ["data", "--train-data", "nothere", "--html"],
        ["configure", "--rehearsal", "--train-data", "nothere", "--output"],
    ],
)
def test_a_command_that_fails_leaves_the_old_report(tmp_path, monkeypatch, words):
    monkeypatch.chdir(tmp_path)
    Path("old.out").write_text(OLD)
    assert main([*words, "old.out"]) == 2
    assert Path("old.out").read_text() == OLD
    assert [path.name for path in tmp_path.iterdir()] == ["old.out"]


@pytest.mark.parametrize(("word", "flag"), [("selfcheck", "--out"), ("profile", "--json"), ("configure", "--output")])
def test_a_place_that_takes_nothing_is_refused_before_the_work(tmp_path, monkeypatch, capsys, word, flag):
    monkeypatch.chdir(tmp_path)
    assert main([word, "--rehearsal", flag, "no/x.json"]) == 2
    told = capsys.readouterr().err
    assert "no/x.json cannot be written: No such file or directory" in told
    assert "..." not in told, "nothing was begun"
