"""The bill before a run; and a leak is found and named by its phase, while noise, as real runs make it, is not taken for one."""

import math
import random
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from myxtts.devices.nvml import MIB
from myxtts.errors import MemoryBillError
from myxtts.monitoring.memory import (
    BatchChoice,
    BillItem,
    DeviceBill,
    Memory,
    MemoryWatch,
    Phase,
    check_bill,
    format_bills,
    suggest_batch,
)


def make_bill(limit_bytes):
    items = (BillItem("weights", 100 * MIB), BillItem("gradients", 324 * MIB), BillItem("activations", 500 * MIB, True))
    return DeviceBill("/GPU:1", "model", items, limit_bytes)


def test_a_limit_that_is_unknown_refuses_nothing():
    assert make_bill(924 * MIB).fits is True
    assert make_bill(924 * MIB - 1).fits is False
    unknown = make_bill(None)
    assert unknown.fits is None
    check_bill(unknown, None)
    last = [line.split(maxsplit=1)[-1] for line in format_bills([unknown]).splitlines()[-2:]]
    assert last == ["unknown", "known to fit"]


def test_the_table_has_a_column_per_device_and_fits_80_columns():
    data = DeviceBill("/GPU:0", "data", (BillItem("weights", 50 * MIB),), 8 * MIB)
    lines = format_bills([make_bill(1000 * MIB), data]).splitlines()
    assert max(map(len, lines)) <= 80
    cells = [line.split() for line in lines]
    assert cells[0] == ["Memory", "/GPU:1", "(model)", "/GPU:0", "(data)"]
    assert ["gradients", "324.0", "MB", "-"] in cells
    assert ["activations", "~500.0", "MB", "-"] in cells
    assert cells[-1] == ["fits", "DOES", "NOT", "FIT"]


def test_a_bill_too_high_is_refused_with_a_batch_that_fits_or_says_that_none_does():
    suggestion = suggest_batch(BatchChoice(8, 2), lambda batch: 100 * batch, 450)
    assert suggestion == BatchChoice(4, 4)
    with pytest.raises(MemoryBillError, match="--batch-size 4 --grad-accum 4") as caught:
        check_bill(make_bill(300 * MIB), suggestion)
    assert "needs about 924.0 MB, its limit is 300.0 MB" in str(caught.value)
    with pytest.raises(MemoryBillError, match="Not even a single clip"):
        check_bill(make_bill(300 * MIB), suggest_batch(BatchChoice(8, 1), lambda batch: 1000, 999))


