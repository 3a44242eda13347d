"""Driver, CUDA libraries, TensorFlow and hardware, found out without importing TensorFlow; and what of it may be shown to others.

So it works where TensorFlow has no GPU build, and where importing it fails."""

from __future__ import annotations

import ast
import ctypes
import getpass
import importlib.metadata
import importlib.util
import ipaddress
import json
import os
import platform
import re
import shlex
import shutil
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import quote

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
    "CUDA runtime": ("libcudart", {"11": "11.0", "12": "12", "13": "13"}),
    "cuBLAS": ("libcublas", {"11": "11", "12": "12", "13": "13"}),
    "cuBLASLt": ("libcublasLt", {"11": "11", "12": "12", "13": "13"}),
    "cuFFT": ("libcufft", {"11": "10", "12": "11", "13": "12"}),
    "cuSOLVER": ("libcusolver", {"11": "11", "12": "11", "13": "12"}),
    "cuSPARSE": ("libcusparse", {"11": "11", "12": "12", "13": "12"}),
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
        if not build.is_cuda_build:
            return (
                f"{build.version}, build {UNKNOWN}"
                if build.is_cuda_build is None
                else f"{build.version}, built without CUDA"
            )
        return f"{build.version}, built for CUDA {build.cuda_version}, cuDNN {build.cudnn_version}"


def describe_software() -> Iterator[str]:
    """What is installed, line by line."""
    facts = read_software()
    yield f"MyXTTS {__version__}, Python {facts.python}, {facts.system}"
    yield f"TensorFlow: {facts.build}"
    yield f"NVIDIA driver: {facts.driver or facts.driver_problem or UNKNOWN}"
    yield from (f"missing: {library.name} ({library.file}): {library.problem}" for library in facts.missing)
    yield f"packages: {', '.join(_list_packages())}"


def _list_packages() -> Iterator[str]:
    """What MyXTTS depends on, in the versions that are installed; one that is missing says so."""
    with suppress(importlib.metadata.PackageNotFoundError):
        for text in importlib.metadata.requires("myxtts") or []:
            if "extra ==" not in text:
                name = re.split(r"[^\w.-]", text, maxsplit=1)[0]
                yield f"{name}=={_find_version([name]) or 'not installed'}"


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
    """Each library that this build needs, loaded once to see whether it can be.

    Args:
        folders: looked through first, as TensorFlow does; then wherever the system looks.
    """
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


_CPU_FACTS = Path("/proc/cpuinfo")


def describe_hardware(folder: Path) -> Iterator[str]:
    """This machine and the disk that holds a folder, line by line, without what identifies a single card."""
    scan = scan_cards()
    lines = [f"GPU {card.physical_id}: {card.name}, {_show(card.free_mib)} free of {_show(card.total_mib)}, bus {card.bus_id or UNKNOWN}" for card in scan.cards]  # fmt: skip
    lines += [f"GPU {physical_id}: {reason}" for physical_id, reason in scan.lost]
    lines += [scan.problem] if scan.problem else []
    yield from lines or ["GPU: none, no NVIDIA driver found"]
    yield from (link.explain() for link in read_links([card.physical_id for card in scan.cards]))
    usable = len(os.sched_getaffinity(0))
    yield f"processor: {_find_processor() or UNKNOWN}, {os.cpu_count()} logical cores, {usable} usable"
    memory = format_bytes(int(psutil.virtual_memory().total))
    yield f"memory: {format_bytes(read_free_memory_bytes())} free of {memory}"
    if folder.exists():
        disk = shutil.disk_usage(folder)
        yield f"disk: {format_bytes(disk.free)} free of {format_bytes(disk.total)}"


def _find_processor() -> str | None:
    try:
        lines = _CPU_FACTS.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return platform.processor() or None
    return next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), platform.machine())


def _show(mib: int | None) -> str:
    return UNKNOWN if mib is None else f"{mib} MB"


SECRET = "<secret>"
USER = "<user>"
HOST = "<host>"
TEXT = "<text of a clip>"
MAIL = "<e-mail>"
ADDRESS = "<address>"
WINDOWS_PATH = "<Windows path>"
LEFT_OUT = (
    "Left out: audio, texts of the corpus (clips are named by their ids), weights, values of variables that may be secret, and "
    f"identifiers of single cards. Replaced: the home folder (~), user and machine name ({USER}, {HOST}), what looks like a "
    f"secret ({SECRET}), e-mail and network addresses ({MAIL}, {ADDRESS}), paths of Windows ({WINDOWS_PATH}), and texts of clips "
    f"({TEXT}). Folder names outside the home folder are shown. Read it before you post it."
)
SHORTEST_SECRET = 6
"""A shorter value of a variable is a switch, and would be found in every word: it is hidden behind its name alone."""
SHORTEST_TEXT = 8
"""A shorter text ("Yes.") is part of others and says nothing about anybody."""
_TELLING_NOTHING = frozenset({"root", "user", "ubuntu", "admin", "docker", "jovyan", "runner", "nobody", "localhost"})
"""Names that many machines have, and words that a report needs."""

