"""Named groups of values, as tables. A preset fills only what nobody gave: flags > YAML > presets > defaults."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

SIZE_SYNONYMS: Mapping[str, str] = {"normal": "base"}

MODEL_SIZES: Mapping[str, Mapping[str, int]] = {
    # `big` is XTTS v2 as published; the others keep its shape and its sequence limits, so that one vocabulary and
    # one set of bucket shapes serve all of them.
    "tiny": {"gpt_layers": 4, "gpt_width": 256, "gpt_heads": 4, "dvae_width": 128, "decoder_width": 128},
    "small": {"gpt_layers": 8, "gpt_width": 512, "gpt_heads": 8, "dvae_width": 256, "decoder_width": 256},
    "base": {"gpt_layers": 16, "gpt_width": 768, "gpt_heads": 12, "dvae_width": 512, "decoder_width": 512},
    "big": {"gpt_layers": 30, "gpt_width": 1024, "gpt_heads": 16, "dvae_width": 512, "decoder_width": 512},
}

START_BATCHES: Mapping[str, tuple[int, int, int]] = {
    # Clips per batch on a small, medium and large card: starting points, not measurements.
    "tiny": (16, 24, 32),
    "small": (12, 16, 24),
    "base": (8, 12, 16),
    "big": (2, 3, 4),
}

START_LEARNING_RATES: Mapping[str, float] = {"tiny": 1e-3, "small": 5e-4, "base": 2e-4, "big": 1e-4}

PROMPT_SECONDS: Mapping[str, float] = {
    # The reference's 6 s cost a small model more than its whole GPT does.
    "tiny": 2.0,
}

BASE_VOICE = "base"
"""The name, wherever the path of a model can stand, of the one that comes with the package."""
BASE_VOICE_VALUES: dict[str, float] = {
    "data.batch_size": START_BATCHES["tiny"][0],
    "data.prompt_seconds": PROMPT_SECONDS["tiny"],
    "training.learning_rate": 2e-4,
    "training.warmup_steps": 20,
}
"""With --init-from base."""

FINE_TUNING_BATCH = 3
FINE_TUNING_CLIPS_PER_UPDATE = 252
"""3 clips x 84 batches, as the reference recipe; another batch size keeps the product."""
FINE_TUNING_LEARNING_RATE = 5e-6
LORA_LEARNING_RATE = 3e-4
"""Three times the rate at which `big` learns from nothing: with `tiny` that was the best of those tried."""
FINE_TUNING_PROMPT_SECONDS = 6.0

DECODER_VALUES: Mapping[str, Any] = {
    # As HiFi-GAN's authors train it. A gradient is long, since the mel's part of the loss counts 45 times; only an accident
    # is longer than this.
    "training.learning_rate": 2e-4,
    "training.clip_norm": 1000.0,
    "data.prompt_from": "speaker",
}
"""With --stage decoder."""

_ENHANCED: Mapping[str, Any] = {
    "data.enable_xla": "auto",
    "data.mixed_precision": "float32",
    "data.enable_parallel_batch": True,
    "data.enable_map_fusion": True,
    "data.prefetch_to_gpu": True,
    "data.cache": "auto",
}
OPTIMIZATION_LEVELS: Mapping[str, Mapping[str, Any]] = {
    "basic": {
        **_ENHANCED,
        "data.enable_xla": False,
        "data.enable_parallel_batch": False,
        "data.enable_map_fusion": False,
        "data.prefetch_to_gpu": False,
        "data.cache": "off",
    },
    "enhanced": _ENHANCED,
    # Only this one changes the numbers of a run: half precision and fused kernels round differently.
    "experimental": {**_ENHANCED, "data.enable_xla": True, "data.mixed_precision": "mixed_float16"},
}


CARDS_BY_NAME: Mapping[str, tuple[int, int]] = {
    # MiB of a card that prepares, and of one that trains.
    "RTX 4090": (8192, 16384),
    "RTX 3090": (8192, 14336),
    "RTX 3080": (4096, 8192),
}

CARDS_BY_TOTAL_MIB: tuple[tuple[int, tuple[int, int]], ...] = (
    # (the card has at least so much memory, the same), largest first.
    (22 * 1024, (8192, 16384)),
    (14 * 1024, (6144, 12288)),
    (9 * 1024, (4096, 8192)),
)


def find_card_preset(name: str, total_mib: int) -> tuple[int, int] | None:
    """MiB for preparing and for training on a card, by its name, else by its size; None for a smaller one than any in the tables."""
    by_name = (shares for known, shares in CARDS_BY_NAME.items() if known in name)
    return next(by_name, next((shares for least, shares in CARDS_BY_TOTAL_MIB if total_mib >= least), None))


def normalise_size(size: Any) -> str:
    """The table's name for a model size; unknown ones come back as they are, for validation to refuse."""
    text = str(size).strip()
    return SIZE_SYNONYMS.get(text, text)


