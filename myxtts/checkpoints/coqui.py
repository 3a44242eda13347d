"""What is in a file of Coqui's XTTS: its tensors by canonical names, its configuration, and what was left out.

Canonical names are those of the published `model.pth`: without the trainer's `xtts.` prefix, and with weight norm as
`parametrizations.weight.original0` and `original1`. The DVAE's are those of `dvae.pth`.
"""

from __future__ import annotations

import enum
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from myxtts.checkpoints.errors import ModelFileError
from myxtts.checkpoints.safetensors_file import open_safetensors
from myxtts.checkpoints.tensor import LazyTensor, Tensor
from myxtts.checkpoints.torch_file import read_torch_file
from myxtts.files import parse_json
from myxtts.models.names import FLOAT_DTYPES


class CoquiKind(enum.Enum):
    """Which of Coqui's files it is."""

    MODEL = "model"
    """`model.pth`: GPT, HiFi-GAN decoder, speaker encoder."""
    TRAINER_CHECKPOINT = "trainer checkpoint"
    """`best_model.pth`, `checkpoint_1000.pth`: the model and the DVAE as the trainer sees them."""
    DVAE = "DVAE"
    """`dvae.pth`."""
    MEL_STATISTICS = "mel statistics"
    """`mel_stats.pth`: one value for each mel channel."""
    SPEAKERS = "speakers"
    """`speakers_xtts.pth`: voices by name."""


@dataclass(frozen=True)
class CoquiFile:
    """The content of one file. Which parts there are depends on its kind; the others are empty."""

    path: Path
    kind: CoquiKind
    arrays: Mapping[str, LazyTensor] = field(default_factory=dict)
    """Of the model: `gpt.*`, `hifigan_decoder.*`, `mel_stats`."""
    dvae_arrays: Mapping[str, LazyTensor] = field(default_factory=dict)
    speakers: Mapping[str, Mapping[str, LazyTensor]] = field(default_factory=dict)
    """Name -> `gpt_cond_latent` (1, 32, C) and `speaker_embedding` (1, 512, 1)."""
    config: Mapping[str, Any] = field(default_factory=dict)
    """Coqui's configuration, as the file has it."""
    ignored: Mapping[str, str] = field(default_factory=dict)
    """Name of every entry that was left out -> why."""

    @property
    def model_args(self) -> Mapping[str, Any]:
        """Coqui's `XttsArgs`: layers, widths and the like; empty when the file does not say."""
        arguments = self.config.get("model_args")
        return arguments if isinstance(arguments, Mapping) else {}


_IGNORED_TENSORS: tuple[tuple[re.Pattern[str], str], ...] = (
    (re.compile(r"gpt\.gpt\.wte\.weight"), "an alias that inference adds"),
    (re.compile(r"gpt\.gpt_inference\..*"), "an alias that inference adds"),
    (re.compile(r"gpt\.gpt\.h\.\d+\.attn\.(masked_)?bias"), "a causal mask that old transformers saved"),
    (re.compile(r"torch_mel_spectrogram_\w+\..*"), "a constant of the trainer's mel front end"),
    (re.compile(r"hifigan_decoder\.speaker_encoder\.torch_spec\..*"), "a constant of the speaker encoder's front end"),
    (re.compile(r".*\.num_batches_tracked"), "a counter of batch normalisation"),
    (re.compile(r"discrete_loss\..*"), "a statistic that the DVAE never uses"),
)

_TRAINER_PREFIX = "xtts."
_DVAE_PREFIX = "dvae."
_DVAE_MARKS = ("codebook.embed", "encoder.0.0.weight")
_MODEL_PREFIXES = ("gpt.", "hifigan_decoder.")
_SPEAKER_PARTS = {"gpt_cond_latent", "speaker_embedding"}

MOST_SHARING = 2
"""How many times the bytes of a file its tensors may take. Those that XTTS uses share none."""
MOST_VOICE_NUMBERS = 1 << 20
"""Of each tensor of a voice: twice the prompt of the widest GPT there can be."""

_WEIGHT_NORM_NAMES = (
    (".weight_g", ".parametrizations.weight.original0"),
    (".weight_v", ".parametrizations.weight.original1"),
)


def read_coqui_file(path: str | os.PathLike[str]) -> CoquiFile:
    """The content of a `.pth` file, or of a safetensors file with the same names. Executes nothing from it."""
    path = Path(path)
    content = open_safetensors(path) if path.suffix == ".safetensors" else read_torch_file(path)
    file = sort_content(content, path)
    _require_own_bytes(file)
    return file


def _require_own_bytes(file: CoquiFile) -> None:
    """Raises for tensors that share their bytes so widely that the file would become many times its size."""
    groups = (file.arrays, file.dvae_arrays, *file.speakers.values())
    total = sum(tensor.nbytes for group in groups for tensor in group.values())
    size = file.path.stat().st_size
    if total > MOST_SHARING * size:
        raise ModelFileError(
            file.path,
            f"has {size} bytes, but its tensors show them so often that they would take {total}. It is damaged, or made to "
            "exhaust the disk.",
        )


