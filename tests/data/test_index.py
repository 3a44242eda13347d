import logging
import resource

import numpy as np
import pytest

from myxtts.data.errors import IndexFolderError
from myxtts.data.index import Index, choose_index_folder, claim_corpus_folder


def find(index: Index, *keys: int) -> list[list[int] | None]:
    rows, known = index.find(np.array(keys))
    return [row.tolist() if is_known else None for row, is_known in zip(rows, known, strict=True)]


def write(folder, *rows, merge=True):
    with Index(folder, "x", 3) as index:
        index.append(rows)
        if merge:
            index.merge()


def test_rows_are_found_by_their_key(tmp_path):
    write(tmp_path, [5, 50, 51], [-3, 30, 31])

    with Index(tmp_path, "x", 3) as index:
        assert find(index, -3, 4, 5) == [[-3, 30, 31], None, [5, 50, 51]]
    assert [path.name for path in tmp_path.iterdir()] == ["x.index"]


def test_another_name_is_another_index(tmp_path):
    write(tmp_path, [5, 50, 51])

    with Index(tmp_path, "y", 3) as index:
        assert find(index, 5) == [None]


def test_later_rows_win(tmp_path):
    write(tmp_path, [5, 1, 1], [5, 2, 2])
    write(tmp_path, [5, 3, 3], [6, 0, 0], merge=False)

    with Index(tmp_path, "x", 3) as index:
        assert find(index, 5, 6) == [[5, 3, 3], [6, 0, 0]]


def test_what_a_killed_scan_appended_is_kept_up_to_the_torn_row(tmp_path):
    write(tmp_path, [1, 1, 1], merge=True)
    write(tmp_path, [2, 2, 2], [3, 3, 3], merge=False)
    (part,) = tmp_path.glob("*.part")
    part.write_bytes(part.read_bytes()[:-5])

    with Index(tmp_path, "x", 3) as index:
        assert find(index, 1, 2, 3) == [[1, 1, 1], [2, 2, 2], None]


def test_a_damaged_row_is_ignored_and_the_others_are_not(tmp_path):
    write(tmp_path, [1, 1, 1], [2, 2, 2], [3, 3, 3])
    content = bytearray((tmp_path / "x.index").read_bytes())
    content[32 + 9] ^= 1
    (tmp_path / "x.index").write_bytes(content)

    with Index(tmp_path, "x", 3) as index:
        assert find(index, 1, 2, 3) == [[1, 1, 1], None, [3, 3, 3]]


def test_two_scans_at_a_time_lose_nothing(tmp_path):
    with Index(tmp_path, "x", 3) as first, Index(tmp_path, "x", 3) as second:
        first.append([[1, 1, 1]])
        second.append([[2, 2, 2]])
        first.merge()
        second.append([[3, 3, 3]])
        second.merge()

    with Index(tmp_path, "x", 3) as index:
        assert find(index, 1, 2, 3) == [[1, 1, 1], [2, 2, 2], [3, 3, 3]]
    assert [path.name for path in tmp_path.iterdir()] == ["x.index"]


def test_without_a_folder_rows_are_remembered_for_a_while():
    with Index(None, "x", 2) as index:
        index.append([[1, 10]])
        index.merge()
        assert find(index, 1) == [[1, 10]]


def test_a_full_disk_ends_the_remembering_not_the_scan(tmp_path, caplog):
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    with Index(tmp_path, "x", 3) as index:
        index.append([[1, 1, 1]])
        resource.setrlimit(resource.RLIMIT_FSIZE, (40, limits[1]))
        try:
            with caplog.at_level(logging.WARNING):
                index.append([[2, 2, 2]])
                index.append([[3, 3, 3]])
                index.merge()
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, limits)

    assert len(caplog.records) == 1
    assert "cannot be kept" in caplog.text
    with Index(tmp_path, "x", 3) as index:
        assert find(index, 1) == [[1, 1, 1]]


class TestFolder:
    @pytest.fixture
    def cache(self, tmp_path, monkeypatch):
        monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
        return tmp_path / "cache" / "myxtts" / "corpora"

    @pytest.fixture
    def corpus(self, tmp_path):
        (tmp_path / "corpus").mkdir()
        return tmp_path / "corpus"

    def test_is_the_users_cache_by_the_real_path_of_the_corpus(self, tmp_path, corpus, cache):
        folder = choose_index_folder(corpus)

        assert folder.parent == cache
        assert folder.is_dir()
        (tmp_path / "link").symlink_to(corpus)
        assert choose_index_folder(tmp_path / "link") == folder
        assert choose_index_folder(tmp_path) != folder
        assert list(corpus.iterdir()) == []

    def test_is_in_the_corpus_once_that_was_chosen(self, corpus, cache):
        assert claim_corpus_folder(corpus)

        assert choose_index_folder(corpus) == corpus / ".myxtts"
        assert not cache.exists()

    @pytest.mark.parametrize("is_claimed", [False, True])
    def test_is_never_behind_a_link(self, tmp_path, corpus, cache, is_claimed):
        (tmp_path / "elsewhere").mkdir()
        (corpus / ".myxtts").symlink_to(tmp_path / "elsewhere")

        assert not is_claimed or not claim_corpus_folder(corpus)
        assert choose_index_folder(corpus).parent == cache
        assert list((tmp_path / "elsewhere").iterdir()) == []

    def test_is_the_cache_where_the_corpus_cannot_be_written(self, corpus, cache):
        # A file in its place: permissions do not stop the tests' user everywhere.
        (corpus / ".myxtts").touch()

        assert not claim_corpus_folder(corpus)
        assert choose_index_folder(corpus).parent == cache

    def test_is_the_cache_where_the_corpus_is_marked_read_only_even_for_root(self, corpus, cache):
        corpus.chmod(0o555)

        assert not claim_corpus_folder(corpus)
        assert choose_index_folder(corpus).parent == cache
        assert list(corpus.iterdir()) == []

    def test_may_be_nowhere(self, tmp_path, corpus, cache, caplog):
        (tmp_path / "cache").touch()

        assert choose_index_folder(corpus) is None
        assert "not remembered" in caplog.text

    def test_that_was_given_and_cannot_be_written_is_an_error(self, tmp_path):
        (tmp_path / "file").touch()

        with pytest.raises(IndexFolderError):
            choose_index_folder(tmp_path, given=tmp_path / "file" / "index")