def name_size(numbers: Mapping[str, int]) -> str | None:
    """The size that has a model's numbers, as far as they are given, or None: a starting point or a codec may have changed any.

    The decoder's width is not looked at: a run that trains none takes whatever width a decoder has later.
    """
    for size, table in MODEL_SIZES.items():
        if all(numbers.get(name, number) == number for name, number in table.items() if name != "decoder_width"):
            return size
    return None


def preset_values(given: Mapping[str, Any]) -> dict[str, tuple[Any, str]]:
    """What the presets say, given the explicit values, which are not validated yet: dotted key -> (value, name of the preset)."""
    filled: dict[str, tuple[Any, str]] = {}
    size = normalise_size(given.get("model.size", "base"))
    if size in MODEL_SIZES:
        for name, value in MODEL_SIZES[size].items():
            filled[f"model.{name}"] = (value, f"preset model size {size}")
        filled["data.batch_size"] = (START_BATCHES[size][0], f"preset model size {size}")
        if size in PROMPT_SECONDS:
            filled["data.prompt_seconds"] = (PROMPT_SECONDS[size], f"preset model size {size}")
        filled["training.learning_rate"] = (START_LEARNING_RATES[size], f"preset model size {size}")
    level = str(given.get("training.optimization_level", "enhanced")).strip()
    for key, value in OPTIMIZATION_LEVELS.get(level, {}).items():
        filled[key] = (value, f"preset optimisation level {level}")
    if any(key.startswith("data.augment_") for key in given):
        # What is done to a clip is done to its prompt, so that none can be kept.
        filled["data.prompt_from"] = ("speaker", "preset augmentation")
    if given.get("training.stage") == "decoder":
        filled |= {key: (value, "preset stage decoder") for key, value in DECODER_VALUES.items()}
    elif given.get("training.init_from") == BASE_VOICE:
        rate = {"training.learning_rate": LORA_LEARNING_RATE} if _has_adapters(given) else {}
        filled |= {key: (value, "preset base voice") for key, value in (BASE_VOICE_VALUES | rate).items()}
    elif given.get("training.init_from") is not None:
        filled |= _fine_tuning_values(given)
    return {key: entry for key, entry in filled.items() if key not in given}


def _fine_tuning_values(given: Mapping[str, Any]) -> dict[str, tuple[Any, str]]:
    batch = _read_count(given.get("data.batch_size", FINE_TUNING_BATCH))
    values: dict[str, Any] = {
        "data.batch_size": FINE_TUNING_BATCH,
        "data.prompt_seconds": FINE_TUNING_PROMPT_SECONDS,
        # As the published model was trained. One that starts from nothing would not learn to read.
        "data.prompt_from": "clip",
        "training.learning_rate": LORA_LEARNING_RATE if _has_adapters(given) else FINE_TUNING_LEARNING_RATE,
        "training.lr_schedule": "constant",
        "training.warmup_steps": 0,
        "training.clip_norm": 0.0,
    }
    if batch is not None:
        values["training.gradient_accumulation_steps"] = -(-FINE_TUNING_CLIPS_PER_UPDATE // batch)
    return {key: (value, "preset fine-tuning") for key, value in values.items()}


def _has_adapters(given: Mapping[str, Any]) -> bool:
    return _read_count(given.get("training.lora_rank")) is not None


def _read_count(value: Any) -> int | None:
    """A positive whole number as validation would read it; None for anything else, which validation refuses."""
    try:
        number = float(value)
    except (TypeError, ValueError):
        return None
    return int(number) if number.is_integer() and 0 < number < 1e9 else None
