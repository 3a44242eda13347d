"""Lets Coqui's model code be imported where torch is, but not all that the package asks for at import.

coqui-tts refuses to load without torchaudio and torchcodec, whose wheels need CUDA. The network itself uses neither: the
stand-ins here only make the names importable. Reading audio and computing mels with them is not possible.
"""

from __future__ import annotations

import importlib.machinery
import importlib.util
import sys
import types
from typing import Any

import torch

# Before the stand-ins: where it finds torchcodec, transformers asks for the version of the installed package.
from transformers import GenerationMixin, GPT2Model  # noqa: F401


class MelSpectrogram(torch.nn.Module):
    """The buffers of torchaudio's transform, which a checkpoint fills, and nothing else of it."""

    def __init__(self, n_fft: int = 400, win_length: int | None = None, n_mels: int = 128, **_: Any):
        super().__init__()
        self.spectrogram = torch.nn.Module()
        self.spectrogram.register_buffer("window", torch.zeros(win_length or n_fft))
        self.mel_scale = torch.nn.Module()
        self.mel_scale.register_buffer("fb", torch.zeros(n_fft // 2 + 1, n_mels))


def install_stubs() -> list[str]:
    """Stands in for what is not installed; the names of that."""
    wanted = {"torchaudio": {}, "torchcodec": {}, "six": {"string_types": (str,)}}
    missing = [name for name in wanted if importlib.util.find_spec(name) is None]
    for name in missing:
        _install(name, **wanted[name])
    if "torchaudio" in missing:
        sys.modules["torchaudio"].transforms = _install("torchaudio.transforms", MelSpectrogram=MelSpectrogram)
        sys.modules["torchaudio"].functional = _install("torchaudio.functional")
    return missing


def _install(name: str, **content: Any) -> types.ModuleType:
    module = types.ModuleType(name)
    module.__spec__ = importlib.machinery.ModuleSpec(name, None, is_package=True)
    module.__path__ = []
    module.__version__ = "0"
    module.__dict__.update(content)
    sys.modules[name] = module
    return module
