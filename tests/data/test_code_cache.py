"""Codes that are kept: by several processes, on a full disk, by one that is killed, in files that are damaged. Never a wrong one."""

import hashlib
import io
import signal
import subprocess
import sys

import numpy as np
import pytest

from myxtts.data import code_cache
from myxtts.data.code_cache import CodeCache, find_key_folder, identify_files, list_kept_codes
from myxtts.errors import MachineError
from tests.support.processes import ROOT, clean_environ, run_code

KEY = {"codec": "abc", "threads of an operation": "2"}


def make_ids(clips):
    return identify_files([b"%d" % clip for clip in clips], np.zeros(len(clips), int), np.zeros(len(clips), int))


def make_codes(clip):
    """What belongs to a clip, so that any other codes would be found out."""
    return np.random.default_rng(clip).integers(0, 1024, 5 + clip % 7).astype(np.int64)


def put(cache, clips):
    cache.put_many(make_ids(clips), [make_codes(clip) for clip in clips])


def find_clips(cache, clips):
    """The clips whose codes are there. Fails if some are not those of their clip."""
    found = cache.get_many(make_ids(clips))
    for clip, codes in zip(clips, found, strict=True):
        assert codes is None or codes.tolist() == make_codes(clip).tolist()
    return {clip for clip, codes in zip(clips, found, strict=True) if codes is not None}


def list_files(folder):
    return sorted(path.name for path in find_key_folder(folder, KEY).iterdir() if path.name != "key.json")


@pytest.mark.parametrize("has_folder", [False, True])
def test_codes_come_back_and_misses_are_told(tmp_path, has_folder):
    with CodeCache(tmp_path if has_folder else None, KEY) as cache:
        assert find_clips(cache, range(3)) == set()
        put(cache, range(0, 20, 2))
        assert find_clips(cache, range(20)) == set(range(0, 20, 2))
        cache.save()
        put(cache, [1, 3])
        assert find_clips(cache, [0, 1, 5]) == {0, 1}
        assert (len(cache), cache.hits, cache.misses) == (12, 12, 14)
        with pytest.raises(ValueError, match="read-only"):
            cache.get_many(make_ids([1]))[0][0] = 5
    assert bool(list(tmp_path.iterdir())) == has_folder


