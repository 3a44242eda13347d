"""What batches are to hold, as the configuration says."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

from myxtts.audio.augment import AugmentSettings
from myxtts.audio.units import SAMPLE_RATE_HZ, SAMPLES_PER_CODE
from myxtts.config import DataConfig, XTTSConfig
from myxtts.pipeline.order import Kind


class Target(StrEnum):
    """What is being trained; it decides what is prepared."""

    CODEC = "codec"
    GPT = "gpt"
    DECODER = "decoder"


@dataclass(frozen=True)
class PreparationSettings:
    """What batches are to hold."""

    target: Target
    mel_norms: tuple[float, ...]
    """The codec's, one for each band."""
    prompt_samples: int
    """Length of the buffer that a voice prompt stands in; longer prompts are cut."""
    blank_prompt: bool = False
    """What a prompt was cut from does not count in the loss."""
    augment: AugmentSettings | None = None
    """Of training batches; None changes nothing."""
    rows_at_a_time: int | None = None
    """Clips prepared together; None for all of a batch. Fewer need less memory."""

    @property
    def changes_waves(self) -> bool:
        """Whether clips sound different every time, so that nothing made from them can be kept."""
        augment = self.augment
        return augment is not None and bool(augment.gain_db or augment.speed_change or augment.noise_db is not None)

    def measure_samples(self, samples: int, kind: Kind) -> int:
        """Samples of a batch after augmentation: room for its slowest clip."""
        if self.augment is None or not self.augment.speed_change or kind is Kind.VALIDATION:
            return samples
        stretched = math.ceil(samples * self.augment.longest_stretch)
        return -(-stretched // SAMPLES_PER_CODE) * SAMPLES_PER_CODE


def choose_preparation(config: XTTSConfig, target: Target, mel_norms: Sequence[float]) -> PreparationSettings:
    """The settings that a configuration stands for.

    Args:
        mel_norms: the codec's.
    """
    return PreparationSettings(
        target=target,
        mel_norms=tuple(map(float, mel_norms)),
        prompt_samples=round(config.data.prompt_seconds * SAMPLE_RATE_HZ),
        blank_prompt=config.training.blank_prompt,
        # A decoder must sound like the recording, not like what was done to it.
        augment=None if target is Target.DECODER else choose_augmentation(config.data),
    )


def reads_prompts(data: DataConfig, target: Target) -> bool:
    """Whether for each clip a second one is read, which its voice prompt is cut from. A codec hears no prompts."""
    return target is not Target.CODEC and data.prompt_from == "speaker"


def choose_augmentation(data: DataConfig) -> AugmentSettings | None:
    """The augmentation that a configuration asks for; None when it asks for none."""
    augment = AugmentSettings(
        gain_db=data.augment_gain_db,
        noise_db=data.augment_noise_db,
        speed_change=data.augment_speed,
        frame_masks=data.augment_frame_masks,
        band_masks=data.augment_band_masks,
    )
    return None if augment == AugmentSettings() else augment
