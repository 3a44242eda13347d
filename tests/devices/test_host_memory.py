"""What is free is what this process may really take."""

import psutil
import pytest

from myxtts.devices import machine
from myxtts.devices.host_memory import read_free_memory_bytes


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


def test_the_facts_of_a_plan_know_of_the_limit(monkeypatch):
    monkeypatch.setattr(machine, "read_free_memory_bytes", lambda: 3 * 2**20 + 1)
    assert machine.read_machine().host_free_mib == 3


def test_a_host_without_control_groups_decides_alone(host):
    assert read_free_memory_bytes(host / "none", host / "none") == 1000