@given(st.integers(1, 48), st.integers(1, 16), st.integers(0, 100), st.integers(1, 9), st.integers(1, 400))
def test_a_suggestion_fits_keeps_the_product_and_is_the_largest(batch, accumulation, fixed, each, limit):
    choice = suggest_batch(BatchChoice(batch, accumulation), lambda clips: fixed + each * clips, limit)
    fitting = [b for b in range(1, batch + 1) if (batch * accumulation) % b == 0 and fixed + each * b <= limit]
    if choice is None:
        assert not fitting
    else:
        assert choice == BatchChoice(max(fitting), batch * accumulation // max(fitting))


SOON, LONG = 200, 2000
Noise = Callable[[int, random.Random], float]

NOISES = {
    "nothing": lambda step, draw: 0.0,
    "chunks of a pool that are taken once and kept, ever more rarely": lambda step, draw: 64.0 * int(math.log2(1 + step / 20)),
    "saw": lambda step, draw: 3.0 * (step % 70),
    "shapes": lambda step, draw: draw.choice((0.0, 40.0, 90.0, 160.0, 300.0)),
    "a cache that fills slowly": lambda step, draw: 60.0 * (1 - math.exp(-step / 300)),
    "arenas that are level after half a run": lambda step, draw: 100.0 * (1 - math.exp(-step / 600)),
    "arenas that fill ever more slowly": lambda step, draw: 60.0 * math.log(1 + step / 50),
    "a cache that fills within the first steps": lambda step, draw: 800.0 * (1 - math.exp(-step / 30)),
    "jump": lambda step, draw: 0.01 * step + 76.0 * (step > 100),
    "a jump at the border of two stretches of readings": lambda step, draw: 0.01 * step + 76.0 * (step > 90),
    "two jumps": lambda step, draw: 0.01 * step + 50.0 * (step > 100) + 50.0 * (step > 200),
    "large jump": lambda step, draw: 300.0 * (step >= 100),
}  # fmt: skip
NOISES["all"] = lambda step, draw: 0.002 * step + sum(noise(step, draw) for noise in list(NOISES.values())[1:5])


def run(steps, noise="nothing", *, memory=Memory.TRAINER, leaks=None, visits=None, seed=0):
    """What is told of a run that leaks so many MiB in every update, validation or checkpoint; the latter two also take 30 MiB
    and give them back in the next update.

    Args:
        visits: updates between two of a phase.
    """
    watch, draw = MemoryWatch("gpt"), random.Random(seed)
    leaks, visits = leaks or {}, visits or {Phase.VALIDATION: 10, Phase.CHECKPOINT: 20}
    told, leaked = [], 0.0
    for step in range(1, steps + 1):
        leaked += leaks.get(Phase.TRAINING, 0.0)
        used = 2000 + leaked + NOISES[noise](step, draw)
        told += watch.add(step, Phase.TRAINING, {memory: int(used * MIB)})
        for phase, interval in visits.items():
            if step % interval == 0:
                leaked += leaks.get(phase, 0.0)
                used += leaks.get(phase, 0.0) + 30.0
                told += watch.add(step, phase, {memory: int(used * MIB)})
    return told


def tell(readings):
    """What is told of these, each with its step, phase and bytes."""
    watch = MemoryWatch("gpt")
    return [leak for reading in readings for leak in watch.add(*reading)]


@pytest.mark.parametrize("memory", [Memory.MODEL_DEVICE, Memory.TRAINER])
@pytest.mark.parametrize(
    ("phase", "mib", "slope"),
    [(Phase.TRAINING, 1.5, 150), (Phase.VALIDATION, 20.0, 200), (Phase.CHECKPOINT, 30.0, 150)],
)
def test_a_leak_is_found_and_named_by_its_phase_within_200_steps(memory, phase, mib, slope):
    told = run(SOON, memory=memory, leaks={phase: mib})
    assert told
    assert {(leak.memory, leak.phase) for leak in told} == {(memory, phase)}
    assert told[0].mib_per_100_steps == pytest.approx(slope, rel=0.2)


@pytest.mark.parametrize("name", ["saw", "a cache that fills slowly", "shapes", "jump"])
def test_a_leak_is_found_beneath_noise(name):
    assert {leak.phase for leak in run(SOON, name, leaks={Phase.TRAINING: 4.0})} == {Phase.TRAINING}


@pytest.mark.parametrize(
    ("steps", "noise", "leaks", "visits"),
    [
        (250, "large jump", {Phase.TRAINING: 1.0}, None),
        (600, "nothing", {Phase.VALIDATION: 50.0}, {Phase.VALIDATION: 100}),
        (LONG, "nothing", {Phase.TRAINING: 0.1}, None),
    ],
    ids=["beside a large jump", "with every hundredth step", "slow"],
)
def test_what_is_hard_to_tell_is_told_later(steps, noise, leaks, visits):
    told = run(steps, noise, leaks=leaks, visits=visits)
    assert {leak.phase for leak in told} == set(leaks)
    assert told[0].step > SOON


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("name", list(NOISES))
def test_a_run_without_a_leak_raises_no_alarm_in_2000_steps(name, seed):
    assert run(LONG, name, seed=seed) == []


def test_the_alarm_is_one_line_and_comes_again_only_when_the_leak_has_doubled():
    told = run(LONG, leaks={Phase.TRAINING: 1.0})
    assert 1 < len(told) < 8
    said = str(told[0])
    where = "host memory of the trainer, 100 MB per 100 steps, in the training of the gpt stage"
    assert said.startswith(f"Memory keeps growing: {where}")
    assert "Ctrl-C saves the run" in said
    assert "\n" not in said


def test_of_a_producer_only_what_is_known_is_promised():
    told = tell((step, Phase.PREPARATION, {Memory.PRODUCER: (500 + step) * MIB}) for step in range(1, SOON + 1))
    assert {(leak.memory, leak.phase) for leak in told} == {(Memory.PRODUCER, Phase.PREPARATION)}
    assert "the machine may run out of memory and end the trainer" in str(told[0])


def test_what_a_validation_takes_and_the_training_gives_back_is_no_leak():
    # Not all of it at once: some updates later.
    often = ((Phase.TRAINING, 2000), (Phase.VALIDATION, 2200), (Phase.TRAINING, 2100))
    steps = ((step, each) for step in range(1, LONG) for each in (often if step % 10 == 0 else often[:1]))
    assert tell((step, phase, {Memory.TRAINER: mib * MIB}) for step, (phase, mib) in steps) == []


def test_what_tracing_takes_is_taken_once():
    watch, told, used = MemoryWatch("gpt"), [], 1000.0
    for step in range(1, 600):
        has_traced = step % 3 == 0
        used += 10.0 if has_traced else 0.0
        told += watch.add(step, Phase.TRAINING, {Memory.TRAINER: int(used * MIB)}, counts=not has_traced)
    assert told == []


def test_unknown_memory_is_never_zero_and_never_leaks():
    used = {step: None if step % 2 else (1000 + 2 * step) * MIB for step in range(1, 400)}
    told = tell((step, Phase.TRAINING, {Memory.MODEL_DEVICE: None, Memory.TRAINER: used[step]}) for step in used)
    assert {leak.memory for leak in told} == {Memory.TRAINER}


def test_another_process_begins_anew():
    watch, told = MemoryWatch("gpt"), []
    for step in range(1, LONG):
        # Each process begins with more than the one before.
        told += watch.add(step, Phase.PREPARATION, {Memory.PRODUCER: (500 + 40 * (step // 50)) * MIB})
        if step % 50 == 0:
            watch.forget(Memory.PRODUCER)
    assert told == []
