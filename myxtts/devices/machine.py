"""What this machine has: the facts a device plan is made from, and how its cards are connected."""

from __future__ import annotations

import contextlib
import importlib.metadata
import importlib.util
import itertools
import os
import runpy
from collections.abc import Mapping, MutableMapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import NamedTuple

import psutil

from myxtts.devices.nvml import MIB, Card, CardScan, Nvml, PhysicalId, scan_cards
from myxtts.errors import DevicePlanError


def read_free_memory_bytes(
    proc: Path = Path("/proc/self/cgroup"), control_groups: Path = Path("/sys/fs/cgroup")
) -> int:
    """Memory this process could still take: what the host has, or less where a container or a job is limited."""
    free = int(psutil.virtual_memory().available)
    lines = proc.read_text().splitlines() if proc.exists() else []
    # "0::/path" is the unified hierarchy; the numbered lines are those of version 1.
    names = [line.removeprefix("0::/") for line in lines if line.startswith("0::/")]
    # Each control group above that of this process may have a limit, too.
    for group in [folder for name in names for folder in (control_groups / name, *(control_groups / name).parents)]:
        # Without a limit there is no such file, or it says "max".
        with contextlib.suppress(OSError, ValueError):
            room = int((group / "memory.max").read_text()) - int((group / "memory.current").read_text())
            facts = dict(line.split() for line in (group / "memory.stat").read_text().splitlines())
            # Cached file pages count as used, but the kernel gives them back when memory is asked for.
            free = min(free, room + int(facts.get("inactive_file", 0)))
    return max(0, free)


class BuiltFor(NamedTuple):
    """The cards that the installed TensorFlow was built for, by their capability; others in between are served too."""

    oldest: tuple[int, int]
    newest: tuple[int, int]
    version: str

    def can_compile_for(self, card: Card) -> bool:
        """Whether XLA can: for a newer card the process dies in the attempt. A capability that is not known may pass."""
        return card.capability is None or self.oldest <= card.capability <= self.newest

    def explain(self, card: Card) -> Unserved | None:
        """What does not work on a card, and what to do; None where everything works."""
        if self.can_compile_for(card) or card.capability is None:
            return None
        named = f"GPU {card.physical_id} ({card.name}) has compute capability {_show(card.capability)}"
        built = f"TensorFlow {self.version} was built for {_show(self.oldest)} to {_show(self.newest)}"
        if card.capability < self.oldest:
            return Unserved(
                f"{named}, but {built}: nothing runs on it.", "Use another card, or an older TensorFlow.", False
            )
        if tuple(int(part) for part in self.version.split(".")[:2]) < WORKS_ON_NEWER:
            remedy = f"Install TensorFlow {_show(WORKS_ON_NEWER)}, or a build for this card."
            return Unserved(f"{named}, but {built}: its first operation fails.", remedy, False)
        return Unserved(
            f"{named}, but {built}. Without XLA it was seen to work: the driver compiles each kernel once, which can take minutes at the "
            "first start. XLA cannot compile for it and stays off.",
            "A build of TensorFlow for this card has both.",
            True,
        )


class Unserved(NamedTuple):
    """A card that the installed TensorFlow was not built for."""

    reason: str
    remedy: str
    can_run: bool
    """Whether it works without XLA."""

    def __str__(self) -> str:
        return f"{self.reason} {self.remedy}"


WORKS_ON_NEWER = (2, 21)
"""The first TensorFlow whose kernels a driver could compile for cards newer than itself (RTX 50xx)."""


def explain_unserved(machine: Machine, cards: Sequence[Card] | None = None) -> list[Unserved]:
    """What does not work on cards that TensorFlow was not built for; by default on all of the machine."""
    reasons = [machine.built.explain(card) for card in cards or machine.cards] if machine.built else []
    return [reason for reason in reasons if reason]


def _show(numbers: tuple[int, int]) -> str:
    return f"{numbers[0]}.{numbers[1]}"


