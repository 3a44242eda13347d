import hashlib
import logging
import os
import resource
import sqlite3
from pathlib import Path

import pytest

from myxtts.data.index import choose_index_folder, claim_corpus_folder
from myxtts.data.scan import ScanResult, scan_corpus
from myxtts.data.task_processes import ProcessTask
from myxtts.errors import ReadingError
from tests.data.shared import write_metadata

CLIPS = 200


def make_check(seconds: int = 1):
    return lambda path: [seconds * 22050, 22050, ""]


@pytest.fixture
def corpus(tmp_path) -> Path:
    (tmp_path / "corpus" / "wavs").mkdir(parents=True)
    for n in range(CLIPS):
        (tmp_path / "corpus" / "wavs" / f"{n:03d}.wav").touch()
    write_metadata(tmp_path / "corpus", *(f"{n:03d}|Sentence {n}." for n in range(CLIPS)))
    return tmp_path / "corpus"


def scan(corpus: Path, progress=None) -> ScanResult:
    """A scan that opens no clip."""
    task = ProcessTask("tests.data.test_index:make_check")
    folder = corpus.parent / "index"
    result = scan_corpus(corpus, clip_task=task, workers=0, index_folder=folder, progress=progress)
    assert result.corpus.samples.tolist() == [22050] * CLIPS
    assert result.corpus.tokens.tolist() == [len(f"Sentence {n}.") for n in range(CLIPS)]
    return result


def find_index(corpus: Path) -> Path:
    (path,) = (corpus.parent / "index").glob("audio-*.sqlite")
    return path


def change(path: Path, *statements: str) -> None:
    connection = sqlite3.connect(path, isolation_level=None)
    for statement in statements:
        connection.execute(statement)
    connection.close()


def lie_about_all(path: Path) -> None:
    """Impossible numbers in blocks that are otherwise as they should be."""
    connection = sqlite3.connect(path)
    with connection:
        for number, block in connection.execute("SELECT rowid, rows FROM facts").fetchall():
            lies = block[8:-8] + (1 << 40).to_bytes(8, "little")
            content = hashlib.blake2b(lies, digest_size=8).digest() + lies
            connection.execute("UPDATE facts SET rows = ? WHERE rowid = ?", (content, number))
    connection.close()


def repeat_pages(path: Path) -> None:
    """A tree whose pages lead to one page many times, three levels deep: reading all its rows would take for ever."""
    content = bytearray(path.read_bytes())
    leaf = len(content) // 4096

    def make_page(child: int, count: int = 300) -> bytes:
        number, start = child.to_bytes(4, "big"), 4096 - 5 * count
        pointers = b"".join((start + 5 * n).to_bytes(2, "big") for n in range(count))
        head = b"\5\0\0" + count.to_bytes(2, "big") + start.to_bytes(2, "big") + b"\0" + number
        return (head + pointers).ljust(start, b"\0") + (number + b"\1") * count

    content[4096:8192] = make_page(leaf + 1)
    content += make_page(leaf + 2) + make_page(leaf)
    content[28:32] = (leaf + 2).to_bytes(4, "big")
    path.write_bytes(content)


def replace_by_link(path: Path) -> None:
    victim = path.parent.parent / "elsewhere"
    victim.write_bytes(path.read_bytes())
    path.unlink()
    path.symlink_to(victim)
    victim.chmod(0o444)


def replace_by_pipe(path: Path) -> None:
    path.unlink()
    os.mkfifo(path)


