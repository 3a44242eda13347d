"""Writes the files in tests/checkpoints/assets with torch itself. Run by hand, where torch is installed; tests only read the files.

python tools/make_torch_assets.py        (written with torch 2.13.0, NumPy 2.4)
"""

import collections
import dataclasses
import sys
import types
from pathlib import Path

import numpy as np
import torch

ASSETS = Path(__file__).parents[1] / "tests" / "checkpoints" / "assets"


def save_values():
    base = torch.arange(24, dtype=torch.float32).reshape(4, 6)
    names = ["float64", "float32", "float16", "bfloat16"]
    names += [f"{kind}{bits}" for kind in ("int", "uint") for bits in (64, 32, 16, 8)]
    layer = torch.nn.BatchNorm1d(3)
    torch.save(
        {
            "dtypes": {
                name: torch.arange(-3 if "uint" not in name else 0, 9).to(getattr(torch, name)) for name in names
            },
            "bool": torch.tensor([True, False, True]),
            "whole": base,
            "transposed": base.T,
            "row": base[2],
            "column": base[:, 1],
            "block": base[1:3, 2:5],
            "every_second": base[::2, ::3],
            "parameter": torch.nn.Parameter(base.clone()),
            "scalar": torch.tensor(2.5),
            "empty": torch.zeros(0, 3),
            "state": layer.state_dict(),
            "size": torch.Size([2, 3]),
            "set": {1, 2},
            "frozen": frozenset(["a"]),
            "bytes": b"\x00\xff",
            "bytearray": bytearray(b"xyz"),
            "numbers": [0, 255, 256, 65536, -1, 2**31, -(2**40), 2**63, 2**64 - 1, 0.1, float("inf")],
            "plain": (None, True, False, "سلام", "", (), [], {}),
            "counter": collections.Counter([1, 1, 2]),
            "default": collections.defaultdict(list, {"k": [1]}),
            "ordered": collections.OrderedDict([("b", 1), ("a", 2)]),
            "numpy": [np.float64(1.5), np.float32(0.25), np.int64(-7), np.bool_(True)],
        },
        ASSETS / "values.pth",
    )


def save_old_and_unchecked():
    torch.save({"a": torch.ones(2)}, ASSETS / "legacy.pth", _use_new_zipfile_serialization=False)
    torch.serialization.set_crc32_options(False)
    torch.save({"a": torch.arange(5)}, ASSETS / "no_checksums.pth")
    torch.serialization.set_crc32_options(True)


def define_class(module, name, **fields):
    """A dataclass under the name that Coqui's has: pickles then name it just as Coqui's do."""
    cls = dataclasses.make_dataclass(name, [(key, object, dataclasses.field(default=None)) for key in fields])
    cls.__module__ = module
    for end in [i for i, letter in enumerate(module + ".") if letter == "."]:
        sys.modules.setdefault(module[:end], types.ModuleType(module[:end]))
    setattr(sys.modules[module], name, cls)
    return cls(**fields)


def save_coqui():
    arguments = define_class(
        "TTS.tts.models.xtts", "XttsArgs", gpt_layers=1, gpt_n_model_channels=8, gpt_n_heads=2, gpt_max_prompt_tokens=70
    )
    audio = define_class("TTS.tts.models.xtts", "XttsAudioConfig", sample_rate=22050, output_sample_rate=24000)
    dataset = define_class(
        "TTS.config.shared_configs", "BaseDatasetConfig", formatter="", path="", ignored_speakers=None
    )
    config = define_class(
        "TTS.tts.configs.xtts_config",
        "XttsConfig",
        model="xtts",
        model_args=arguments,
        audio=audio,
        datasets=[dataset],
        languages=["en", "es"],
        temperature=0.75,
    )
    model = collections.OrderedDict()
    model["gpt.text_embedding.weight"] = torch.arange(40.0).reshape(5, 8)
    model["gpt.gpt.h.0.ln_1.weight"] = torch.ones(8)
    model["hifigan_decoder.speaker_encoder.bn1.num_batches_tracked"] = torch.tensor(3)
    torch.save({"config": config, "model": model}, ASSETS / "coqui_classes.pth")


if __name__ == "__main__":
    ASSETS.mkdir(exist_ok=True)
    save_values()
    save_old_and_unchecked()
    save_coqui()