def read_built_for() -> BuiltFor | None:
    """What the installed TensorFlow says of its build, without importing it; None where it has no CUDA or does not say."""
    package = importlib.util.find_spec("tensorflow")
    if package is None or package.origin is None:
        return None
    try:
        facts = runpy.run_path(str(Path(package.origin).parent / "python" / "platform" / "build_info.py"))["build_info"]
    except (OSError, KeyError):
        return None
    # "sm_89" has code for that card, "compute_90" what a driver can compile for it and for newer ones.
    numbers = sorted(int(word.rpartition("_")[2]) for word in facts.get("cuda_compute_capabilities", ()))
    if not numbers:
        return None
    return BuiltFor(divmod(numbers[0], 10), divmod(numbers[-1], 10), importlib.metadata.version("tensorflow"))


@dataclass(frozen=True)
class Machine:
    """Cards, host memory and environment at one moment."""

    scan: CardScan
    host_free_mib: int
    """What this process may still take, within the limits of its container."""
    environ: Mapping[str, str] = field(default_factory=dict)
    built: BuiltFor | None = None
    """None where it is not known."""

    @property
    def cards(self) -> tuple[Card, ...]:
        return self.scan.cards


def read_machine(environ: Mapping[str, str] | None = None) -> Machine:
    """This machine now. Asks the driver, never TensorFlow, and allocates nothing."""
    return Machine(
        scan=scan_cards(),
        host_free_mib=read_free_memory_bytes() // MIB,
        environ=dict(os.environ if environ is None else environ),
        built=read_built_for(),
    )


DEVICE_ORDER = "CUDA_DEVICE_ORDER"
VISIBLE_DEVICES = "CUDA_VISIBLE_DEVICES"
ALLOCATOR = "TF_GPU_ALLOCATOR"
ONEDNN = "TF_ENABLE_ONEDNN_OPTS"
LOG_LEVEL = "TF_CPP_MIN_LOG_LEVEL"
VARIABLES = (
    "CUDA_VISIBLE_DEVICES", "CUDA_DEVICE_ORDER", "CUDA_LAUNCH_BLOCKING", "TF_GPU_ALLOCATOR", "TF_FORCE_GPU_ALLOW_GROWTH",
    "TF_GPU_THREAD_MODE", "TF_ENABLE_ONEDNN_OPTS", "TF_NUM_INTRAOP_THREADS", "TF_NUM_INTEROP_THREADS", "TF_XLA_FLAGS", "XLA_FLAGS",
    "TF_DETERMINISTIC_OPS", "TF_CUDNN_DETERMINISTIC", "OMP_NUM_THREADS", "MYXTTS_REHEARSAL",
)  # fmt: skip
"""Of the environment, what changes how TensorFlow works."""
_DRIVER_MARKS = ("/proc/driver/nvidia/version", "/dev/dxg")
"""Where the NVIDIA driver shows itself on Linux and in WSL."""


def prepare_environment(environ: MutableMapping[str, str]) -> None:
    """Makes CUDA count cards as `nvidia-smi` does, Keras use TensorFlow, and TensorFlow the faster kernels of a CPU. Call
    before TensorFlow is imported."""
    # CUDA's own order is by speed, so without this `--data-gpu 0` could be nvidia-smi's GPU 1.
    environ[DEVICE_ORDER] = "PCI_BUS_ID"
    environ["KERAS_BACKEND"] = "tensorflow"
    # Without a driver TensorFlow complains at every start that it finds none, as an error; the plan says it once, in words.
    environ.setdefault(LOG_LEVEL, "1" if any(map(os.path.exists, _DRIVER_MARKS)) else "3")
    # TensorFlow leaves oneDNN's kernels out on processors without AVX-512 VNNI; its own took 1.3 to 1.5 times as long there.
    environ.setdefault(ONEDNN, "1")


XLA_OPTIONS = "TF_XLA_FLAGS"
XLA_FOLDER_BYTES = 4 << 30