@pytest.mark.parametrize("damage", ["flip", "cut", "empty", "other name", "lies", "packed"])
def test_a_damaged_file_is_told_of_and_none_of_its_codes_is_served(tmp_path, caplog, damage):
    with CodeCache(tmp_path, KEY) as cache:
        put(cache, range(5))
        cache.save()
        put(cache, range(5, 10))
    path = next(path for path in find_key_folder(tmp_path, KEY).glob("codes-5-*"))
    content = bytearray(path.read_bytes())
    if damage == "flip":
        content[len(content) // 2] ^= 1
    path.unlink()
    if damage == "other name":
        path.with_name(f"codes-5-{'0' * 32}.npz").write_bytes(content)
    elif damage in ("lies", "packed"):
        # Whoever makes such a file can also name it after its content. What is packed may be of any size.
        lies, lengths = io.BytesIO(), np.array([2**31 - 1 if damage == "lies" else 4, 5], "<i4")
        save = np.savez if damage == "lies" else np.savez_compressed
        save(lies, ids=np.zeros((2, 2), "<u8"), lengths=lengths, codes=np.zeros(9, "<i2"))
        name = f"codes-2-{hashlib.sha256(lies.getvalue()).hexdigest()[:32]}.npz"
        path.with_name(name).write_bytes(lies.getvalue())
    else:
        path.write_bytes({"flip": content, "cut": content[:-20], "empty": b""}[damage])
    with CodeCache(tmp_path, KEY) as cache:
        assert len(find_clips(cache, range(10))) == 5
        assert "is damaged: the codes in it are made anew" in caplog.text
        put(cache, sorted(set(range(10)) - find_clips(cache, range(10))))
    assert find_clips(CodeCache(tmp_path, KEY), range(10)) == set(range(10))


WRITER = """
import sys
from pathlib import Path
from myxtts.data import code_cache
from tests.data.test_code_cache import KEY, put
code_cache.SAVE_EVERY_S = 0.0
cache = code_cache.CodeCache(Path(sys.argv[1]), KEY)
first, step = int(sys.argv[2]), int(sys.argv[3])
for clip in range(first, first + 200 * step, step):
    put(cache, [clip])
    print(clip, flush=True)
"""


def start_writer(folder, first, step):
    words = [sys.executable, "-c", WRITER, str(folder), str(first), str(step)]
    environ = clean_environ(PYTHONPATH=str(ROOT))
    return subprocess.Popen(words, stdout=subprocess.PIPE, text=True, env=environ, cwd=ROOT)


def test_writers_at_the_same_time_lose_nothing_and_one_that_is_killed_only_what_it_had_not_written(tmp_path):
    writers = [start_writer(tmp_path, first, 2) for first in (0, 1)]
    told = [[int(writers[1].stdout.readline()) for _ in range(20)]]
    writers[1].send_signal(signal.SIGKILL)
    told += [[int(line) for line in writer.communicate()[0].split()] for writer in writers]
    written = {clip for clips in told for clip in clips}
    assert {0, 398, 1, 39} <= written
    found = find_clips(CodeCache(tmp_path, KEY), range(400))
    assert written <= found
    assert len(found) <= len(written) + 1


FULL = """
import resource
from pathlib import Path
from myxtts.data.code_cache import CodeCache
from tests.data.test_code_cache import KEY, find_clips, put
cache = CodeCache(Path({folder!r}), KEY)
put(cache, [0])
cache.save()
resource.setrlimit(resource.RLIMIT_FSIZE, (2000, resource.RLIM_INFINITY))
put(cache, range(1, 200))
cache.save()
problem, found = cache.write_problem, sorted(find_clips(cache, range(200)))
resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
kept = len(find_clips(CodeCache(Path({folder!r}), KEY), range(200)))
cache.save()
report([problem, found, kept, cache.write_problem])
"""


def test_a_disk_that_takes_no_more_is_told_of_once_and_tried_again(tmp_path):
    problem, found, kept, later = run_code(FULL.format(folder=str(tmp_path)))
    assert "File too large" in problem
    assert found == list(range(200)), "in memory"
    assert (kept, later) == (1, None)
    assert find_clips(CodeCache(tmp_path, KEY), range(200)) == set(range(200))
    assert [name for name in list_files(tmp_path) if name.startswith(".")] == []


def test_the_last_of_the_disk_is_left_to_checkpoints_and_of_memory_to_the_run(tmp_path, monkeypatch, caplog):
    caplog.set_level("INFO")
    monkeypatch.setattr(code_cache, "DISK_RESERVE_BYTES", 1 << 60)
    cache = CodeCache(tmp_path, KEY)
    put(cache, range(3))
    cache.save()
    cache.save()
    assert list_files(tmp_path) == []
    assert caplog.text.count("codes cannot be written") == 1
    monkeypatch.setattr(code_cache, "read_free_memory_bytes", lambda: 2000)
    small = CodeCache(None, KEY)
    put(small, range(9))
    assert 0 < len(find_clips(small, range(9))) < 9
    assert caplog.text.count("No memory is left for more codes") == 1


def test_a_folder_that_cannot_be_made_is_refused_with_the_way_out(tmp_path):
    (tmp_path / "codes").write_text("")
    with pytest.raises(MachineError, match="--cache memory or --cache off"):
        CodeCache(tmp_path / "codes", KEY)
    assert list_kept_codes(tmp_path / "none") == []


def test_a_link_in_the_place_of_the_key_is_replaced_and_not_followed(tmp_path):
    (tmp_path / "own").write_text("of the user")
    folder = find_key_folder(tmp_path / "codes", KEY)
    folder.mkdir(parents=True)
    (folder / "key.json").symlink_to(tmp_path / "own")
    CodeCache(tmp_path / "codes", KEY)
    assert (tmp_path / "own").read_text() == "of the user"
    assert not (folder / "key.json").is_symlink()


def test_ids_change_with_name_size_and_time_only():
    names, zeros, second = [b"a", b"b"], np.zeros(2, int), np.array([0, 1])
    ids = identify_files(names, zeros, zeros)
    assert len({each.tobytes() for each in ids}) == 2
    assert (identify_files(names, zeros, zeros) == ids).all()
    for changed in ([b"a", b"c"], zeros, zeros), (names, second, zeros), (names, zeros, second):
        assert (identify_files(*changed) == ids).all(axis=1).tolist() == [True, False]
