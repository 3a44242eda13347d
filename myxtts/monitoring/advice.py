"""The one setting worth changing first, by what limits a run, the settings in force and the machine.

Advice can be followed as it stands: it names no card that is not there, no setting that the mode does not read, and no value that
is in force already. Where nothing is left to try there is none.
"""

from __future__ import annotations

from myxtts.monitoring.flow import TRAINING
from myxtts.monitoring.settings_in_force import Settings

READING = "read"
PREPARING = "prepare"
TRANSFER = "transfer"

USUAL_READERS = 4
MOST_PREFETCHED = 8
"""Batches on the data device: a copy gets no faster by more of them waiting for it."""
MOST_AHEAD = 65536
"""The setting allows no more."""
SHORTER = 0.75
_WAVE_CHANGES = ("augment_gain_db", "augment_speed")


def advise_faster(stage: str, mode: str, settings: Settings) -> str | None:
    """The flag that makes a stage faster, by the stage's name; None when there is none left to try."""
    if stage == READING:
        return _advise_readers(settings)
    if stage == PREPARING:
        return _advise_cache(settings) or _advise_second_card(mode, settings)
    if stage == TRANSFER:
        return _advise_prefetch(mode, settings)
    return _advise_training(settings) if stage == TRAINING else None


def advise_steadier(stage: str, mode: str, settings: Settings) -> str | None:
    """The flag that makes step times more even, by the stage that is waited for; None when there is none left to try."""
    if stage == READING:
        return _advise_ahead(settings)
    if stage == PREPARING:
        return _advise_prefetch(mode, settings) or _advise_cache(settings)
    if stage == TRANSFER:
        return _advise_prefetch(mode, settings)
    if settings.find("data.pad_to_fixed_length") is False:
        return "--enable-static-shapes"
    # Nobody waits: the batches themselves differ, as short and long clips do.
    return _advise_shorter_clips(settings)


def advise_smaller_batch(settings: Settings) -> str | None:
    """A smaller batch and more accumulation: the same update from less memory and less padding. None for batches of one clip."""
    return split_batch(
        settings.find_number("data.batch_size"), settings.find_number("training.gradient_accumulation_steps")
    )


def split_batch(batch_size: int | None, accumulation: int | None) -> str | None:
    """Flags for as many clips per update in smaller batches; None where they are not known, or cannot be smaller."""
    if batch_size is None or accumulation is None or batch_size < 2:
        return None
    parts = next(number for number in range(2, batch_size + 1) if batch_size % number == 0)
    return f"--batch-size {batch_size // parts} --grad-accum {accumulation * parts}"


def _advise_readers(settings: Settings) -> str | None:
    readers, processors = settings.find_number("data.num_workers"), settings.around.processors
    # One processor has none to spare.
    if readers is None or processors is None or processors < 2:
        return None
    more = min(processors, readers * 2 if readers else USUAL_READERS)
    return f"--num-workers {more}" if more > readers else None


def _advise_ahead(settings: Settings) -> str | None:
    if settings.find_number("data.num_workers") == 0:
        # Where this process reads, there is nobody to read ahead.
        return _advise_readers(settings)
    ahead = settings.find_number("data.pipeline_buffer_size")
    return None if ahead is None or ahead >= MOST_AHEAD else f"--buffer-size {min(MOST_AHEAD, ahead * 2)}"


def _advise_prefetch(mode: str, settings: Settings) -> str | None:
    depth = settings.find_number("data.prefetch_buffer_size")
    # One device has no second one to be ahead on, and between processes there are three slots in any case.
    if mode != "dual" or depth is None or depth >= MOST_PREFETCHED:
        return None
    return f"--prefetch-buffer-size {min(MOST_PREFETCHED, depth * 2)}"


def _advise_cache(settings: Settings) -> str | None:
    """`auto` weighs the cost itself: only where nothing may be kept is there something to allow."""
    if settings.find("training.mode") == "auto":
        # It has weighed keeping codes against every mode, and `off` may be its own answer.
        return None
    makes_codes = settings.find("training.stage") in (None, "gpt")
    changes_waves = settings.find("data.augment_noise_db") is not None or any(
        settings.find(f"data.{name}") for name in _WAVE_CHANGES
    )
    return "--cache auto" if settings.find("data.cache") == "off" and makes_codes and not changes_waves else None


def _advise_second_card(mode: str, settings: Settings) -> str | None:
    if settings.find("training.mode") == "auto":
        # It has measured that one does not pay.
        return None
    cards = settings.around.cards or ()
    is_alone = (
        mode == "single" and settings.find("training.model_gpus") is None and not settings.find("training.cluster")
    )
    if not is_alone or len(cards) < 2 or settings.find("training.rehearsal"):
        return None
    # The first one trains where no ids are given.
    asked = "--mode dual " if settings.find("training.mode") is not None else ""
    return f"{asked}--data-gpu {cards[1]} --model-gpu {cards[0]}"


def _advise_training(settings: Settings) -> str | None:
    has_card = bool(settings.around.cards) and settings.find("training.rehearsal") is False
    if has_card and settings.find("data.mixed_precision") == "float32":
        return "--mixed-precision"
    if settings.find("data.pad_to_fixed_length") is False:
        return "--enable-static-shapes"
    if settings.find("data.enable_xla") is False:
        return "--enable-xla"
    batch_size = settings.find_number("data.batch_size")
    accumulation = settings.find_number("training.gradient_accumulation_steps")
    if batch_size is not None and accumulation is not None and accumulation % 2 == 0:
        return f"--batch-size {batch_size * 2} --grad-accum {accumulation // 2}"
    return None


def _advise_shorter_clips(settings: Settings) -> str | None:
    longest_s, shortest_s = settings.find("data.max_clip_seconds"), settings.find("data.min_clip_seconds") or 0.0
    if not isinstance(longest_s, int | float):
        return None
    shorter_s = float(f"{SHORTER * longest_s:.3g}")
    return f"--max-clip-seconds {shorter_s:g}" if shorter_s > shortest_s else None
