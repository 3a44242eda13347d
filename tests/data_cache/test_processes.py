"""Real processes on one cache: together, and killed."""

import os
import signal
import subprocess
import sys

import pytest

from myxtts.data.cache import FeatureCache
from myxtts.data.cache.compaction import compact_segments
from tests.data_cache.builders import fill, find_clips, make_key, open_cache
from tests.support.processes import ROOT, run_code

SAME, OTHER = "a" * 64, "b" * 64


class Writer:
    """A writer process that has opened the cache and waits for `go`."""

    def __init__(self, directory, encoder, salt, first, last):
        words = [directory, encoder, salt, first, last]
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.data_cache.writer_program", *map(str, words)],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=ROOT,
        )  # fmt: skip
        assert self._process.stdout.readline() == "ready\n"

    def go(self):
        self._process.stdin.write("go\n")
        self._process.stdin.flush()

    def read_progress(self):
        """The number of the clip after the last one that was put; None at the end."""
        line = self._process.stdout.readline()
        return int(line) if line else None

    def kill(self):
        """The last word of a process that is killed now."""
        os.kill(self._process.pid, signal.SIGKILL)
        lines = self._process.stdout.read().splitlines()
        assert self.wait() == -signal.SIGKILL
        return max(map(int, filter(None, lines)), default=0)

    def wait(self):
        code = self._process.wait(timeout=120)
        self._process.stdin.close()
        self._process.stdout.close()
        return code


@pytest.fixture
def start_writer(tmp_path):
    writers = []

    def start(*arguments):
        writers.append(Writer(tmp_path, *arguments))
        return writers[-1]

    yield start
    for writer in writers:
        writer._process.kill()
        writer.wait()


def test_writers_of_the_same_and_of_other_keys_one_of_them_killed(tmp_path, start_writer):
    killed = start_writer(SAME, 0, 0, 10**9)
    finishing = start_writer(SAME, 0, 40, 440)
    other = start_writer(OTHER, 7, 0, 200)
    for writer in (killed, finishing, other):
        writer.go()
    progress = 0
    while progress < 100:
        progress = killed.read_progress()
    progress = max(progress, killed.kill())
    while finishing.read_progress() is not None:
        pass
    assert finishing.wait() == 0
    assert other.wait() == 0

    def check():
        with open_cache(tmp_path) as cache:
            found = find_clips(cache, range(progress + 1000))
            assert found >= set(range(progress)) | set(range(40, 440))
            assert cache.stats().damaged == 0
            return found

    found = check()
    assert len(found - set(range(40, 440)) - set(range(progress))) <= 8, "at most the batch nobody heard of"
    assert compact_segments(tmp_path / make_key().folder_name) == 2
    assert check() == found
    with FeatureCache.open("disk", tmp_path, make_key(encoder_digest=OTHER)) as cache:
        assert find_clips(cache, range(1000), salt=7) == set(range(200))


def test_a_segment_is_left_alone_until_its_writer_is_dead(tmp_path, start_writer):
    folder = fill(tmp_path, range(1000, 1010))
    fill(tmp_path, range(1010, 1020))
    writer = start_writer(SAME, 0, 0, 10**9)
    writer.go()
    assert writer.read_progress() == 8
    assert compact_segments(folder) == 2
    assert len(list(folder.glob("*.data"))) == 2
    progress = max(8, writer.kill())
    assert compact_segments(folder) == 2
    assert len(list(folder.glob("*.data"))) == 1
    with open_cache(tmp_path) as cache:
        assert find_clips(cache, range(progress)) == set(range(progress))
        assert find_clips(cache, range(1000, 1020)) == set(range(1000, 1020))


def kill_everywhere(directory, check):
    return run_code(
        "from pathlib import Path\nfrom tests.data_cache import kill_points\n"
        f"report(kill_points.kill_everywhere(Path({str(directory / 'cache')!r}), kill_points.{check}))"
    )


def test_a_writer_killed_anywhere_loses_nothing_it_had_put_and_leaves_nothing_wrong(tmp_path):
    left = kill_everywhere(tmp_path, "check_writer")
    assert len(left) > 100
    assert {state["done"] for state in left} == {10, 15, 20}
    # Of a batch whose entries were cut in half, the first two are whole; of 99 %, the first four.
    assert {state["found"] for state in left} == {10, 12, 14, 15, 17, 19, 20}


def test_a_compaction_killed_anywhere_loses_nothing(tmp_path):
    left = kill_everywhere(tmp_path, "check_compaction")
    assert len(left) > 100
    assert {state["segments"] for state in left} == {1, 2, 3, 4}
