"""Settings that keep a card from being busy, by the machine they would run on."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from myxtts.config import XTTSConfig
from myxtts.config.presets import CARDS_BY_TOTAL_MIB, START_BATCHES
from myxtts.devices.nvml import Card
from myxtts.monitoring.advice import USUAL_READERS
from myxtts.monitoring.health import Issue, Severity

FEW_BATCHES_AHEAD = 10
MEASURE_FIRST = "unknown before it is measured: compare `myxtts profile` with and without it"


def check_config(config: XTTSConfig, cards: Sequence[Card], processors: int) -> Iterator[Issue]:
    """Issues of a configuration. What only matters on a card is not said where there is none.

    Args:
        cards: those a run would use.
        processors: that the run may use.
    """
    data = config.data
    if cards:
        yield from _check_batch(config, max(card.total_mib or 0 for card in cards))
        yield from _check_precision(config)
    yield from _check_reading(config, processors)
    if not data.pad_to_fixed_length:
        yield Issue(
            Severity.SERIOUS,
            "Static shapes are off",
            "data.pad_to_fixed_length is false: almost every batch has a shape of its own, and each is traced, which takes seconds",
            "--enable-static-shapes    # data.pad_to_fixed_length: true",
            "no tracing after the first batches",
        )
    if config.training.deterministic:
        yield Issue(
            Severity.NOTE,
            "Every operation is deterministic",
            "training.deterministic is true: slower kernels and two threads",
            "leave out --deterministic unless runs must be equal to the last bit",
            MEASURE_FIRST,
        )


def _check_batch(config: XTTSConfig, total_mib: int) -> Iterator[Issue]:
    if config.training.init_from or not total_mib:
        # A fine-tuned model keeps its own small batches and adds many of them up.
        return
    sizes = [at_least for at_least, _ in CARDS_BY_TOTAL_MIB]
    # The table is from large to small, the start batches are from small to large; the smallest also serves smaller cards.
    place = min(next((number for number, size in enumerate(sizes) if total_mib >= size), len(sizes)), len(sizes) - 1)
    start = START_BATCHES[config.model.size][len(sizes) - 1 - place]
    if config.data.batch_size * 2 > start:
        return
    accumulation = config.training.gradient_accumulation_steps
    fewer = max(1, accumulation * config.data.batch_size // start)
    keeps = f" --grad-accum {fewer}" if accumulation > 1 else ""
    yield Issue(
        Severity.WORTH_CHANGING,
        "The batch is small for the card",
        f"{config.data.batch_size} clips of a {config.model.size} model on {total_mib} MB, where {start} are a usual start",
        f"--batch-size {start}{keeps}",
        f"fewer, larger kernels: {MEASURE_FIRST}",
    )


def _check_precision(config: XTTSConfig) -> Iterator[Issue]:
    if config.data.mixed_precision == "float32":
        yield Issue(
            Severity.WORTH_CHANGING,
            "The model computes in float32",
            "data.mixed_precision is float32: tensor cores stay unused, and activations take twice the memory",
            "--mixed-precision    # data.mixed_precision: mixed_float16",
            f"about half the memory of activations; speed {MEASURE_FIRST}",
        )
    if not config.data.enable_xla and config.data.pad_to_fixed_length:
        # Without fixed shapes it is refused; that they are off is an issue of its own.
        yield Issue(
            Severity.NOTE,
            "The step is not compiled with XLA",
            "data.enable_xla is false",
            "--enable-xla    # data.enable_xla: true",
            MEASURE_FIRST,
        )


def _check_reading(config: XTTSConfig, processors: int) -> Iterator[Issue]:
    workers, ahead = config.data.num_workers, config.data.pipeline_buffer_size
    if workers == 0 and processors > 1:
        yield Issue(
            Severity.WORTH_CHANGING,
            "Nothing is read ahead by other processes",
            f"data.num_workers is 0; the host has {processors} processors",
            f"--num-workers {min(USUAL_READERS, processors)}",
            "reading runs beside training",
        )
    elif isinstance(workers, int) and workers > processors:
        yield Issue(
            Severity.NOTE,
            "More readers than processors",
            f"data.num_workers is {workers}; the host has {processors} processors",
            f"--num-workers {processors}",
            "less memory, no slower reading",
        )
    if ahead < FEW_BATCHES_AHEAD:
        yield Issue(
            Severity.WORTH_CHANGING,
            "Few batches are read ahead",
            f"data.pipeline_buffer_size is {ahead}: a slow moment of the disk is felt at once",
            "--buffer-size 50    # data.pipeline_buffer_size: 50",
            "steadier steps",
        )
