"""Driver, CUDA libraries, TensorFlow and hardware, found out without importing TensorFlow; and what of it may be shown to others.

So it works where TensorFlow has no GPU build, and where importing it fails."""

from __future__ import annotations

import ast
import ctypes
import getpass
import importlib.metadata
import importlib.util
import json
import os
import platform
import re
import shutil
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil

from myxtts import __version__
from myxtts.devices.machine import read_free_memory_bytes, read_links
from myxtts.devices.nvml import Nvml, scan_cards
from myxtts.errors import NvmlError
from myxtts.units import UNKNOWN, format_bytes

DRIVER_LIBRARY = "libcuda.so.1"
_TENSORFLOW_NAMES = ("tensorflow", "tensorflow-cpu", "tensorflow-intel", "tf-nightly")
_LIBRARIES: Mapping[str, tuple[str, Mapping[str, str]]] = {
    # Name -> file, and its version by the major version of CUDA that TensorFlow was built with.
    "CUDA runtime": ("libcudart", {"12": "12", "13": "13"}),
    "cuBLAS": ("libcublas", {"12": "12", "13": "13"}),
    "cuBLASLt": ("libcublasLt", {"12": "12", "13": "13"}),
    "cuFFT": ("libcufft", {"12": "11", "13": "12"}),
    "cuSOLVER": ("libcusolver", {"12": "11", "13": "12"}),
    "cuSPARSE": ("libcusparse", {"12": "12", "13": "12"}),
}
"""What TensorFlow loads when it first looks for cards. Where one of them is missing it goes on with the CPU."""

Load = Callable[[str], object]


@dataclass(frozen=True)
class Library:
    """A shared library that TensorFlow needs on a GPU."""

    name: str
    file: str
    problem: str | None


@dataclass(frozen=True)
class TensorFlowBuild:
    """What an installed TensorFlow was built for."""

    version: str
    is_cuda_build: bool | None
    """None when the installation does not say."""
    cuda_version: str | None = None
    cudnn_version: str | None = None


@dataclass(frozen=True)
class SoftwareFacts:
    """What is installed."""

    python: str
    system: str
    tensorflow: TensorFlowBuild | None
    driver: str | None
    """The NVIDIA driver's version; None when there is none, or it does not answer."""
    driver_problem: str | None
    libraries: tuple[Library, ...]
    """Those of CUDA, and the driver's own. Empty where TensorFlow has no GPU build."""

    @property
    def missing(self) -> tuple[Library, ...]:
        return tuple(library for library in self.libraries if library.problem is not None)

    @property
    def build(self) -> str:
        """TensorFlow in words."""
        build = self.tensorflow
        if build is None:
            return "not installed"
        how = {None: f"build {UNKNOWN}", False: "built without CUDA"}
        cuda = f"built for CUDA {build.cuda_version}, cuDNN {build.cudnn_version}"
        return f"{build.version}, {how.get(build.is_cuda_build, cuda)}"


def describe_software() -> Iterator[str]:
    """What is installed, line by line."""
    facts = read_software()
    yield f"MyXTTS {__version__}, Python {facts.python}, {facts.system}"
    yield f"TensorFlow: {facts.build}"
    yield f"NVIDIA driver: {facts.driver or facts.driver_problem or UNKNOWN}"
    yield from (f"missing: {library.name} ({library.file}): {library.problem}" for library in facts.missing)
    names = list[str]()
    with suppress(importlib.metadata.PackageNotFoundError):
        needed = importlib.metadata.requires("myxtts") or []
        names = [re.split(r"[^\w.-]", text, maxsplit=1)[0] for text in needed if "extra ==" not in text]
    versions = [f"{name}=={_find_version([name]) or 'not installed'}" for name in names]
    yield f"packages: {', '.join(versions)}"


def read_software() -> SoftwareFacts:
    """What is installed here."""
    build, driver, problem = read_tensorflow_build(), None, None
    try:
        with Nvml() as nvml:
            driver = nvml.read_driver_version()
    except NvmlError as error:
        problem = str(error)
    libraries = () if build is None else tuple(check_libraries(build, find_library_folders()))
    return SoftwareFacts(platform.python_version(), platform.platform(), build, driver, problem, libraries)


def read_tensorflow_build() -> TensorFlowBuild | None:
    """The build of the installed TensorFlow, from its files."""
    spec = importlib.util.find_spec("tensorflow")
    if spec is None or spec.origin is None:
        return None
    facts = _parse_build_info(Path(spec.origin).parent / "python" / "platform" / "build_info.py")
    version = _find_version(_TENSORFLOW_NAMES) or "of unknown version"
    if facts is None:
        return TensorFlowBuild(version, None)
    return TensorFlowBuild(
        version, bool(facts.get("is_cuda_build")), facts.get("cuda_version"), facts.get("cudnn_version")
    )


