"""The one setting worth changing first, by what limits a run and by the settings in force."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from myxtts.monitoring.flow import TRAINING

READING = "read"
PREPARING = "prepare"
TRANSFER = "transfer"


class Settings:
    """The settings of a run by dotted key, as its metrics file has them; None for those it does not name."""

    def __init__(self, sections: Mapping[str, Any]):
        self._sections = sections

    def find(self, key: str) -> Any:
        section, _, name = key.partition(".")
        return self._sections.get(section, {}).get(name)

    def find_number(self, key: str) -> int | None:
        """A whole number; None also for `auto`."""
        value = self.find(key)
        return value if isinstance(value, int) and not isinstance(value, bool) else None


def advise_faster(stage: str, mode: str, settings: Settings) -> str | None:
    """The flag that makes a stage faster, by the stage's name; None when there is none left to try."""
    if stage == READING:
        return _double("--num-workers", settings.find_number("data.num_workers"), otherwise=4)
    if stage == PREPARING:
        return _advise_preparation(mode, settings)
    if stage == TRANSFER:
        return _double("--prefetch-buffer-size", settings.find_number("data.prefetch_buffer_size"), otherwise=8)
    return _advise_training(settings) if stage == TRAINING else None


def advise_steadier(stage: str, settings: Settings) -> str:
    """The flag that makes step times more even, by the stage that is waited for."""
    if stage in (READING, PREPARING):
        return _double("--buffer-size", settings.find_number("data.pipeline_buffer_size"), otherwise=100)
    if stage == TRANSFER:
        return _double("--prefetch-buffer-size", settings.find_number("data.prefetch_buffer_size"), otherwise=8)
    if settings.find("data.pad_to_fixed_length") is False:
        return "--enable-static-shapes"
    # Nobody waits: the batches themselves differ, as short and long clips do.
    longest_s = settings.find("data.max_clip_seconds")
    return "--max-clip-seconds " + (f"{0.75 * longest_s:.3g}" if isinstance(longest_s, int | float) else "8")


def advise_rarer(flag: str, interval: int | None) -> str:
    """The flag that makes something happen half as often."""
    return _double(flag, interval, otherwise=1000)


def advise_smaller_batch(settings: Settings) -> str:
    """Half the batch and twice the accumulation: the same update from less memory and less padding."""
    batch_size = settings.find_number("data.batch_size")
    accumulation = settings.find_number("training.gradient_accumulation_steps")
    if batch_size is None or accumulation is None or batch_size < 2:
        return "--grad-accum 2"
    return f"--batch-size {batch_size // 2} --grad-accum {accumulation * 2}"


def _advise_preparation(mode: str, settings: Settings) -> str | None:
    if settings.find("data.cache") == "off":
        return "--cache auto"
    if mode == "single":
        return "--data-gpu 0 --model-gpu 1"
    if settings.find("data.cache") != "disk":
        return "--cache disk"
    return None


def _advise_training(settings: Settings) -> str | None:
    rehearsal = settings.find("training.rehearsal")
    if rehearsal is False and settings.find("data.mixed_precision") == "float32":
        return "--mixed-precision"
    if settings.find("data.enable_xla") is False:
        return "--enable-xla"
    batch_size = settings.find_number("data.batch_size")
    accumulation = settings.find_number("training.gradient_accumulation_steps")
    if batch_size is not None and accumulation is not None and accumulation % 2 == 0:
        return f"--batch-size {batch_size * 2} --grad-accum {accumulation // 2}"
    return None


def _double(flag: str, value: int | None, otherwise: int) -> str:
    return f"{flag} {value * 2 if value else otherwise}"
