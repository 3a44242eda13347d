"""The environment variables with which a child process of ours finds this package."""

from __future__ import annotations

import os
import sysconfig
from collections.abc import Mapping
from pathlib import Path

PACKAGE_PARENT = Path(__file__).resolve().parents[2]


def make_importable(environment: Mapping[str, str], package_parent: Path = PACKAGE_PARENT) -> dict[str, str]:
    """The environment with this package's folder on Python's path, where Python would not find it by itself.

    Start the child with `python -P -m`, so that what lies in the working folder by chance is not imported.
    """
    if str(package_parent) in (sysconfig.get_path("purelib"), sysconfig.get_path("platlib")):
        # Named explicitly, the folder of installed packages would come before Python's own modules.
        return dict(environment)
    path = environment.get("PYTHONPATH", "")
    return {**environment, "PYTHONPATH": os.pathsep.join(filter(None, [str(package_parent), path]))}
