import hashlib
import os
import resource
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
    result = scan_corpus(corpus, clip_task=task, processes=0, index_folder=folder, progress=progress)
    assert result.corpus.samples.tolist() == [22050] * CLIPS
    assert result.corpus.tokens.tolist() == [len(f"Sentence {n}.") for n in range(CLIPS)]
    return result


def list_files(corpus: Path) -> list[Path]:
    return sorted((corpus.parent / "index").glob("clips-*.rows"))


def write_as_named(path: Path, content: bytes) -> None:
    """Another content, under the name that it has to have."""
    path.unlink()
    path.with_name(f"{path.stem[:-32]}{hashlib.sha256(content).hexdigest()[:32]}.rows").write_bytes(content)


def replace_by_link(path: Path) -> None:
    victim = path.parent.parent / "elsewhere"
    victim.write_bytes(path.read_bytes()[:-32])
    path.unlink()
    path.symlink_to(victim)


def replace_by_pipe(path: Path) -> None:
    path.unlink()
    os.mkfifo(path)


DAMAGES = {
    "torn": lambda path: path.write_bytes(path.read_bytes()[:-32]),
    "empty": lambda path: path.write_bytes(b""),
    "flipped bit": lambda path: path.write_bytes(path.read_bytes()[:-1] + bytes([path.read_bytes()[-1] ^ 1])),
    "half a row": lambda path: write_as_named(path, path.read_bytes()[:-8]),
    "no row": lambda path: write_as_named(path, b""),
    "impossible values": lambda path: write_as_named(path, path.read_bytes()[:-8] + (1 << 40).to_bytes(8, "little")),
    "link": replace_by_link,
    "pipe": replace_by_pipe,
    "gone": Path.unlink,
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_or_hostile_file_is_made_anew(corpus, damage, caplog):
    scan(corpus)
    # The first chunk has a file of its own.
    DAMAGES[damage](next(path for path in list_files(corpus) if path.stat().st_size == 32 * 32))
    elsewhere = corpus.parent / "elsewhere"
    before = elsewhere.read_bytes() if elsewhere.exists() else b""
    assert scan(corpus).checked == 32
    assert ("is damaged" in caplog.text) == (damage != "gone")
    assert (elsewhere.read_bytes() if elsewhere.exists() else b"") == before
    caplog.clear()
    scan(corpus, progress=lambda *call: pytest.fail(f"{call} again"))
    assert caplog.text == ""


def test_scans_at_the_same_time_lose_nothing(corpus):
    checked = []

    def start_another(kind, done, total):
        if not checked and done == 64:
            checked.append(-1)
            checked.append(scan(corpus).checked)

    assert scan(corpus, progress=start_another).checked == CLIPS
    assert checked == [-1, CLIPS - 64]
    assert scan(corpus).checked == 0


def test_a_full_disk_ends_the_remembering_not_the_scan(corpus, caplog):
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (32 * 32 - 1, limits[1]))
    try:
        assert scan(corpus).checked == CLIPS
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert [record.getMessage().count("cannot be kept") for record in caplog.records] == [1]
    assert [scan(corpus).checked for _ in range(2)] == [CLIPS, 0]


def test_a_changed_time_alone_is_looked_at_again(corpus):
    checked = []
    for time in range(1, 5):
        os.utime(corpus / "wavs" / "007.wav", ns=(time, time))
        checked.append(scan(corpus).checked)
    assert checked == [CLIPS, 1, 1, 1]


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
