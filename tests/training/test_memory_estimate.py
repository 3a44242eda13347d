"""The bill before the first step."""

from dataclasses import replace

import pytest

from myxtts.config import XTTSConfig
from myxtts.data.buckets import Bucket
from myxtts.devices.memory import Limit
from myxtts.devices.plan import DevicePlan, Mode, Process, ProcessPlan, Role, RolePlan
from myxtts.monitoring.errors import MemoryBillError
from myxtts.training.memory_estimate import bill_run, check_run, describe_shape

BUCKETS = (Bucket(16, 50 * 1024, 60), Bucket(8, 100 * 1024, 90))


def make_plan(mib, mode=Mode.ISOLATED):
    data = RolePlan(Role.DATA, Process.PRODUCER, "/CPU:1", 0, Limit(4096))
    model = RolePlan(Role.MODEL, Process.TRAINER, "/CPU:1", 1, None if mib is None else Limit(mib))
    if mode is Mode.SINGLE:
        data = replace(model, role=Role.DATA)
    return DevicePlan(mode, True, data, model, (ProcessPlan(Process.TRAINER, ()),))


def bill(config, stage="gpt", mib=None):
    return bill_run(config, make_plan(mib), describe_shape(config, stage, BUCKETS))[-1]


def read(found, name):
    return next(item.size_bytes for item in found.items if item.name == name)


def test_optimizer_and_gradients_follow_from_the_parameters():
    config = XTTSConfig(model={"size": "tiny"})
    found = bill(config)
    assert read(found, "gradients") == read(found, "weights")
    assert read(found, "optimizer") == 2 * read(found, "weights")
    averaged = bill(config.replace(training={"ema_decay": 0.99, "gradient_accumulation_steps": 4}))
    assert read(averaged, "optimizer") == 3 * read(found, "weights")
    assert read(averaged, "gradients") == 2 * read(found, "weights")


def test_what_saves_memory_makes_the_bill_smaller():
    config = XTTSConfig(model={"size": "small"})
    whole = read(bill(config), "activations")
    assert read(bill(config.replace(model={"enable_gradient_checkpointing": True})), "activations") < whole / 2
    assert read(bill(config.replace(data={"mixed_precision": "mixed_bfloat16"})), "activations") == whole // 2
    assert read(bill(config.replace(data={"prompt_seconds": 1.0})), "activations") < whole
    assert read(bill(config, "codec"), "activations") < whole


def test_both_devices_are_billed_where_there_are_two():
    config = XTTSConfig(model={"size": "tiny"})
    shape = describe_shape(config, "gpt", BUCKETS)
    assert [found.role for found in bill_run(config, make_plan(None), shape)] == ["data", "model"]
    assert [found.role for found in bill_run(config, make_plan(None, Mode.SINGLE), shape)] == ["model"]


def test_a_limit_that_is_too_small_is_refused_with_a_batch_that_fits():
    config = XTTSConfig(model={"size": "tiny"}, data={"batch_size": 16})
    shape = describe_shape(config, "gpt", BUCKETS)
    needed = bill(config).total_bytes / 2**20
    assert "fits" in check_run(config, make_plan(int(needed) + 1), shape)
    with pytest.raises(MemoryBillError, match=r"--batch-size 8 --grad-accum 2"):
        check_run(config, make_plan(int(needed * 0.65)), shape)
    with pytest.raises(MemoryBillError, match="Not even a single clip"):
        check_run(config, make_plan(10), shape)
