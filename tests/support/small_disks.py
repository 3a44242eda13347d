"""Disks of a few kilobytes, to be filled."""

from __future__ import annotations

import shutil
import subprocess

import pytest

MOUNTING = ("unshare", "--map-root-user", "--mount", "sh", "-c")
"""In front of a script that may mount something: only its own processes see it."""


def require_small_disks() -> None:
    """Skips the test where nobody may mount a disk."""
    words = [*MOUNTING, "mount -t tmpfs -o size=1m tmpfs /mnt"]
    if shutil.which("unshare") is None or subprocess.run(words, capture_output=True).returncode != 0:
        pytest.skip("this machine lets nobody mount a small disk")
