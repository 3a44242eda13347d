"""The bill before the first step."""

from dataclasses import replace

import numpy as np
import pytest

from myxtts.config import XTTSConfig
from myxtts.data.buckets import Bucket
from myxtts.devices.nvml import MIB
from myxtts.devices.plan import DevicePlan, Growth, Limit, Mode, Process, ProcessPlan, Role, RolePlan
from myxtts.errors import MemoryBillError
from myxtts.models.discriminators import Rivals, choose_rival_size
from myxtts.models.sizes import DecoderSize
from myxtts.models.waveform import WaveformDecoder
from myxtts.pipeline.batch import measure_batch_bytes
from myxtts.pipeline.recipe import Target, choose_preparation
from myxtts.pipeline.threads import SLOTS
from myxtts.training.memory_estimate import (
    RunShape,
    bill_model,
    bill_run,
    check_run,
    count_decoder_numbers,
    count_decoder_parameters,
    list_fitting_batches,
)

BUCKETS = (Bucket(16, 50 * 1024, 60), Bucket(8, 100 * 1024, 90))


def make_plan(mib, mode=Mode.ISOLATED, data_mib=4096):
    data = RolePlan(Role.DATA, Process.PRODUCER, "/CPU:1", 0, Limit(data_mib))
    model = RolePlan(Role.MODEL, Process.TRAINER, "/CPU:1", 1, None if mib is None else Limit(mib))
    if mode is Mode.SINGLE:
        data = replace(model, role=Role.DATA)
    return DevicePlan(mode, True, data, model, (ProcessPlan(Process.TRAINER, ()),))


def describe_shape(config, stage="gpt"):
    return RunShape(stage, BUCKETS, choose_preparation(config, Target(stage), [1.0] * 80))


def bill(config, stage="gpt", mib=None, mode=Mode.ISOLATED):
    return bill_run(config, make_plan(mib, mode), describe_shape(config, stage))[-1]


def read(found, name):
    return next(item.size_bytes for item in found.items if item.name == name)


def test_optimizer_and_gradients_follow_from_the_parameters_and_slots_from_the_batches():
    config = XTTSConfig(model={"size": "tiny"})
    found = bill(config)
    assert read(found, "gradients") == read(found, "weights")
    assert read(found, "optimizer") == 2 * read(found, "weights")
    averaged = bill(config.replace(training={"ema_decay": 0.99, "gradient_accumulation_steps": 4}))
    assert read(averaged, "optimizer") == 3 * read(found, "weights")
    assert read(averaged, "gradients") == 2 * read(found, "weights")
    for stage in ("gpt", "codec"):
        settings = describe_shape(config, stage).preparation
        largest = max(measure_batch_bytes(settings, bucket) for bucket in BUCKETS)
        assert read(bill(config, stage), "slots") == SLOTS * largest, "as large as the pipeline makes them"


def test_what_saves_memory_makes_the_bill_smaller():
    config = XTTSConfig(model={"size": "small"})
    whole = read(bill(config), "activations")
    assert read(bill(config.replace(model={"enable_gradient_checkpointing": True})), "activations") < whole / 2
    assert read(bill(config.replace(data={"mixed_precision": "mixed_bfloat16"})), "activations") < 0.75 * whole
    assert read(bill(config.replace(data={"prompt_seconds": 1.0})), "activations") < whole
    assert read(bill(config, "codec"), "activations") < whole
    assert whole < read(bill(config.replace(data={"prompt_from": "speaker"})), "activations")


def test_a_frozen_base_has_neither_gradients_nor_optimizer_and_the_room_of_its_precision():
    config = XTTSConfig(model={"size": "tiny"}, training={"init_from": "voice", "gradient_accumulation_steps": 1})
    whole = bill(config)
    adapted = bill(config.replace(training={"lora_rank": 8}))
    # (in + out) x rank of four products in each of 4 blocks.
    pairs = 4 * 8 * (4 + 2 + 5 + 5) * 256 * 4
    assert read(adapted, "gradients") == pairs
    assert read(adapted, "optimizer") == 2 * pairs
    assert read(adapted, "weights") == read(whole, "weights") + pairs
    half = bill(config.replace(training={"lora_rank": 8}, data={"mixed_precision": "mixed_float16"}))
    assert read(half, "weights") == read(whole, "weights") // 2 + pairs
    fewer = bill(config.replace(training={"lora_rank": 8, "lora_matrices": "qkv"}))
    assert read(fewer, "gradients") == pairs // 4


