"""Folders of a cache: readable, and listed with their size."""

import json
import os
import shutil

import pytest

from myxtts.data.cache import CacheFolderError, CacheKeyError, FeatureCache, list_generations, segment
from tests.data_cache.builders import fill, find_clips, list_names, make_key, open_cache, put


def test_the_key_can_be_read(tmp_path):
    folder = fill(tmp_path, range(3))
    assert json.loads((folder / "key.json").read_text()) == {
        "format_version": 1,
        "feature": "dvae_codes",
        "parameters": {"padding": "zeros", "sample_rate_hz": 22050},
        "encoder_digest": "a" * 64,
        "precision": "float32",
        "device_kind": "cpu",
    }


def fill_two(directory):
    old = fill(directory, range(3))
    for path in old.iterdir():
        os.utime(path, (1000, 1000))
    with FeatureCache.open("disk", directory, make_key(precision="mixed_float16")) as cache:
        put(cache, range(50))
    return old


def test_generations_are_listed_with_their_size_the_latest_first(tmp_path):
    old = fill_two(tmp_path)
    (tmp_path / "of somebody else").mkdir()
    latest, oldest = list_generations(tmp_path)
    assert oldest.folder == old
    assert oldest.key["precision"] == "float32"
    assert latest.key["precision"] == "mixed_float16"
    assert (oldest.records, latest.records) == (3, 50)
    assert oldest.size_bytes == sum(path.stat().st_size for path in old.iterdir())
    assert oldest.last_written == 1000


def test_a_directory_that_is_not_there_has_no_generations(tmp_path):
    assert list_generations(tmp_path / "none") == []


def test_a_folder_with_another_key_is_an_error(tmp_path):
    fill(tmp_path, range(3))
    other = make_key(device_kind="gpu")
    shutil.copytree(tmp_path / make_key().folder_name, tmp_path / other.folder_name)
    with pytest.raises(CacheKeyError, match=r"key\.json: must hold the key that the folder is named after"):
        FeatureCache.open("disk", tmp_path, other)


@pytest.mark.parametrize("content", [b"", b'{"format_ver', b"\xff\xfe", b"[1, 2]"])
def test_a_damaged_key_file_is_written_anew(tmp_path, content):
    folder = fill(tmp_path, range(3))
    sound = (folder / "key.json").read_bytes()
    (folder / "key.json").write_bytes(content)
    assert [found.key for found in list_generations(tmp_path)] == [{}]
    with open_cache(tmp_path) as cache:
        assert find_clips(cache, range(3)) == {0, 1, 2}
    assert (folder / "key.json").read_bytes() == sound
    assert [name for name in list_names(folder) if name.endswith(".tmp")] == []


def test_a_directory_that_cannot_be_made_is_an_error(tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(CacheFolderError, match="Give another directory, or run with --cache memory or --cache off"):
        open_cache(tmp_path / "file")


def test_a_file_system_without_locks_is_used_all_the_same(tmp_path, monkeypatch):
    def refuse(descriptor, operation):
        raise OSError(37, "No locks available")

    monkeypatch.setattr(segment.fcntl, "flock", refuse)
    fill(tmp_path, range(3))
    with open_cache(tmp_path) as cache:
        assert find_clips(cache, range(3)) == {0, 1, 2}
