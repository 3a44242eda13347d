"""A leak is found and named by its phase; noise, as real runs make it, is not taken for one."""

from __future__ import annotations

import math
import random
from collections.abc import Callable

import pytest

from myxtts.devices.nvml import MIB
from myxtts.monitoring.memory import Leak, Memory, MemoryWatch, Phase

SOON, LONG = 200, 2000
Noise = Callable[[int, random.Random], float]

NOISES: dict[str, Noise] = {
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


def run(
    steps: int,
    noise: str = "nothing",
    *,
    memory: Memory = Memory.TRAINER,
    leaks: dict[Phase, float] | None = None,
    visits: dict[Phase, int] | None = None,
    seed: int = 0,
) -> list[Leak]:
    """What is told of a run that leaks so many MiB in every update, validation or checkpoint; the latter two also take 30 MiB
    and give them back in the next update.

    Args:
        visits: updates between two of a phase.
    """
    watch, draw = MemoryWatch("gpt"), random.Random(seed)
    leaks, visits = leaks or {}, visits or {Phase.VALIDATION: 10, Phase.CHECKPOINT: 20}
    told: list[Leak] = []
    leaked = 0.0
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


@pytest.mark.parametrize("memory", [Memory.MODEL_DEVICE, Memory.TRAINER])
@pytest.mark.parametrize(
    ("phase", "mib", "slope"),
    [(Phase.TRAINING, 1.5, 150), (Phase.VALIDATION, 20.0, 200), (Phase.CHECKPOINT, 30.0, 150)],
)
def test_a_leak_is_found_and_named_by_its_phase_within_200_steps(
    memory: Memory, phase: Phase, mib: float, slope: float
) -> None:
    told = run(SOON, memory=memory, leaks={phase: mib})
    assert told
    assert {(leak.memory, leak.phase) for leak in told} == {(memory, phase)}
    assert told[0].mib_per_100_steps == pytest.approx(slope, rel=0.2)


@pytest.mark.parametrize("name", ["saw", "a cache that fills slowly", "shapes", "jump"])
def test_a_leak_is_found_beneath_noise(name: str) -> None:
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
def test_what_is_hard_to_tell_is_told_later(steps, noise, leaks, visits) -> None:
    told = run(steps, noise, leaks=leaks, visits=visits)
    assert {leak.phase for leak in told} == set(leaks)
    assert told[0].step > SOON


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("name", list(NOISES))
def test_a_run_without_a_leak_raises_no_alarm_in_2000_steps(name: str, seed: int) -> None:
    assert run(LONG, name, seed=seed) == []


def test_the_alarm_is_one_line_and_comes_again_only_when_the_leak_has_doubled() -> None:
    told = run(LONG, leaks={Phase.TRAINING: 1.0})
    assert 1 < len(told) < 8
    said = str(told[0])
    assert said.startswith(
        "Memory keeps growing: host memory of the trainer, 100 MB per 100 steps, in the training of the"
    )
    assert "gpt stage" in said
    assert "Ctrl-C saves the run" in said
    assert "\n" not in said


def test_of_a_producer_only_what_is_known_is_promised() -> None:
    watch, told = MemoryWatch("gpt"), []
    for step in range(1, SOON + 1):
        told += watch.add(step, Phase.PREPARATION, {Memory.PRODUCER: (500 + step) * MIB})
    assert {(leak.memory, leak.phase) for leak in told} == {(Memory.PRODUCER, Phase.PREPARATION)}
    assert "the machine may run out of memory and end the trainer" in str(told[0])


def test_what_a_validation_takes_and_the_training_gives_back_is_no_leak() -> None:
    watch, told = MemoryWatch("gpt"), []
    for step in range(1, LONG):
        told += watch.add(step, Phase.TRAINING, {Memory.TRAINER: 2000 * MIB})
        if step % 10 == 0:
            told += watch.add(step, Phase.VALIDATION, {Memory.TRAINER: 2200 * MIB})
            # Not all of it at once: some updates later.
            told += watch.add(step, Phase.TRAINING, {Memory.TRAINER: 2100 * MIB})
    assert told == []


def test_what_tracing_takes_is_taken_once() -> None:
    watch, told, used = MemoryWatch("gpt"), [], 1000.0
    for step in range(1, 600):
        has_traced = step % 3 == 0
        used += 10.0 if has_traced else 0.0
        told += watch.add(step, Phase.TRAINING, {Memory.TRAINER: int(used * MIB)}, counts=not has_traced)
    assert told == []


def test_unknown_memory_is_never_zero_and_never_leaks() -> None:
    watch, told = MemoryWatch("gpt"), []
    for step in range(1, 400):
        used = None if step % 2 else (1000 + 2 * step) * MIB
        told += watch.add(step, Phase.TRAINING, {Memory.MODEL_DEVICE: None, Memory.TRAINER: used})
    assert {leak.memory for leak in told} == {Memory.TRAINER}


def test_another_process_begins_anew() -> None:
    watch, told = MemoryWatch("gpt"), []
    for step in range(1, LONG):
        # Each process begins with more than the one before.
        told += watch.add(step, Phase.PREPARATION, {Memory.PRODUCER: (500 + 40 * (step // 50)) * MIB})
        if step % 50 == 0:
            watch.forget(Memory.PRODUCER)
    assert told == []
