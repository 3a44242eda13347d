"""How much memory a run will take on each device, before it takes it.

Weights, gradients and optimizer state are counted; activations are estimated from the tensors that a backward pass keeps.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from myxtts.config import XTTSConfig
from myxtts.data.buckets import Bucket
from myxtts.devices.nvml import MIB
from myxtts.devices.plan import DevicePlan, RolePlan
from myxtts.models.discriminators import (
    Layer,
    RivalSize,
    choose_rival_size,
    list_period_layers,
    list_rival_weights,
    list_spectral_layers,
)
from myxtts.models.sizes import (
    MEL_CHANNELS,
    PROMPT_LATENTS,
    SEGMENT_FRAMES,
    SEGMENT_SAMPLES,
    STOP_CODES,
    DecoderSize,
    read_sizes,
)
from myxtts.models.weights import count_parameters, list_adapter_weights, list_decoder_weights
from myxtts.monitoring.memory import BatchChoice, BillItem, DeviceBill, check_bill, format_bills, suggest_batch
from myxtts.pipeline.batch import measure_batch_bytes
from myxtts.pipeline.recipe import PreparationSettings
from myxtts.pipeline.threads import SLOTS
from myxtts.units import FRAMES_PER_CODE, HOP_SAMPLES, SAMPLES_PER_CODE
from myxtts.utils.gpu_memory import read_room_mib

FLOAT_BYTES = 4

LAYER_BYTES = {True: 60, False: 83}
"""Per position and channel, by whether most is kept with 16 bits: what the backward pass of a GPT's layer needs and, under XLA,
what is computed beside it; norms and gates have 32 bits in any case. Fitted to what the compiler says for GPUs."""
BLOCK_BYTES = {True: 27, False: 38}
"""Of the conditioning encoder's blocks, likewise."""
RECOMPUTED = 2
"""A layer that is computed again is there twice: itself, and its gradients."""
MASK_BYTES = 1
KEPT_PER_LOGIT = 3
KEPT_PER_RESIDUAL_BLOCK = 6
FRAMES_IN_FLIGHT = 12
"""Copies of a clip's windowed frames that a mel spectrogram holds at once."""


@dataclass(frozen=True)
class RunShape:
    """What a batch looks like."""

    stage: str
    buckets: tuple[Bucket, ...]
    preparation: PreparationSettings


@dataclass(frozen=True)
class RunBills:
    """What the devices of a run must hold, not known to be too much."""

    bills: tuple[DeviceBill, ...]
    rows_at_a_time: int | None
    """Clips of a batch that the data device is known to have room for; None for all of them."""

    def __str__(self) -> str:
        table = format_bills(self.bills)
        if self.rows_at_a_time is None:
            return table
        is_free = self.bills[0].is_free
        room = "what is free on the card" if is_free else "the limit"
        advice = "A card with more free memory" if is_free else "A larger --data-gpu-memory"
        return (
            f"{table}\nA whole batch at once may not fit into {room} of the data device; {self.rows_at_a_time} clips at a "
            f"time do, which gives the same batches a little more slowly. {advice} avoids it."
        )


ReadRoom = Callable[[RolePlan], int | None]
"""Gives the MB that a role without a limit can have; None is unknown."""


def bill_run(
    config: XTTSConfig, plan: DevicePlan, shape: RunShape, read_room_mib: ReadRoom = read_room_mib
) -> list[DeviceBill]:
    """What each device must hold, the data device first where it is another one."""
    batch_size, share = config.data.batch_size, _share_batch(plan, config.data.batch_size)
    model, *others = (
        _hold_against_card(_bill_model(config, role, shape, share), role, read_room_mib) for role in plan.trainers
    )
    if plan.is_shared:
        return [_add_preparation(model, config, shape, batch_size), *others]
    data = _hold_against_card(_bill_data(config, plan.data, shape, batch_size), plan.data, read_room_mib)
    return [data, model, *others]


