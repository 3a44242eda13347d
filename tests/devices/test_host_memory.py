"""What is free is what this process may really take."""

import psutil
import pytest

from myxtts.devices.machine import read_free_memory_bytes


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


@pytest.mark.parametrize(
    ("own", "above", "free"),
    [(("max", 500, 0), None, 1000), ((800, 600, 100), None, 300), ((800, 600, 100), (700, 600, 0), 100), ((100, 600, 0), None, 0)],
)  # fmt: skip
def test_the_narrowest_group_decides_with_what_it_does_not_need_itself(host, own, above, free):
    limit_group(host / "groups" / "a" / "b", *own)
    if above:
        limit_group(host / "groups" / "a", *above)
    assert read(host) == free


@pytest.mark.parametrize("text", ["", "4:memory:/old\n"])
def test_without_a_unified_group_the_host_decides(host, text):
    (host / "proc").write_text(text)
    limit_group(host / "groups", 100, 50, 0)
    assert read(host) == 1000