def sort_content(content: Any, path: Path) -> CoquiFile:
    """What a file's content is, and its parts. Reads no tensor.

    Args:
        content: as `read_torch_file` gives it.
        path: for messages.
    """
    if isinstance(content, LazyTensor):
        if len(content.shape) != 1:
            raise ModelFileError(path, f"is a single tensor of shape {content.shape}; mel_stats.pth has one dimension.")
        return CoquiFile(path, CoquiKind.MEL_STATISTICS, arrays={"mel_stats": content})
    if not isinstance(content, Mapping) or not content:
        raise ModelFileError(path, f"holds a {type(content).__name__} where named tensors should be. {_EXPECTED}")
    if all(isinstance(voice, Mapping) and voice.keys() >= _SPEAKER_PARTS for voice in content.values()):
        return CoquiFile(path, CoquiKind.SPEAKERS, speakers=_sort_speakers(content, path))
    state = content.get("model", content)
    if not isinstance(state, Mapping):
        raise ModelFileError(path, f"its entry `model` is a {type(state).__name__}, not named tensors. {_EXPECTED}")
    leftovers = {} if state is content else {str(name): "not part of the model" for name in content if name != "model"}
    config = {} if state is content else _read_config(content.get("config"))
    leftovers.pop("config", None)
    return _sort_state(state, path, config, leftovers)


_EXPECTED = "Give model.pth, a trainer checkpoint, dvae.pth, mel_stats.pth or speakers_xtts.pth."


def _sort_state(
    state: Mapping[Any, Any], path: Path, config: Mapping[str, Any], leftovers: Mapping[str, str]
) -> CoquiFile:
    names = [name for name in state if isinstance(name, str)]
    if any(name.startswith(_TRAINER_PREFIX) for name in names):
        kind = CoquiKind.TRAINER_CHECKPOINT
    elif any(name.startswith(_MODEL_PREFIXES) for name in names):
        kind = CoquiKind.MODEL
    elif any(mark in names for mark in _DVAE_MARKS):
        kind = CoquiKind.DVAE
    else:
        raise ModelFileError(
            path, f"is not of XTTS: its first entries are {[name[:80] for name in names[:3]]}. {_EXPECTED}"
        )
    arrays: dict[str, LazyTensor] = {}
    dvae_arrays: dict[str, LazyTensor] = {}
    ignored = dict(leftovers)
    for name, tensor in state.items():
        if not isinstance(name, str) or not isinstance(tensor, LazyTensor):
            ignored[str(name)] = "not a tensor"
            continue
        belongs_to_dvae = kind is CoquiKind.DVAE or name.startswith(_DVAE_PREFIX)
        short = name.removeprefix(_DVAE_PREFIX) if belongs_to_dvae else name.removeprefix(_TRAINER_PREFIX)
        short = name_canonically(short)
        reason = find_reason_to_ignore(short)
        if reason is not None:
            ignored[name] = reason
            continue
        target = dvae_arrays if belongs_to_dvae else arrays
        if short in target:
            raise ModelFileError(path, f"holds the tensor {short:.200} twice, under two names. Get the file again.")
        target[short] = tensor
    return CoquiFile(path, kind, arrays=arrays, dvae_arrays=dvae_arrays, config=config, ignored=ignored)


def name_canonically(name: str) -> str:
    """A tensor's name with weight norm written in torch's newer way."""
    for old, new in _WEIGHT_NORM_NAMES:
        if name.endswith(old):
            return name.removesuffix(old) + new
    return name


def find_reason_to_ignore(name: str) -> str | None:
    """Why a tensor of this canonical name is of no use here; None when it is."""
    return next((reason for pattern, reason in _IGNORED_TENSORS if pattern.fullmatch(name)), None)


def _sort_speakers(content: Mapping[Any, Any], path: Path) -> dict[str, dict[str, LazyTensor]]:
    speakers: dict[str, dict[str, LazyTensor]] = {}
    for name, voice in content.items():
        parts = {part: voice[part] for part in sorted(_SPEAKER_PARTS)}
        if not isinstance(name, str):
            raise ModelFileError(
                path, f"it has a voice whose name is {name!r:.80}, which is not text. Get the file again."
            )
        if not all(isinstance(tensor, LazyTensor) for tensor in parts.values()):
            raise ModelFileError(path, f"its voice {name!r:.80} is not made of tensors. Get the file again.")
        problem = find_voice_problem(parts["gpt_cond_latent"], parts["speaker_embedding"])
        if problem:
            raise ModelFileError(path, f"its voice {name!r:.80} is none: {problem}. Get the file again.")
        speakers[name] = parts
    return speakers


def find_voice_problem(prompt: Tensor, speaker: Tensor) -> str | None:
    """What keeps two tensors from being the prompt and the embedding of a voice, seen without reading them."""
    if {prompt.dtype, speaker.dtype} - FLOAT_DTYPES:
        return f"its numbers must be floating-point, but are {prompt.dtype} and {speaker.dtype}"
    if len(prompt.shape) not in (2, 3) or prompt.shape[:-2] not in ((), (1,)) or not prompt.size:
        return f"gpt_cond_latent must be the vectors of one prompt, but has the shape {prompt.shape}"
    if max(prompt.size, speaker.size) > MOST_VOICE_NUMBERS:
        return (
            f"it must have at most {MOST_VOICE_NUMBERS} numbers, but has the shapes {prompt.shape} and {speaker.shape}"
        )
    return None


def _read_config(config: Any) -> Mapping[str, Any]:
    if isinstance(config, str):
        # Old trainers saved it as JSON.
        try:
            config = parse_json(config, allow_infinite=True)
        except ValueError:
            return {}
    return config if isinstance(config, Mapping) else {}