_SECRET_WORD = (
    r"(?:token|secret|passw|passphrase|credential|auth(?!or)|cookie|api_?-?key|bearer|webhook"
    # Parts of names that are parts of other words too: GITHUB_PAT, DB_PASS, SIGNING_KEY.
    r"|(?<![a-z])(?:pass|pat|dsn|salt)(?![a-z])|(?<=[_-])(?:keys?|pwd)(?![a-z]))"
)
_SECRET_NAME = re.compile(_SECRET_WORD, re.I)

_KEY_BEGIN, _KEY_END = r"-----BEGIN [A-Z ]*PRIVATE KEY-----", r"-----END [A-Z ]*PRIVATE KEY-----"
_LINE_END = r"(?:\s|\\[nr])"
_SECRET_SHAPES = (
    rf"{_KEY_BEGIN}(?:(?!-----)[\s\S]){{0,20000}}?{_KEY_END}",
    # One that is cut off ends with its last line of letters and digits alone; what follows is something else.
    rf"{_KEY_BEGIN}(?:{_LINE_END}*(?:Proc-Type|DEK-Info): [^\s\\]*)*{_LINE_END}*[A-Za-z0-9+/=]*"
    rf"(?:{_LINE_END}+(?:[A-Za-z0-9+/]{{16,}}=*|[A-Za-z0-9+/]+=+)(?![^\s\\\"'`]))*",
    # Of Hugging Face, GitHub, GitLab, OpenAI and its like, Stripe, Slack, npm, PyPI, Docker, Amazon, Google, and signed tokens.
    r"(?<![A-Za-z0-9])(?:hf_|npm_|gh[a-z]_)[A-Za-z0-9]{10,}",
    r"(?<![A-Za-z0-9])(?:github_pat_|[sr]k_(?:live|test)_)\w{10,}",
    r"(?<![A-Za-z0-9])(?:glpat-|sk-|xox[abeoprs]-|pypi-|dckr_[a-z]{2,6}_|ya29\.)[\w-]{10,}",
    r"(?<![A-Za-z0-9])A[KS]IA[A-Z0-9]{16}\b",
    r"(?<![A-Za-z0-9])AIza[\w-]{30,}",
    r"(?<![\w-])eyJ[\w-]{10,}\.[\w-]{10,}\.[\w-]*",
)
_NAME = rf"(?<![\w.-])(?=[\w.-]*?{_SECRET_WORD})[\w.-]++"
_ASSIGNMENTS = (
    # NAME="some words", "name": "some words", and in a list of words "--name", "some words".
    rf"(?P<name>{_NAME}\\?['\"]?\s*[=:]\s*(?P<quote>\\?['\"]))(?P<value>(?:(?!(?P=quote))[^\n])+)(?=(?P=quote))",
    rf"(?P<name>{_NAME}(?P<quote>\\?['\"])\s*,\s*(?P=quote))(?P<value>(?:(?!(?P=quote))[^\n])+)(?=(?P=quote))",
    # NAME=value, name: value.
    rf"(?P<name>{_NAME}\\?['\"]?\s*[=:]\s*)(?P<value>[^\s'\"`,;\\]+)",
    rf"(?P<name>(?<![\w-])--(?=[\w-]*?{_SECRET_WORD})[\w-]++\s+)(?P<value>[^\s'\"`-][^\s'\"`]*)",
)
_WINDOWS_PATH = (
    r"(?<![A-Za-z0-9])(?:[A-Za-z]:(?:\\{1,2}|/(?!/))|\\{2,4}[\w.-]+\\{1,2}(?=[\w$]))"
    r"(?:[^\\/\r\n\"'`<>|:*?,;]+(?:\\{1,2}|/))*[^\\/\s\"'`<>|:*?,;)]*"
)


def make_redactor(environ: Mapping[str, str], texts: Iterable[str]) -> Callable[[str], str]:
    """`redact` for what is private on this machine, and in texts of a corpus."""
    try:
        user = getpass.getuser()
    except (KeyError, OSError):
        # A container may run as a number that has no name.
        user = ""
    secrets, own = list_secrets(environ), tuple(texts)
    return partial(redact, home=Path.home(), user=user, host=platform.node(), secrets=secrets, texts=own)


