"""The environment variables that decide what CUDA shows to TensorFlow. Read and set before TensorFlow loads."""

from __future__ import annotations

import os
from collections.abc import Mapping, MutableMapping, Sequence

from myxtts.devices.nvml import Card
from myxtts.errors import DevicePlanError

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