def _share_batch(plan: DevicePlan, batch_size: int) -> int:
    """Clips of a batch that each device trains on."""
    return -(-batch_size // len(plan.trainers))


def check_run(
    config: XTTSConfig, plan: DevicePlan, shape: RunShape, read_room_mib: ReadRoom = read_room_mib
) -> RunBills:
    """The bills of a run. Raises `MemoryBillError`, with a batch that would fit, where a limit or a card is too small."""
    bills = bill_run(config, plan, shape, read_room_mib)
    wanted = BatchChoice(config.data.batch_size, config.training.gradient_accumulation_steps)

    def bill_part(rows_at_a_time: int | None) -> DeviceBill:
        items = _bill_data(config, plan.data, shape, config.data.batch_size, rows_at_a_time).items
        return replace(bills[0], items=items)

    def cost_data(batch_size: int) -> int:
        return _bill_data(config, plan.data, shape, batch_size, rows_at_a_time=1).total_bytes

    for bill in bills[-len(plan.trainers) :]:
        _refuse(bill, wanted, lambda batch_size: _cost_model(config, plan, shape, batch_size))
    rows_at_a_time: int | None = None
    if not plan.is_shared:
        rows = max(bucket.rows for bucket in shape.buckets)
        while bill_part(rows_at_a_time).fits is False and rows_at_a_time != 1:
            rows_at_a_time = max(1, (rows_at_a_time or rows) // 2)
        # The least it can do with is what counts: clips are prepared one at a time where more do not fit.
        if rows_at_a_time == 1:
            _refuse(bill_part(rows_at_a_time), wanted, cost_data)
    return RunBills(tuple(bills), rows_at_a_time)


def list_fitting_batches(config: XTTSConfig, plan: DevicePlan, shape: RunShape, limit_bytes: int) -> list[BatchChoice]:
    """Batches that fit into so much of the model device's memory, with as many clips per update as asked for: the one asked
    for or the next smaller that fits, then those that double it. None where not even one clip fits."""
    wanted = BatchChoice(config.data.batch_size, config.training.gradient_accumulation_steps)
    first = suggest_batch(wanted, lambda batch_size: _cost_model(config, plan, shape, batch_size), limit_bytes)
    fitting = [] if first is None else [first]
    while fitting and fitting[-1].accumulation % 2 == 0:
        larger = BatchChoice(2 * fitting[-1].batch_size, fitting[-1].accumulation // 2)
        if _cost_model(config, plan, shape, larger.batch_size) > limit_bytes:
            break
        fitting.append(larger)
    return fitting


def _cost_model(config: XTTSConfig, plan: DevicePlan, shape: RunShape, batch_size: int) -> int:
    """Bytes that the model device must hold with so many clips in a batch."""
    bill = _bill_model(config, plan.model, shape, _share_batch(plan, batch_size))
    return (_add_preparation(bill, config, shape, batch_size) if plan.is_shared else bill).total_bytes


def _refuse(bill: DeviceBill, wanted: BatchChoice, cost_bytes: Callable[[int], int]) -> None:
    check_bill(bill, None if bill.limit_bytes is None else suggest_batch(wanted, cost_bytes, bill.limit_bytes))


def _hold_against_card(bill: DeviceBill, role: RolePlan, read_room_mib: ReadRoom) -> DeviceBill:
    """The bill of a role; where it has no limit, against what is free on its card, as far as that is known."""
    room_mib = None if bill.limit_bytes is not None else read_room_mib(role)
    return bill if room_mib is None else replace(bill, limit_bytes=room_mib * MIB, is_free=True)


def bill_model(config: XTTSConfig, shape: RunShape, batch_size: int) -> tuple[BillItem, ...]:
    """What the device that trains must hold, without what it may prepare."""
    count = _count_trained(config, shape.stage)
    average = 1 if config.training.ema_decay else 0
    # A sum of micro-batches is held beside the gradients that are added to it.
    clips = config.data.batch_size * config.training.gradient_accumulation_steps
    gradients = 2 if clips > batch_size else 1
    buckets = _scale_buckets(config, shape, batch_size)
    activations_bytes = max(_estimate_activations(config, shape, bucket) for bucket in buckets)
    # Once more with 16 bits, for all of a step: with checkpointing too, where a compiler keeps each for when it is read again.
    is_whole = config.data.mixed_precision == "float32" or config.training.lora_rank
    narrowed_bytes = 0 if is_whole else count * FLOAT_BYTES // 2
    return (
        BillItem("weights", count * FLOAT_BYTES + narrowed_bytes + _count_frozen_bytes(config, shape.stage)),
        BillItem("gradients", gradients * count * FLOAT_BYTES),
        BillItem("optimizer", (2 + average) * count * FLOAT_BYTES),
        BillItem("activations", activations_bytes, is_estimate=True),
        BillItem("slots", _count_slot_bytes(shape, buckets)),
    )


def _bill_model(config: XTTSConfig, role: RolePlan, shape: RunShape, batch_size: int) -> DeviceBill:
    return DeviceBill(role.device, "model", bill_model(config, shape, batch_size), _read_limit(role))


def _bill_data(
    config: XTTSConfig, role: RolePlan, shape: RunShape, batch_size: int, rows_at_a_time: int | None = None
) -> DeviceBill:
    buckets = _scale_buckets(config, shape, batch_size)
    items = (
        BillItem("weights", _count_codec_bytes(config, shape)),
        BillItem("activations", _estimate_preparation(config, buckets, rows_at_a_time), is_estimate=True),
        BillItem("slots", _count_slot_bytes(shape, buckets)),
    )
    return DeviceBill(role.device, "data", items, _read_limit(role))


def _add_preparation(model: DeviceBill, config: XTTSConfig, shape: RunShape, batch_size: int) -> DeviceBill:
    """The bill of a device that prepares what it trains on. The slots are the same ones for both jobs."""
    preparation = _estimate_preparation(config, _scale_buckets(config, shape, batch_size), None)
    items = (
        *model.items,
        BillItem("codec", _count_codec_bytes(config, shape)),
        BillItem("preparation", preparation, is_estimate=True),
    )
    return replace(model, items=items)


def _count_codec_bytes(config: XTTSConfig, shape: RunShape) -> int:
    """Of the weights that make codes; where the codec is what is trained, there are none beside it."""
    return 0 if shape.stage == "codec" else count_parameters(config.model)["dvae"] * FLOAT_BYTES


def _estimate_preparation(config: XTTSConfig, buckets: Sequence[Bucket], rows_at_a_time: int | None) -> int:
    largest = max(min(bucket.rows, rows_at_a_time or bucket.rows) * bucket.samples for bucket in buckets)
    frames = largest // HOP_SAMPLES
    # Row by row through the codec, all clips prepared together through the spectrograms.
    codec = max(bucket.samples for bucket in buckets) // HOP_SAMPLES * config.model.dvae_width * 4 * FLOAT_BYTES
    return largest * FLOAT_BYTES + FRAMES_IN_FLIGHT * frames * HOP_SAMPLES * FLOAT_BYTES + codec


def _scale_buckets(config: XTTSConfig, shape: RunShape, batch_size: int) -> list[Bucket]:
    """The shapes with another number of clips in a batch."""
    share = batch_size / config.data.batch_size
    return [replace(bucket, rows=max(1, round(bucket.rows * share))) for bucket in shape.buckets]


def _count_slot_bytes(shape: RunShape, buckets: Sequence[Bucket]) -> int:
    return SLOTS * max(measure_batch_bytes(shape.preparation, bucket) for bucket in buckets)


def _count_trained(config: XTTSConfig, stage: str) -> int:
    if stage == "decoder":
        return count_decoder_parameters(read_sizes(config.model).decoder)
    if config.training.lora_rank:
        return count_adapter_parameters(config)
    return count_parameters(config.model)["dvae" if stage == "codec" else "gpt"]


def count_adapter_parameters(config: XTTSConfig) -> int:
    """Numbers that are trained with LoRA."""
    training, size = config.training, read_sizes(config.model).gpt
    adapters = list_adapter_weights(size, training.lora_rank, training.lora_matrices.split(","))
    return sum(weight.elements for weight in adapters)


def _count_frozen_bytes(config: XTTSConfig, stage: str) -> int:
    """What the model device holds besides what it trains: the GPT that a decoder listens to, or adapters are added to."""
    count = count_parameters(config.model)["gpt"]
    if config.training.lora_rank:
        return count * FLOAT_BYTES // (1 if config.data.mixed_precision == "float32" else 2)
    return count * FLOAT_BYTES if stage == "decoder" else 0


def _estimate_activations(config: XTTSConfig, shape: RunShape, bucket: Bucket) -> int:
    half = config.data.mixed_precision != "float32"
    if shape.stage == "gpt":
        return _estimate_gpt(config, shape, bucket, half)
    if shape.stage == "codec":
        return _count_codec_numbers(config, bucket) * (2 if half else FLOAT_BYTES)
    numbers = count_decoder_numbers(read_sizes(config.model).decoder)
    # The GPT is only asked: it keeps nothing, so one layer at a time is there.
    asked_bytes = _count_positions(bucket) * config.model.gpt_width * LAYER_BYTES[half]
    return bucket.rows * (numbers * (2 if half else FLOAT_BYTES) + asked_bytes)


def _estimate_gpt(config: XTTSConfig, shape: RunShape, bucket: Bucket, half: bool) -> int:
    size = read_sizes(config.model).gpt
    number_bytes = 2 if half else FLOAT_BYTES
    positions, frames = _count_positions(bucket), 1 + shape.preparation.prompt_samples // HOP_SAMPLES
    # Attention keeps a weight for each pair of positions, and a mask where it drops some.
    layer = positions * size.width * LAYER_BYTES[half] + size.heads * positions**2 * (number_bytes + MASK_BYTES)
    block = frames * size.width * BLOCK_BYTES[half] + size.heads * frames**2 * number_bytes
    prompts = min(bucket.rows, shape.preparation.voices or bucket.rows)
    layers, blocks = bucket.rows * size.layers, prompts * size.encoder_blocks
    if config.model.enable_gradient_checkpointing:
        inputs = (layers * positions + blocks * frames) * size.width * number_bytes
        kept = inputs + RECOMPUTED * max(bucket.rows * layer, prompts * block)
    else:
        kept = layers * layer + blocks * block
    logits = bucket.tokens * size.text_tokens + bucket.samples // SAMPLES_PER_CODE * size.audio_tokens
    return kept + bucket.rows * KEPT_PER_LOGIT * logits * FLOAT_BYTES


def _count_positions(bucket: Bucket) -> int:
    """Of a row in the GPT: prompt, text with its two ends, codes with theirs."""
    return PROMPT_LATENTS + bucket.tokens + 2 + bucket.samples // SAMPLES_PER_CODE + 1 + STOP_CODES


def _count_codec_numbers(config: XTTSConfig, bucket: Bucket) -> int:
    size = read_sizes(config.model).dvae
    frames = bucket.samples // HOP_SAMPLES
    narrow, wide, codes = size.width, 2 * size.width, frames // FRAMES_PER_CODE
    residual = 2 * size.blocks * KEPT_PER_RESIDUAL_BLOCK * codes * wide
    edges = frames * (3 * MEL_CHANNELS + 3 * narrow) + frames // 2 * (6 * narrow + 6 * wide)
    return bucket.rows * (residual + edges + KEPT_PER_LOGIT * codes * size.codes)


def _read_limit(role: RolePlan) -> int | None:
    return None if role.limit_mib is None else role.limit_mib * MIB


KEPT_PER_CONVOLUTION = 2
"""Of a convolution in the decoder: its input after the activation, and its output."""
KEPT_PER_RIVAL_LAYER = 3
"""Of a layer of a rival: its output before and after the activation, and the copy that is compared."""
SIDES = 2
"""Rivals look at a recording and at speech."""


def count_decoder_parameters(size: DecoderSize) -> int:
    """Numbers that are trained: the decoder's and its rivals'."""
    rivals = list_rival_weights(choose_rival_size(size))
    return sum(weight.elements for weight in (*list_decoder_weights(size), *rivals))


def count_decoder_numbers(size: DecoderSize) -> int:
    """Numbers that a step keeps for each clip."""
    return _count_own(size) + SIDES * KEPT_PER_RIVAL_LAYER * _count_rivals(choose_rival_size(size))


def _count_own(size: DecoderSize) -> int:
    convolutions = 2 * len(size.block_dilations) * len(size.block_kernels)
    time, kept = SEGMENT_FRAMES, SEGMENT_FRAMES * (size.latent_width + 2 * size.width)
    for stage, rate in enumerate(size.rates):
        time *= rate
        kept += time * size.channels(stage) * (KEPT_PER_CONVOLUTION * convolutions + 3)
    return kept


def _count_rivals(size: RivalSize) -> int:
    by_period = _count_outputs(list_period_layers(size), SEGMENT_SAMPLES)
    # Windows a quarter of their length apart have half as many bins as samples: two numbers for each sample.
    by_spectrum = _count_outputs(list_spectral_layers(size), 2 * SEGMENT_SAMPLES)
    return len(size.periods) * by_period + len(size.fft_samples) * by_spectrum


def _count_outputs(layers: Sequence[Layer], positions: int) -> int:
    total = 0
    for layer in layers:
        positions = math.ceil(positions / math.prod(layer.strides))
        total += positions * layer.outputs
    return total