def redact(
    text: str,
    *,
    home: Path | None = None,
    user: str = "",
    host: str = "",
    secrets: Iterable[str] = (),
    texts: Iterable[str] = (),
) -> str:
    """The text without what is private: the home folder, which is shown as `~`, names, secret values, texts of the corpus.

    What was clean stays as it is.
    """
    # Longest first: a value may be the beginning of another.
    for form in sorted({form for secret in secrets for form in _list_forms(secret)}, key=len, reverse=True):
        text = text.replace(form, SECRET)
    for own in sorted(set(texts), key=len, reverse=True):
        text = text.replace(own, TEXT) if len(own) >= SHORTEST_TEXT else text
    for shape, shown in _SHAPES:
        text = shape.sub(shown, text)
    if home is not None and len(home.parts) > 1:
        text = re.sub(rf"{re.escape(str(home))}(?![\w.-])", "~", text)
    # A name may have a space in it, as those on Windows' disks do.
    word = r"[^/\s'\":,;)]+"
    text = re.sub(rf"(/(?:home|Users)/)(?!<)(?:{word}(?: {word}){{1,2}}(?=/)|{word})", rf"\g<1>{USER}", text)
    for name, placeholder in ((user, USER), (host, HOST)):
        if len(name) > 1 and name.lower() not in _TELLING_NOTHING:
            text = re.sub(rf"(?<![\w<]){re.escape(name)}(?![\w>])", placeholder, text)
    return text


def list_secrets(environ: Mapping[str, str]) -> tuple[str, ...]:
    """Values of variables whose names say that they are nobody's business."""
    return tuple(
        value for name, value in environ.items() if _SECRET_NAME.search(name) and len(value) >= SHORTEST_SECRET
    )


def select_variables(environ: Mapping[str, str], wanted: Iterable[str]) -> dict[str, str]:
    """Of the environment, the variables that were asked for and are no secret."""
    return {name: environ[name] for name in wanted if name in environ and not _SECRET_NAME.search(name)}


def _list_forms(secret: str) -> list[str]:
    """A secret as it may stand in a report: as it is, in JSON, in a web address, in a shell's quotes, line by line."""
    forms = {secret, json.dumps(secret)[1:-1], json.dumps(secret, ensure_ascii=False)[1:-1], quote(secret, safe="")}
    forms |= {shlex.quote(secret), *secret.splitlines()}
    return [form for form in forms if len(form) >= SHORTEST_SECRET]


def _hide_value(match: re.Match[str]) -> str:
    value = match["value"]
    # "text_tokens: 298000" is a number of the model, "tokenizers==0.20.1" a package. A password may be a number too.
    is_count = "token" in match["name"].lower() and value.lstrip("=").replace(".", "").isdigit()
    if is_count or value.startswith("<") or value.lower() in ("bearer", "basic"):
        return match[0]
    return f"{match['name']}{SECRET}"


def _hide_address(match: re.Match[str]) -> str:
    """Hidden, unless it is none, or one that every machine has."""
    try:
        address = ipaddress.ip_address(match[0])
    except ValueError:
        # Twelve digits in pairs are the address of a network card; else it is a time.
        return ADDRESS if re.fullmatch(r"(?:[0-9a-f]{2}:){5}[0-9a-f]{2}", match[0], re.I) else match[0]
    return match[0] if address.is_loopback or address.is_unspecified else ADDRESS


_SHAPES: tuple[tuple[re.Pattern[str], str | Callable[[re.Match[str]], str]], ...] = (
    *((re.compile(shape), SECRET) for shape in _SECRET_SHAPES),
    (re.compile(r"(?<![a-z0-9+.-])([a-z][a-z0-9+.-]*://)[^\s/@:]*(?::[^\s/@]*)?@", re.I), rf"\1{SECRET}@"),
    (re.compile(r"\b(Bearer|Basic)(\s+)[\w.~+/=-]{8,}", re.I), rf"\1\2{SECRET}"),
    *((re.compile(shape, re.I), _hide_value) for shape in _ASSIGNMENTS),
    (re.compile(r"(?<![\w.+-])[\w.+-]++@[\w-]+(?:\.[\w-]+)+"), MAIL),
    (re.compile(_WINDOWS_PATH), WINDOWS_PATH),
    # Addresses, and versions of four numbers, which stand behind `==` in a report.
    (re.compile(r"(?<![\w.=])(?:\d{1,3}\.){3}\d{1,3}(?![\w.]*\w)"), _hide_address),
    (re.compile(r"(?<![\w:.])(?=[0-9a-f]*+:)[0-9a-f:]++(?!\w)", re.I), _hide_address),
    (re.compile(r"\b(GPU|MIG)-[0-9a-f]{8}-[0-9a-f-]{4,}\b", re.I), r"\1-<id>"),
)
"""What looks private wherever it comes from, in the order in which it is replaced."""


def fence(text: str, language: str = "") -> str:
    """A block of code, fenced by more backticks than it has anywhere."""
    longest = max((len(marks) for marks in re.findall(r"`+", text)), default=0)
    marks = "`" * max(3, longest + 1)
    return f"{marks}{language}\n{text}\n{marks}"
