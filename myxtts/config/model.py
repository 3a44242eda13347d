"""Settings of the network."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import model_validator

from myxtts.config import presets
from myxtts.config.settings import Section, setting, switch
from myxtts.errors import ConfigError

ModelSize = Literal["tiny", "small", "base", "big"]
SHAPE_NAMES = (
    "gpt_layers", "gpt_width", "gpt_heads", "dvae_width", "decoder_width", "audio_codes",
    "max_text_tokens", "max_audio_tokens", "max_prompt_tokens",
)  # fmt: skip
"""What a model that is started from decides, besides its vocabulary."""


class ModelConfig(Section):
    """The network. Its numbers come from the size unless given one by one."""

    size: ModelSize = setting(
        "base", "size of the network; normal is base, and big the published XTTS v2", "--model-size"
    )
    gpt_layers: int = setting(16, "GPT blocks", within=(1, 256))
    gpt_width: int = setting(768, "channels of the GPT, the conditioning encoder and the latents", within=(8, 16384))
    gpt_heads: int = setting(12, "attention heads of the GPT and the conditioning encoder", within=(1, 256))
    dvae_width: int = setting(512, "hidden channels of the DVAE, and the size of one code's vector", within=(8, 16384))
    decoder_width: int = setting(512, "channels at the input of the HiFi-GAN decoder", within=(16, 16384))
    # The cache keeps a code in two bytes, with a sign.
    audio_codes: int = setting(1024, "number of different audio codes", within=(2, 32767))
    text_tokens: int = setting(6681, "entries of the text vocabulary", within=(4, 1_000_000))
    max_text_tokens: int = setting(402, "longest text, in tokens", within=(8, 16384))
    max_audio_tokens: int = setting(605, "longest audio, in codes of 46 ms", within=(8, 16384))
    max_prompt_tokens: int = setting(70, "longest conditioning prompt, in tokens", within=(1, 16384))
    dropout: float = setting(0.1, "share of activations dropped in training", ge=0.0, lt=1.0)
    enable_gradient_checkpointing: bool = switch(
        False,
        "compute activations again in the backward pass: less memory, more time",
        "--gradient-checkpointing",
        "--no-gradient-checkpointing",
    )

    @model_validator(mode="wrap")
    @classmethod
    def _fill_from_size(cls, values: Any, handler: Any) -> Any:
        if not isinstance(values, dict) or not isinstance(values.get("size", "base"), str):
            return handler(values)
        size = presets.normalise_size(values.get("size", "base"))
        filled = {name: value for name, value in presets.MODEL_SIZES.get(size, {}).items() if name not in values}
        config = handler({**filled, **values, **({"size": size} if "size" in values else {})})
        # Filled in is not given: another size may fill them anew.
        config.model_fields_set.difference_update(filled)
        return config

    @model_validator(mode="after")
    def _check_widths(self) -> ModelConfig:
        if self.gpt_width % self.gpt_heads:
            text = f"must divide gpt_width ({self.gpt_width}), but is {self.gpt_heads}. "
            raise ConfigError(("gpt_heads", f"{text}Heads of 64 channels are usual: give gpt_width / 64."))
        if self.decoder_width % 16:
            text = f"must be a multiple of 16, since it is halved four times, but is {self.decoder_width}. "
            raise ConfigError(("decoder_width", f"{text}Give {max(16, self.decoder_width // 16 * 16)}."))
        return self
