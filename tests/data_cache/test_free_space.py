"""What a cache may take."""

import os

from myxtts.data.cache import free_space
from myxtts.data.cache.free_space import DISK_RESERVE_BYTES, compute_memory_limit, read_free_disk_bytes


def test_a_limit_is_never_more_than_half_of_what_is_free():
    assert compute_memory_limit(1000) == 500
    assert compute_memory_limit(1000, 300) == 300
    assert compute_memory_limit(1000, 700) == 500


def test_a_part_of_the_disk_stays_free(tmp_path, monkeypatch):
    real = os.statvfs
    asked = []

    def answer(path):
        asked.append(path)
        real(path)
        return type("Status", (), {"f_bavail": answer.blocks, "f_frsize": 4096})

    monkeypatch.setattr(free_space.os, "statvfs", answer)
    answer.blocks = DISK_RESERVE_BYTES // 4096 + 10
    assert read_free_disk_bytes(tmp_path / "not" / "made" / "yet") == 40960
    assert asked == [tmp_path]
    answer.blocks = 10
    assert read_free_disk_bytes(tmp_path) == 0