def name_a_file_in_the_journal(path: Path) -> None:
    """A journal as a killed scan leaves one, made such that SQLite removes another file with it."""
    victim = path.parent.parent / "elsewhere"
    victim.write_text("precious")
    connection = sqlite3.connect(path, isolation_level=None)
    connection.execute("PRAGMA synchronous = OFF")
    connection.execute("BEGIN IMMEDIATE")
    connection.execute("DELETE FROM facts")
    journal = Path(f"{path}-journal")
    content, name = journal.read_bytes(), os.fsencode(victim)
    connection.execute("ROLLBACK")
    connection.close()
    numbers = ((1 << 30) // 4096 + 1, len(name), sum(name))
    page, length, checksum = (number.to_bytes(4, "big") for number in numbers)
    journal.write_bytes(content + page + name + length + checksum + bytes.fromhex("d9d505f920a163d7"))


HALF_A_ROW = hashlib.blake2b(bytes(8), digest_size=8).digest() + bytes(8)
ENDLESS = "CREATE VIEW facts AS WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i FROM n) SELECT i FROM n"
DAMAGES = {
    "torn": lambda path: path.write_bytes(path.read_bytes()[:-5000]),
    "empty": lambda path: path.write_bytes(b""),
    "another file": lambda path: path.write_bytes(b"a text" * 999),
    "zeroed page": lambda path: path.write_bytes(path.read_bytes()[:4096].ljust(path.stat().st_size, b"\0")),
    "flipped bit": lambda path: path.write_bytes(path.read_bytes()[:-1] + bytes([path.read_bytes()[-1] ^ 1])),
    "endless view": lambda path: change(path, "DROP TABLE facts", ENDLESS),
    "trigger": lambda path: change(path, "CREATE TRIGGER t AFTER INSERT ON facts BEGIN DELETE FROM facts; END"),
    "half a row": lambda path: change(path, f"INSERT INTO facts VALUES (x'{HALF_A_ROW.hex()}')"),
    "other columns": lambda path: change(path, "ALTER TABLE facts ADD COLUMN more INTEGER"),
    "no numbers": lambda path: change(path, "UPDATE facts SET rows = 'many'"),
    "nothing": lambda path: change(path, "UPDATE facts SET rows = NULL"),
    "huge value": lambda path: change(path, "UPDATE facts SET rows = zeroblob(1000000)"),
    "impossible values": lie_about_all,
    "repeated pages": repeat_pages,
    "link": replace_by_link,
    "pipe": replace_by_pipe,
    "pipe as journal": lambda path: os.mkfifo(f"{path}-journal"),
    "journal with a name": name_a_file_in_the_journal,
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_or_hostile_index_is_made_anew(corpus, damage):
    scan(corpus)
    DAMAGES[damage](find_index(corpus))
    elsewhere = corpus.parent / "elsewhere"
    before = elsewhere.read_bytes() if elsewhere.exists() else b""
    assert scan(corpus).checked == CLIPS
    assert (elsewhere.read_bytes() if elsewhere.exists() else b"") == before
    scan(corpus, progress=lambda *call: pytest.fail(f"{call} again"))


def test_what_a_scan_killed_while_it_wrote_has_left_is_used(corpus):
    scan(corpus)
    path = find_index(corpus)
    connection = sqlite3.connect(path, isolation_level=None)
    connection.execute("PRAGMA cache_size = 1")
    connection.execute("BEGIN IMMEDIATE")
    connection.execute("UPDATE facts SET rows = NULL")
    torn, journal = path.read_bytes(), Path(f"{path}-journal").read_bytes()
    connection.execute("ROLLBACK")
    connection.close()
    path.write_bytes(torn)
    Path(f"{path}-journal").write_bytes(journal)
    assert scan(corpus).checked == 0


def test_scans_at_the_same_time_lose_nothing(corpus):
    checked = []

    def start_another(kind, done, total):
        if not checked and done == 64:
            checked.append(-1)
            checked.append(scan(corpus).checked)

    assert scan(corpus, progress=start_another).checked == CLIPS
    assert checked == [-1, CLIPS - 64]
    assert scan(corpus).checked == 0


@pytest.mark.parametrize("room", [0, 4096, 8192])
def test_a_full_disk_ends_the_remembering_not_the_scan(corpus, room, caplog):
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (room, limits[1]))
    try:
        with caplog.at_level(logging.WARNING):
            assert scan(corpus).checked == CLIPS
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert [record.getMessage().count("cannot be kept") for record in caplog.records] == [1] * len(caplog.records) != []
    assert scan(corpus).checked <= CLIPS
    assert scan(corpus).checked == 0


def test_what_cannot_be_replaced_is_left_alone(corpus, caplog):
    scan(corpus)
    path = find_index(corpus)
    path.unlink()
    path.mkdir()
    assert [scan(corpus).checked for _ in range(2)] == [CLIPS] * 2
    assert caplog.text.count("cannot be kept") == 2


def test_a_changed_time_alone_is_looked_at_again_and_leaves_one_row(corpus):
    checked = []
    for time in range(1, 5):
        os.utime(corpus / "wavs" / "007.wav", ns=(time, time))
        checked.append(scan(corpus).checked)
    assert checked == [CLIPS, 1, 1, 1]
    connection = sqlite3.connect(find_index(corpus))
    assert connection.execute("SELECT sum(length(rows) - 8) FROM facts").fetchone() == (CLIPS * 6 * 8,)
    connection.close()


class TestFolder:
    @pytest.fixture
    def cache(self, tmp_path, monkeypatch):
        monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
        return tmp_path / "cache" / "myxtts" / "corpora"

    def test_is_the_users_cache_by_the_real_path_of_the_corpus(self, tmp_path, corpus, cache):
        folder = choose_index_folder(corpus)
        assert folder.parent == cache
        assert folder.is_dir()
        (tmp_path / "link").symlink_to(corpus)
        assert choose_index_folder(tmp_path / "link") == folder
        assert choose_index_folder(tmp_path) != folder
        assert not (corpus / ".myxtts").exists()

    @pytest.mark.parametrize("obstacle", ["", "a file", "a mark"])
    def test_is_in_the_corpus_once_that_was_chosen_unless_it_cannot_be_written(self, corpus, cache, obstacle):
        if obstacle == "a file":
            (corpus / ".myxtts").touch()
        elif obstacle:
            # Also for root, who may write everywhere.
            corpus.chmod(0o555)
        assert claim_corpus_folder(corpus) == (not obstacle)
        folder = choose_index_folder(corpus)
        assert folder.parent == cache if obstacle else folder == corpus / ".myxtts"
        assert (corpus / ".myxtts").is_dir() == (not obstacle)

    @pytest.mark.parametrize("is_claimed", [False, True])
    def test_is_never_behind_a_link(self, tmp_path, corpus, cache, is_claimed):
        (tmp_path / "elsewhere").mkdir()
        (corpus / ".myxtts").symlink_to(tmp_path / "elsewhere")
        assert not is_claimed or not claim_corpus_folder(corpus)
        assert choose_index_folder(corpus).parent == cache
        assert list((tmp_path / "elsewhere").iterdir()) == []

    def test_may_be_nowhere(self, tmp_path, corpus, cache, caplog):
        (tmp_path / "cache").touch()
        assert choose_index_folder(corpus) is None
        assert "not remembered" in caplog.text

    def test_that_was_given_and_cannot_be_written_is_an_error(self, tmp_path):
        (tmp_path / "file").touch()
        with pytest.raises(ReadingError):
            choose_index_folder(tmp_path, given=tmp_path / "file" / "index")