def reuse_compiled(environ: MutableMapping[str, str], card: Card) -> Path:
    """Lets XLA keep what it compiles for a card, so that a run that goes on need not wait for it again. Call before TensorFlow is
    imported. Returns the folder, whose oldest files are removed where it has grown too large.

    It is the user's own and not the run's: what lies there is code that will be run, and run folders are handed on.
    """
    name = (
        f"{importlib.metadata.version('tensorflow')}-{'unknown' if card.capability is None else _show(card.capability)}"
    )
    folder = Path(environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "myxtts" / "xla" / name
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    kept = sorted(folder.iterdir(), key=lambda file: file.stat().st_mtime, reverse=True)
    sizes = itertools.accumulate(file.stat().st_size for file in kept)
    for file, size in zip(kept, sizes, strict=True):
        if size > XLA_FOLDER_BYTES:
            file.unlink(missing_ok=True)
    options = f"--tf_xla_persistent_cache_directory={folder} --tf_xla_persistent_cache_device_types=GPU"
    environ[XLA_OPTIONS] = f"{environ.get(XLA_OPTIONS, '')} {options}".strip()
    return folder


def select_visible(cards: Sequence[Card], environ: Mapping[str, str]) -> tuple[Card, ...]:
    """The cards a process with this environment sees, in the order in which TensorFlow will list them.

    Follows CUDA's reading of CUDA_VISIBLE_DEVICES: unset shows all, entries are numbers or (beginnings of) UUIDs, the
    first entry that names no card hides itself and all that follow, and a card named twice hides everything.
    """
    text = environ.get(VISIBLE_DEVICES)
    if text is None:
        return tuple(cards)
    visible: list[Card] = []
    for entry in (part.strip() for part in text.split(",")):
        if entry.startswith("MIG-"):
            raise DevicePlanError(
                f"{VISIBLE_DEVICES}={text} names a slice of a card (MIG), but MyXTTS plans with whole cards. "
                f"Set {VISIBLE_DEVICES} to ids from `nvidia-smi -L`."
            )
        card = _find_card(cards, entry)
        if card is None:
            break
        if card in visible:
            return ()
        visible.append(card)
    return tuple(visible)


def _find_card(cards: Sequence[Card], entry: str) -> Card | None:
    if entry.isascii() and entry.isdecimal():
        return next((card for card in cards if str(card.physical_id) == (entry.lstrip("0") or "0")), None)
    matches = [card for card in cards if entry.startswith("GPU-") and card.uuid.startswith(entry)]
    return matches[0] if len(matches) == 1 else None


class CardConnection(StrEnum):
    """The path between two cards, in the words of `nvidia-smi topo -m`."""

    NVLINK = "NVLink"
    SAME_BOARD = "PSB"
    PIX = "PIX"
    PXB = "PXB"
    PHB = "PHB"
    NODE = "NODE"
    SYS = "SYS"
    UNKNOWN = "unknown"


_LEVELS = dict(zip(range(0, 60, 10), list(CardConnection)[1:], strict=False))
"""NVML's numbers for the nearest part of the PCIe tree that two cards share, in the order above."""
_MEANINGS = {
    CardConnection.NVLINK: "batches cross at full speed",
    CardConnection.SAME_BOARD: "two chips on one board: batches cross at full speed",
    CardConnection.PIX: "behind one PCIe switch: batches cross at PCIe speed without passing the processor",
    CardConnection.PXB: "behind several PCIe switches: nearly as good as one switch",
    CardConnection.PHB: "on one PCIe root: batches cross through the processor's bridge; good enough for prepared batches",
    CardConnection.NODE: "on different PCIe roots of one NUMA node: slow; expect more from one card, or from caching the codes",
    CardConnection.SYS: "on different NUMA nodes: slow; expect more from one card, or from caching the codes",
    CardConnection.UNKNOWN: "the driver does not say how they are connected",
}


@dataclass(frozen=True)
class CardLink:
    """How two cards of the machine are connected."""

    first: PhysicalId
    second: PhysicalId
    connection: CardConnection

    @property
    def is_slow(self) -> bool:
        """Whether moving batches between these cards is likely to cost more than it saves."""
        return self.connection in (CardConnection.NODE, CardConnection.SYS)

    def explain(self) -> str:
        return f"GPU {self.first} - GPU {self.second}: {self.connection}, {_MEANINGS[self.connection]}"


def read_links(ids: Sequence[PhysicalId]) -> list[CardLink]:
    """The connections among cards, pair by pair; none where there are fewer than two."""
    if len(ids) < 2:
        return []
    links = []
    with Nvml() as nvml:
        for first, second in itertools.combinations(ids, 2):
            level = nvml.read_common_ancestor(first, second)
            known = CardConnection.UNKNOWN if level is None else _LEVELS.get(level, CardConnection.UNKNOWN)
            connection = CardConnection.NVLINK if nvml.is_linked(first, second) else known
            links.append(CardLink(first, second, connection))
    return links
