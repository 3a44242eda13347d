"""What is free is what this process may really take."""

import os

import psutil
import pytest

from myxtts.data.cache import free_space
from myxtts.data.cache.free_space import (
    DISK_RESERVE_BYTES,
    compute_memory_limit,
    read_free_disk_bytes,
    read_free_memory_bytes,
)


@pytest.fixture
def host(monkeypatch, tmp_path):
    """A host with 1000 bytes free, and a process in the control group a/b."""
    monkeypatch.setattr(psutil, "virtual_memory", lambda: type("Memory", (), {"available": 1000}))
    (tmp_path / "groups" / "a" / "b").mkdir(parents=True)
    (tmp_path / "proc").write_text("4:memory:/old\n0::/a/b\n")
    return tmp_path


def limit_group(folder, limit, used, inactive_file):
    (folder / "memory.max").write_text(f"{limit}\n")
    (folder / "memory.current").write_text(f"{used}\n")
    (folder / "memory.stat").write_text(f"anon 1\ninactive_file {inactive_file}\nslab 2\n")


def read(host):
    return read_free_memory_bytes(host / "proc", host / "groups")


def test_without_limits_the_host_decides(host):
    limit_group(host / "groups" / "a" / "b", "max", 500, 0)
    assert read(host) == 1000


def test_a_limited_group_leaves_what_it_does_not_need_itself(host):
    limit_group(host / "groups" / "a" / "b", 800, 600, 100)
    assert read(host) == 300


def test_a_group_above_may_be_the_narrow_one(host):
    limit_group(host / "groups" / "a" / "b", 800, 600, 100)
    limit_group(host / "groups" / "a", 700, 600, 0)
    assert read(host) == 100


def test_a_group_above_its_limit_leaves_nothing(host):
    limit_group(host / "groups" / "a" / "b", 100, 600, 0)
    assert read(host) == 0


@pytest.mark.parametrize("text", ["", "4:memory:/old\n"])
def test_without_a_unified_group_the_host_decides(host, text):
    (host / "proc").write_text(text)
    limit_group(host / "groups", 100, 50, 0)
    assert read(host) == 1000


def test_a_host_without_control_groups_decides_alone(host):
    assert read_free_memory_bytes(host / "none", host / "none") == 1000


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