def test_a_limit_that_is_too_small_is_refused_with_a_batch_that_fits():
    config = XTTSConfig(model={"size": "tiny"}, data={"batch_size": 16, "prompt_from": "speaker"})
    shape = describe_shape(config)
    needed = bill(config).total_bytes / 2**20
    assert "DOES NOT" not in str(check_run(config, make_plan(int(needed) + 1), shape))
    with pytest.raises(MemoryBillError, match=r"--batch-size 8 --grad-accum 2"):
        check_run(config, make_plan(int(needed * 0.72)), shape)
    with pytest.raises(MemoryBillError, match="Not even a single clip"):
        check_run(config, make_plan(10), shape)


def grow(plan):
    """The plan without limits, on cards."""
    data, model = (replace(role, device="/GPU:0", memory=Growth()) for role in (plan.data, plan.model))
    return replace(plan, rehearsal=False, data=replace(data, process=Process.TRAINER, device="/GPU:1"), model=model)


def test_without_limits_the_bill_is_held_against_what_is_free_on_the_card():
    config = XTTSConfig(model={"size": "tiny"}, data={"batch_size": 16})
    shape, plan = describe_shape(config), grow(make_plan(None, Mode.DUAL))
    needed = {found.role: found.total_bytes for found in bill_run(config, plan, shape, lambda role: None)}
    enough = {role: -(-size // MIB) for role, size in needed.items()}

    bills = check_run(config, plan, shape, lambda role: enough[role.role])
    assert [found.fits for found in bills.bills] == [True, True]
    assert "free" in str(bills)
    with pytest.raises(
        MemoryBillError, match=r"model device\) needs .*its card has free(.|\n)*This fits.*--batch-size"
    ):
        check_run(config, plan, shape, lambda role: enough[role.role] - (role.role == "model"))
    with pytest.raises(MemoryBillError, match=r"Not even a single clip(.|\n)*nvidia-smi"):
        check_run(config, plan, shape, lambda role: 1)
    short = check_run(config, plan, shape, lambda role: enough[role.role] - (role.role == "data"))
    assert short.rows_at_a_time is not None, "fewer clips are prepared at a time"


def test_a_limit_wins_over_what_is_free_and_what_is_unknown_is_not_refused():
    config = XTTSConfig(model={"size": "tiny"})
    shape = describe_shape(config)
    asked = []
    check_run(config, make_plan(4096), shape, asked.append)
    assert asked == []
    bills = check_run(config, grow(make_plan(None)), shape, lambda role: None)
    assert [found.fits for found in bills.bills] == [None, None]


def test_a_device_that_does_both_jobs_is_billed_for_both():
    config = XTTSConfig(model={"size": "tiny"})
    apart, alone = bill(config), bill(config, mode=Mode.SINGLE)
    data = bill_run(config, make_plan(None), describe_shape(config))[0]
    assert read(alone, "codec") == read(data, "weights") > 0
    assert read(alone, "preparation") == read(data, "activations") > 0
    assert alone.total_bytes == apart.total_bytes + read(data, "weights") + read(data, "activations")
    assert read(bill(config, "codec", mode=Mode.SINGLE), "codec") == 0, "what is trained is billed as weights"
    between = (apart.total_bytes + alone.total_bytes) // 2 // 2**20
    check_run(config, make_plan(between), describe_shape(config))
    with pytest.raises(MemoryBillError, match=r"preparation(.|\n)*This fits.*--batch-size"):
        check_run(config, make_plan(between, Mode.SINGLE), describe_shape(config))


def test_a_data_device_too_small_for_a_batch_prepares_fewer_clips_at_a_time_and_at_least_one():
    config = XTTSConfig(model={"size": "tiny"}, data={"batch_size": 16, "prompt_from": "speaker"})
    shape = describe_shape(config)
    whole = bill_run(config, make_plan(None), shape)[0].total_bytes // 2**20 + 1
    assert check_run(config, make_plan(None, data_mib=whole), shape).rows_at_a_time is None
    fitting = check_run(config, make_plan(None, data_mib=whole - 4), shape)
    assert fitting.rows_at_a_time == 4, "8 of the longest clips are a whole batch"
    assert "4 clips at a time do" in str(fitting)
    assert "--data-gpu-memory" in str(fitting)
    with pytest.raises(MemoryBillError, match=r"data device(.|\n)*--data-gpu-memory.*--max-clip-seconds"):
        check_run(config, make_plan(None, data_mib=1), shape)
    one = replace(shape, buckets=tuple(replace(bucket, rows=1) for bucket in BUCKETS))
    least = bill_run(config, make_plan(None), one)[0].total_bytes // 2**20 + 1
    with pytest.raises(MemoryBillError, match=r"data device(.|\n)*This fits.*--batch-size \d --grad-accum"):
        check_run(config, make_plan(None, data_mib=least), shape)


def test_batches_that_fit_make_up_the_same_update():
    config = XTTSConfig(model={"size": "tiny"}, data={"batch_size": 8}, training={"gradient_accumulation_steps": 4})
    plan, shape = make_plan(None), describe_shape(config)

    def list_choices(limit_bytes):
        fitting = list_fitting_batches(config, plan, shape, limit_bytes)
        return [(choice.batch_size, choice.accumulation) for choice in fitting]

    assert list_choices(1 << 50) == [(8, 4), (16, 2), (32, 1)]
    whole = bill(config).total_bytes
    assert list_choices(whole) == [(8, 4)]
    assert list_choices(whole - 1)[0] == (4, 8)
    assert list_choices(1000) == []


def test_every_trained_number_of_a_decoder_is_counted_once_and_a_wider_one_keeps_more():
    size, wide = (DecoderSize(latent_width=16, width=width, speaker_width=8) for width in (32, 64))
    parts = WaveformDecoder(size), Rivals(choose_rival_size(size))
    real = sum(int(np.prod(variable.shape)) for part in parts for variable in part.variables)
    assert count_decoder_parameters(size) == real
    assert count_decoder_numbers(wide) > 1.9 * count_decoder_numbers(size)


COMPILED = [
    # Size, precision, checkpointing, rows, text tokens, codes; MB that XLA needs on an RTX 3090, with prompts of 6 s.
    ("tiny", "float32", False, 4, 100, 200, 608),
    ("tiny", "float32", False, 16, 100, 200, 1796),
    ("small", "float32", False, 4, 100, 200, 1888),
    ("small", "float32", True, 12, 100, 200, 1466),
    ("base", "float32", False, 4, 100, 200, 4978),
    ("base", "float32", False, 2, 150, 300, 4609),
    ("base", "mixed_float16", False, 4, 100, 200, 4248),
    ("base", "mixed_float16", True, 8, 60, 120, 3136),
    ("base", "mixed_bfloat16", False, 8, 100, 200, 6311),
    ("big", "float32", False, 3, 100, 250, 12357),
    ("big", "mixed_bfloat16", False, 3, 100, 250, 11384),
    ("big", "mixed_bfloat16", True, 3, 100, 250, 8543),
]


@pytest.mark.parametrize(("size", "precision", "checkpointing", "rows", "tokens", "codes", "compiled_mb"), COMPILED)
def test_the_bill_is_what_the_compiler_needs(size, precision, checkpointing, rows, tokens, codes, compiled_mb):
    """docs/benchmarks/2026-11-19-gpu-proof.md: temporary memory, arguments, results and the optimizer's state."""
    model = {"size": size, "enable_gradient_checkpointing": checkpointing}
    data = {"mixed_precision": precision, "batch_size": rows, "prompt_seconds": 6.0, "prompt_from": "clip"}
    config = XTTSConfig(model=model, data=data)
    shape = replace(describe_shape(config), buckets=(Bucket(rows, codes * 1024, tokens),))
    items = {item.name: item.size_bytes for item in bill_model(config, shape, rows)}
    assert sum(items.values()) - items["slots"] == pytest.approx(compiled_mb * 1e6, rel=0.08)


def test_the_bill_of_a_batch_that_is_added_to_others_is_what_the_compiler_needs():
    """docs/benchmarks/2026-11-19-gpu-proof.md."""
    data = {"batch_size": 4, "prompt_seconds": 6.0, "prompt_from": "clip"}
    config = XTTSConfig(model={"size": "tiny"}, data=data, training={"gradient_accumulation_steps": 2})
    shape = replace(describe_shape(config), buckets=(Bucket(4, 200 * 1024, 100),))
    items = {item.name: item.size_bytes for item in bill_model(config, shape, 4)}
    assert sum(items.values()) - items["slots"] == pytest.approx(652e6, rel=0.1)
