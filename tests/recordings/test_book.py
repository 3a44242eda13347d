"""The book of a corpus and the files that follow from it: all of them change or none, and nothing lies outside the folder."""

import json

import pytest

from myxtts.cli.main import main
from myxtts.errors import CorpusError
from myxtts.files import FileError, WriteError
from myxtts.recordings.book import BookedClip, ClipBook, hold_corpus, read_book, write_corpus
from tests.support.processes import run_python
from tests.support.small_disks import MOUNTING, require_small_disks

ON_A_FULL_DISK = """
import errno, os, sys
from dataclasses import asdict
from pathlib import Path
from myxtts.files import DiskFullError
from myxtts.recordings.book import read_book, write_corpus

folder = Path(sys.argv[1]) / "corpus"
sys.path.insert(0, sys.argv[2])
from tests.recordings.test_book import make_corpus

def look():
    return {str(path.relative_to(folder)): path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()}

make_corpus(folder, clips=60)
before, failures = look(), 0
while True:
    filler = folder.parent / "filler"
    filler.unlink(missing_ok=True)
    with open(filler, "wb", buffering=0) as file:
        try:
            while True:
                file.write(bytes(4096))
        except OSError as error:
            assert error.errno == errno.ENOSPC
        # Room for one page more each time.
        file.truncate(max(0, file.tell() - 4096 * (failures + 1)))
    book = read_book(folder)
    book.clips[0].kept, book.clips[1].kept, book.clips[2].text = False, True, "Mended."
    try:
        write_corpus(folder, book)
        break
    except DiskFullError:
        failures += 1
        assert look() == before, failures
after = look()
assert "c00002|Mended." in after["metadata.csv"].decode() and "c00000" not in after["metadata.csv"].decode()
assert read_book(folder) == book and {"aside/c00000.wav", "wavs/c00001.wav"} <= after.keys()
print(failures)
"""


def make_corpus(folder, clips=3):
    """A corpus whose second clip is set aside; clips without a sound."""
    for name in ("wavs", "aside"):
        (folder / name).mkdir(parents=True)
    booked = [
        BookedClip(f"c{n:05d}", "a.wav", n, n + 1, 1.0, f"Text {n}.", reasons=["noisy"], kept=n != 1)
        for n in range(clips)
    ]
    for clip in booked:
        (folder / ("wavs" if clip.kept else "aside") / f"{clip.id}.wav").write_bytes(b"RIFF")
    book = ClipBook("x", "en", None, None, clips=booked, complete=True)
    write_corpus(folder, book)
    return book


def test_on_a_full_disk_the_corpus_stays_as_it_was(tmp_path):
    require_small_disks()
    script = 'mount -t tmpfs -o size=500k tmpfs "$1" && shift && exec "$@"'
    (tmp_path / "disk").mkdir()
    disk = str(tmp_path / "disk")
    done = run_python(["-c", ON_A_FULL_DISK, disk, "."], before=[*MOUNTING, script, "sh", disk])
    assert done.returncode == 0, done.stderr[-3000:]
    # The book, the metadata and the report did not fit at some of these.
    assert int(done.stdout) > 4


def test_a_clip_that_cannot_be_moved_leaves_all_as_it_was(tmp_path):
    book = make_corpus(tmp_path)
    before = (tmp_path / "clips.json").read_bytes()
    for clip in book.clips:
        clip.kept = not clip.kept
    # Of letters enough, but no file may have such a name.
    book.clips.append(BookedClip(100 * "\N{CUNEIFORM SIGN A}", "a.wav", 0, 1, 1.0, reasons=["noisy"]))
    with pytest.raises(WriteError, match="name too long"):
        write_corpus(tmp_path, book)
    assert (tmp_path / "clips.json").read_bytes() == before
    assert sorted(path.name for path in (tmp_path / "wavs").iterdir()) == ["c00000.wav", "c00002.wav"]


@pytest.mark.parametrize(
    "id",
    [
        "..", ".", "", "../x", "a/b", "/etc/x", "a\nb", "a\n", "a|b", "a\0b", ".hidden", "-x\\y", "a\u2028b", "a b", "x" * 101,
        "c00000",
    ],
)  # fmt: skip
def test_an_id_that_is_no_name_is_refused_with_the_file_and_the_value(tmp_path, id):
    make_corpus(tmp_path)
    path = tmp_path / "clips.json"
    content = json.loads(path.read_text())
    content["clips"][2]["id"] = id
    path.write_text(json.dumps(content))
    with pytest.raises(FileError, match=r"clips\.json: each clip's id must be") as refused:
        read_book(tmp_path)
    assert repr(id[:100])[1:-1] in str(refused.value)
    book = ClipBook("x", "en", None, None, clips=[BookedClip(id, "a", 0, 1, 1.0), BookedClip(id, "a", 0, 1, 1.0)])
    with pytest.raises(FileError, match="each clip's id must be"):
        write_corpus(tmp_path, book)


@pytest.mark.parametrize("name", ["wavs", "aside"])
def test_a_link_in_place_of_a_folder_of_clips_is_not_followed(tmp_path, name):
    book = make_corpus(tmp_path / "corpus")
    folder = tmp_path / "corpus" / name
    folder.rename(tmp_path / "elsewhere")
    folder.symlink_to(tmp_path / "elsewhere")
    before = sorted((tmp_path / "elsewhere").iterdir())
    for clip in book.clips:
        clip.kept = not clip.kept
    for work in (lambda: read_book(tmp_path / "corpus"), lambda: write_corpus(tmp_path / "corpus", book)):
        with pytest.raises(FileError, match=rf"{name}: must be a folder, but is a link"):
            work()
    assert sorted((tmp_path / "elsewhere").iterdir()) == before


def test_a_book_that_is_a_link_is_replaced_and_what_it_led_to_is_not(tmp_path):
    book = make_corpus(tmp_path / "corpus")
    for name in ("clips.json", "metadata.csv", "set_aside.json"):
        (tmp_path / name).write_text("theirs")
        (tmp_path / "corpus" / name).unlink()
        (tmp_path / "corpus" / name).symlink_to(tmp_path / name)
    write_corpus(tmp_path / "corpus", book)
    assert {(tmp_path / name).read_text() for name in ("clips.json", "metadata.csv", "set_aside.json")} == {"theirs"}
    assert read_book(tmp_path / "corpus") == book


def test_two_do_not_make_a_corpus_in_one_folder(tmp_path, capsys):
    recording = tmp_path / "talk.wav"
    recording.write_bytes(b"RIFF and nothing else")
    words = ["corpus", str(recording), "--recogniser", "none", "--out", str(tmp_path / "out")]
    with hold_corpus(tmp_path / "out"):
        assert main(words) == 2
        assert "another process makes a corpus in this folder" in capsys.readouterr().err
        assert not (tmp_path / "out" / "clips.json").exists()
        with pytest.raises(CorpusError, match="another process"), hold_corpus(tmp_path / "out"):
            pass
    # Free again; the recording cannot be used.
    assert main(words) == 2
    assert "no clip can be used" in capsys.readouterr().err