def check_libraries(build: TensorFlowBuild, folders: Sequence[Path], load: Load = ctypes.CDLL) -> list[Library]:
    """Each library that this build needs, loaded once to see whether it can be. First in these folders, as
    TensorFlow does; then wherever the system looks."""
    if not build.is_cuda_build or build.cuda_version is None:
        return []
    major = build.cuda_version.partition(".")[0]
    names = {name: f"{file}.so.{by[major]}" for name, (file, by) in _LIBRARIES.items() if major in by}
    if build.cudnn_version is not None:
        names["cuDNN"] = f"libcudnn.so.{build.cudnn_version.partition('.')[0]}"
    return [
        Library("NVIDIA driver", DRIVER_LIBRARY, _try_loading(DRIVER_LIBRARY, (), load)),
        *(Library(name, file, _try_loading(file, folders, load)) for name, file in names.items()),
    ]


def find_library_folders() -> list[Path]:
    """Where `pip install 'tensorflow[and-cuda]'` puts libraries."""
    spec = importlib.util.find_spec("nvidia")
    homes = [] if spec is None else list(spec.submodule_search_locations or ())
    return [folder for home in homes for folder in sorted(Path(home).glob("*/lib"))]


def _try_loading(file: str, folders: Sequence[Path], load: Load) -> str | None:
    paths = [str(folder / file) for folder in folders if (folder / file).exists()]
    try:
        load(paths[0] if paths else file)
    except OSError as error:
        return str(error)
    return None


def _parse_build_info(path: Path) -> dict[str, Any] | None:
    """The dictionary in TensorFlow's own description of its build; None when it is written otherwise."""
    try:
        tree = ast.parse(path.read_text(encoding="utf-8"))
        for node in ast.walk(tree):
            if isinstance(node, ast.Assign) and isinstance(node.value, ast.Call) and node.value.args:
                return dict(ast.literal_eval(node.value.args[0]))
    except (OSError, SyntaxError, ValueError, TypeError):
        return None
    return None


def _find_version(names: Iterable[str]) -> str | None:
    """The version of the first of these packages that is installed."""
    for name in names:
        with suppress(importlib.metadata.PackageNotFoundError):
            return importlib.metadata.version(name)
    return None


def describe_hardware(folder: Path) -> Iterator[str]:
    """This machine and the disk that holds a folder, line by line, without what identifies a single card."""
    scan = scan_cards()
    for card in scan.cards:
        free, total = (UNKNOWN if mib is None else f"{mib} MB" for mib in (card.free_mib, card.total_mib))
        yield f"GPU {card.physical_id}: {card.name}, {free} free of {total}, bus {card.bus_id or UNKNOWN}"
    yield from (f"GPU {physical_id}: {reason}" for physical_id, reason in scan.lost)
    if scan.problem or not (scan.cards or scan.lost):
        yield scan.problem or "GPU: none, no NVIDIA driver found"
    yield from (link.explain() for link in read_links([card.physical_id for card in scan.cards]))
    usable = len(os.sched_getaffinity(0))
    yield f"processor: {platform.machine()}, {os.cpu_count()} logical cores, {usable} usable"
    memory, disk = format_bytes(int(psutil.virtual_memory().total)), shutil.disk_usage(folder)
    yield f"memory: {format_bytes(read_free_memory_bytes())} free of {memory}"
    yield f"disk: {format_bytes(disk.free)} free of {format_bytes(disk.total)}"


SECRET, USER, HOST = "<secret>", "<user>", "<host>"
SHORTEST_SECRET = 6
"""A shorter value of a variable is a switch, and would be found in every word."""
_SECRET_NAME = re.compile(r"token|secret|passw|passphrase|credential|auth(?!or)|cookie|key|bearer|webhook|dsn", re.I)
_COMMON_NAMES = frozenset({"root", "user", "ubuntu", "admin", "docker", "jovyan", "runner", "nobody", "localhost"})
"""Names that many machines have, and words that a report needs."""


def redact(text: str, environ: Mapping[str, str]) -> str:
    """A report about this machine without what is private: values of variables whose names say that they are secret, ids of single
    cards, the home folder, which is shown as `~`, and the names of user and machine."""
    secrets = [value for name, value in environ.items() if _SECRET_NAME.search(name) and len(value) >= SHORTEST_SECRET]
    # Longest first: a value may be the beginning of another. In a report of JSON it is escaped.
    for secret in sorted({form for each in secrets for form in (each, json.dumps(each)[1:-1])}, key=len, reverse=True):
        text = text.replace(secret, SECRET)
    text = re.sub(r"\b(GPU|MIG)-[0-9a-f]{8}-[\w-]{4,}", r"\1-<id>", text, flags=re.I)
    if len(Path.home().parts) > 1:
        text = re.sub(rf"{re.escape(str(Path.home()))}(?![\w.-])", "~", text)
    text = re.sub(r"(/(?:home|Users)/)(?!<)[^/\s'\":,;)]+", rf"\g<1>{USER}", text)
    try:
        user = getpass.getuser()
    except (KeyError, OSError):
        # A container may run as a number that has no name.
        user = ""
    for name, placeholder in ((user, USER), (platform.node(), HOST)):
        if len(name) > 1 and name.lower() not in _COMMON_NAMES:
            text = re.sub(rf"(?<![\w<]){re.escape(name)}(?![\w>])", placeholder, text)
    return text


def fence(text: str, language: str = "") -> str:
    """A block of code, fenced by more backticks than it has anywhere."""
    longest = max((len(marks) for marks in re.findall(r"`+", text)), default=0)
    marks = "`" * max(3, longest + 1)
    return f"{marks}{language}\n{text}\n{marks}"
