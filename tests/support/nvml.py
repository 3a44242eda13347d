"""Machines that the NVML stub plays: built once per test run, described by a text file that a test may change."""

from __future__ import annotations

import shutil
import subprocess
from dataclasses import dataclass, field
from pathlib import Path

from tests.support.processes import clean_environ

SOURCE = Path(__file__).with_name("nvml_stub.c")
COMPILER = shutil.which("cc") or shutil.which("gcc")
NO_COMPILER = "no C compiler (cc or gcc) to build the NVML stub with"

GPU_IS_LOST = 15
NOT_SUPPORTED = 3
DRIVER_NOT_LOADED = 9
LIBRARY_NOT_FOUND = 12
VERSION_MISMATCH = 18


def build_stub(folder: Path) -> Path:
    """Compiles the stub into `folder` under the name the bindings look for, and returns the folder."""
    assert COMPILER, NO_COMPILER
    library = folder / "libnvidia-ml.so.1"
    subprocess.run(
        [COMPILER, "-shared", "-fPIC", "-Wall", "-Werror", "-Wl,-soname,libnvidia-ml.so.1", "-o", library, SOURCE],
        check=True,
    )
    return folder


@dataclass
class StubCard:
    id: int
    name: str = "NVIDIA GeForce RTX 4090"
    total: int = 24564
    used: int = 500
    util: int = 40
    state: int = 0
    memory: int = 0

    @property
    def uuid(self) -> str:
        return f"GPU-{self.id:08x}-stub"

    def line(self) -> str:
        bus = f"00000000:{self.id:02X}:00.0"
        return f"card {self.id} {self.state} {self.memory} {self.total} {self.used} {self.util} {self.uuid} {bus} {self.name}"


@dataclass
class StubMachine:
    """A machine of the stub: `environ()` lets a child process see it."""

    library: Path
    file: Path
    cards: list[StubCard] = field(default_factory=list)
    extra: list[str] = field(default_factory=list)

    def write(self) -> None:
        self.file.write_text("\n".join([*(card.line() for card in self.cards), *self.extra]) + "\n")

    def environ(self, **more: str) -> dict[str, str]:
        self.write()
        variables = clean_environ(LD_LIBRARY_PATH=str(self.library), NVML_STUB=str(self.file))
        del variables["CUDA_VISIBLE_DEVICES"]
        return {**variables, **more}
