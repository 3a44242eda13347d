"""How much memory a run will take on each device, before it takes it.

Weights, gradients and optimizer state are counted; activations are estimated from the tensors that a backward pass keeps.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from myxtts.audio.units import FRAMES_PER_CODE, HOP_SAMPLES, SAMPLE_RATE_HZ, SAMPLES_PER_CODE
from myxtts.config import XTTSConfig
from myxtts.data.buckets import Bucket
from myxtts.devices.memory import Limit
from myxtts.devices.nvml import MIB
from myxtts.devices.plan import DevicePlan, RolePlan
from myxtts.models.names import count_parameters
from myxtts.models.sizes import MEL_CHANNELS, PROMPT_LATENTS, read_sizes
from myxtts.monitoring.memory_bill import (
    BatchChoice,
    DeviceBill,
    bill_data_device,
    bill_model_device,
    check_bill,
    format_bills,
    suggest_batch,
)
from myxtts.pipeline.handoff import SLOTS

FLOAT_BYTES = 4

KEPT_PER_GPT_LAYER = 26
"""Vectors of the model's width that a block keeps per position: norms, queries, keys and values in both layouts, the wide
layer before and after its activation, dropout masks. Counted, then raised by a fifth to what a step of `tiny` took."""
KEPT_PER_ENCODER_BLOCK = 14
KEPT_PER_LOGIT = 3
KEPT_PER_RESIDUAL_BLOCK = 6
FRAMES_IN_FLIGHT = 12
"""Copies of a clip's windowed frames that a mel spectrogram holds at once."""


@dataclass(frozen=True)
class RunShape:
    """What a batch looks like."""

    stage: str
    buckets: tuple[Bucket, ...]
    prompt_samples: int


def describe_shape(config: XTTSConfig, stage: str, buckets: Sequence[Bucket]) -> RunShape:
    return RunShape(stage, tuple(buckets), round(config.data.prompt_seconds * SAMPLE_RATE_HZ))


def bill_run(config: XTTSConfig, plan: DevicePlan, shape: RunShape) -> list[DeviceBill]:
    """What each device must hold, the data device first where it is another one."""
    bills = [_bill_model(config, plan.model, shape, config.data.batch_size)]
    if (plan.data.process, plan.data.device) != (plan.model.process, plan.model.device):
        bills.insert(0, _bill_data(config, plan.data, shape))
    return bills


def check_run(config: XTTSConfig, plan: DevicePlan, shape: RunShape) -> str:
    """The bill as a table. Raises `MemoryBillError`, with a batch that would fit, where a limit is too small."""
    bills = bill_run(config, plan, shape)
    wanted = BatchChoice(config.data.batch_size, config.training.gradient_accumulation_steps)

    def cost(batch_size: int) -> int:
        return _bill_model(config, plan.model, shape, batch_size).total_bytes or 0

    model = bills[-1]
    check_bill(model, None if model.limit_bytes is None else suggest_batch(wanted, cost, model.limit_bytes))
    return format_bills(bills)


def _bill_model(config: XTTSConfig, role: RolePlan, shape: RunShape, batch_size: int) -> DeviceBill:
    count = count_parameters(config.model)["dvae" if shape.stage == "codec" else "gpt"]
    average = 1 if config.training.ema_decay else 0
    # A sum of micro-batches is held beside the gradients that are added to it.
    gradients = 2 if config.training.gradient_accumulation_steps > 1 else 1
    share = batch_size / config.data.batch_size
    return bill_model_device(
        role.device,
        weights_bytes=count * FLOAT_BYTES,
        gradients_bytes=gradients * count * FLOAT_BYTES,
        optimizer_bytes=(2 + average) * count * FLOAT_BYTES,
        activations_bytes=max(_estimate_activations(config, shape, _shrink(bucket, share)) for bucket in shape.buckets),
        slots_bytes=SLOTS * max(_count_batch_bytes(shape, _shrink(bucket, share)) for bucket in shape.buckets),
        limit_bytes=_read_limit(role),
    )


def _bill_data(config: XTTSConfig, role: RolePlan, shape: RunShape) -> DeviceBill:
    count = 0 if shape.stage == "codec" else count_parameters(config.model)["dvae"]
    largest = max(bucket.rows * bucket.samples for bucket in shape.buckets)
    frames = largest // HOP_SAMPLES
    # Row by row through the codec, whole batches through the spectrograms.
    codec = max(bucket.samples for bucket in shape.buckets) // HOP_SAMPLES * config.model.dvae_width * 4 * FLOAT_BYTES
    return bill_data_device(
        role.device,
        weights_bytes=count * FLOAT_BYTES,
        activations_bytes=largest * FLOAT_BYTES + FRAMES_IN_FLIGHT * frames * HOP_SAMPLES * FLOAT_BYTES + codec,
        slots_bytes=SLOTS * max(_count_batch_bytes(shape, bucket) for bucket in shape.buckets),
        limit_bytes=_read_limit(role),
    )


def _shrink(bucket: Bucket, share: float) -> Bucket:
    return replace(bucket, rows=max(1, round(bucket.rows * share)))


def _estimate_activations(config: XTTSConfig, shape: RunShape, bucket: Bucket) -> int:
    numbers = (
        _count_codec_numbers(config, bucket) if shape.stage == "codec" else _count_gpt_numbers(config, shape, bucket)
    )
    half = config.data.mixed_precision != "float32"
    return numbers * FLOAT_BYTES // (2 if half else 1)


def _count_gpt_numbers(config: XTTSConfig, shape: RunShape, bucket: Bucket) -> int:
    size = read_sizes(config.model).gpt
    codes = bucket.samples // SAMPLES_PER_CODE
    positions = PROMPT_LATENTS + bucket.tokens + 2 + codes + 5
    frames = 1 + shape.prompt_samples // HOP_SAMPLES
    layers, blocks = size.layers, size.encoder_blocks
    per_layer = positions * size.width
    per_block = frames * size.width
    if config.model.enable_gradient_checkpointing:
        # One layer at a time is computed again, and its gradients beside it.
        kept = (layers + 2 * KEPT_PER_GPT_LAYER) * per_layer + (blocks + 2 * KEPT_PER_ENCODER_BLOCK) * per_block
    else:
        kept = layers * KEPT_PER_GPT_LAYER * per_layer + blocks * KEPT_PER_ENCODER_BLOCK * per_block
    logits = KEPT_PER_LOGIT * (bucket.tokens * size.text_tokens + codes * size.audio_tokens)
    return bucket.rows * (kept + logits)


def _count_codec_numbers(config: XTTSConfig, bucket: Bucket) -> int:
    size = read_sizes(config.model).dvae
    frames = bucket.samples // HOP_SAMPLES
    narrow, wide, codes = size.width, 2 * size.width, frames // FRAMES_PER_CODE
    residual = 2 * size.blocks * KEPT_PER_RESIDUAL_BLOCK * codes * wide
    edges = frames * (3 * MEL_CHANNELS + 3 * narrow) + frames // 2 * (6 * narrow + 6 * wide)
    return bucket.rows * (residual + edges + KEPT_PER_LOGIT * codes * size.codes)


def _count_batch_bytes(shape: RunShape, bucket: Bucket) -> int:
    frames = bucket.samples // HOP_SAMPLES if shape.stage == "codec" else 1 + shape.prompt_samples // HOP_SAMPLES
    return bucket.rows * (frames * MEL_CHANNELS + bucket.tokens + bucket.samples // SAMPLES_PER_CODE) * FLOAT_BYTES


def _read_limit(role: RolePlan) -> int | None:
    return role.memory.mib * MIB if isinstance(role.memory, Limit) else None
