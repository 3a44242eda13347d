"""Configuration -> built parts. The caller opens the device scope and loads or trains what it gets."""

from __future__ import annotations

from typing import Any, TypeVar

from myxtts.config import ModelConfig
from myxtts.models.discriminators import Rivals, choose_rival_size
from myxtts.models.dvae import DVAE
from myxtts.models.gpt import GPT
from myxtts.models.initialise import initialise_weights
from myxtts.models.names import Named
from myxtts.models.sizes import read_sizes
from myxtts.models.waveform import WaveformDecoder

NamedPart = TypeVar("NamedPart", bound=Named)


def build_gpt(
    config: ModelConfig,
    *,
    seed: int | None,
    dtype: Any = "float32",
    start_text_token: int = 261,
    stop_text_token: int = 0,
) -> GPT:
    """The GPT of a configuration.

    Args:
        seed: of its fresh weights; None leaves them zero, for a checkpoint to fill.
        dtype: dtype or policy to compute in, such as `mixed_float16`.
        start_text_token, stop_text_token: ids of `[START]` and `[STOP]` in the vocabulary.
    """
    sizes = read_sizes(config, start_text_token=start_text_token, stop_text_token=stop_text_token)
    gpt = GPT(sizes.gpt, dropout=config.dropout, checkpointing=config.enable_gradient_checkpointing, dtype=dtype)
    return _initialise(gpt, seed)


def build_dvae(config: ModelConfig, *, seed: int | None, dtype: Any = "float32") -> DVAE:
    """The DVAE of a configuration; arguments as for `build_gpt`."""
    return _initialise(DVAE(read_sizes(config).dvae, dtype=dtype), seed)


def build_decoder(config: ModelConfig, *, seed: int | None, dtype: Any = "float32") -> WaveformDecoder:
    """The waveform decoder of a configuration; arguments as for `build_gpt`."""
    return _initialise(WaveformDecoder(read_sizes(config).decoder, dtype=dtype), seed)


def build_rivals(config: ModelConfig, *, seed: int | None, dtype: Any = "float32") -> Rivals:
    """The discriminators that train the waveform decoder of a configuration; arguments as for `build_gpt`."""
    return _initialise(Rivals(choose_rival_size(read_sizes(config).decoder), dtype=dtype), seed)


def _initialise(part: NamedPart, seed: int | None) -> NamedPart:
    if seed is not None:
        initialise_weights(part, seed)
    return part
