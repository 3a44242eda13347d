"""A leak is found and named by its phase; noise, as real runs make it, is not taken for one."""

from __future__ import annotations

import math
import random
from collections.abc import Callable

import pytest

from myxtts.devices.nvml import MIB
from myxtts.monitoring.memory_watch import Leak, Memory, MemoryWatch, Phase

SOON = 200
LONG = 2000
Noise = Callable[[int, random.Random], float]


def step_allocator(step: int, draw: random.Random) -> float:
    """Chunks of a pool that are taken once and kept, ever more rarely."""
    return 64.0 * int(math.log2(1 + step / 20))


def saw(step: int, draw: random.Random) -> float:
    """What builds up until the next collection of garbage."""
    return 3.0 * (step % 70)


def shapes(step: int, draw: random.Random) -> float:
    """Batches of other lengths."""
    return draw.choice((0.0, 40.0, 90.0, 160.0, 300.0))


def plateau(step: int, draw: random.Random) -> float:
    """A cache that fills slowly."""
    return 60.0 * (1 - math.exp(-step / 300))


def slow_plateau(step: int, draw: random.Random) -> float:
    """Arenas that fit rare batches, too, in the end: level after half a run."""
    return 100.0 * (1 - math.exp(-step / 600))


def ever_slower(step: int, draw: random.Random) -> float:
    """The same where batches have many shapes."""
    return 60.0 * math.log(1 + step / 50)


def large_plateau(step: int, draw: random.Random) -> float:
    """One that fills within the first steps."""
    return 800.0 * (1 - math.exp(-step / 30))


def jump(step: int, draw: random.Random) -> float:
    """What the first validation takes once, in a run whose log grows a little."""
    return 0.01 * step + (76.0 if step > 100 else 0.0)


def early_jump(step: int, draw: random.Random) -> float:
    """The same at the border of two stretches of readings."""
    return 0.01 * step + (76.0 if step > 90 else 0.0)


def two_jumps(step: int, draw: random.Random) -> float:
    """What the first validation takes, and later the first sample that is spoken."""
    return 0.01 * step + (50.0 if step > 100 else 0.0) + (50.0 if step > 200 else 0.0)


def large_jump(step: int, draw: random.Random) -> float:
    """A pool that grows by a chunk."""
    return 300.0 if step >= 100 else 0.0


def drift(step: int, draw: random.Random) -> float:
    """The log, the curves: some bytes per step."""
    return 0.002 * step


NOISES: dict[str, tuple[Noise, ...]] = {
    "nothing": (),
    "allocator": (step_allocator,),
    "saw": (saw,),
    "shapes": (shapes,),
    "plateau": (plateau,),
    "slow plateau": (slow_plateau,),
    "ever slower": (ever_slower,),
    "large plateau": (large_plateau,),
    "jump": (jump,),
    "early jump": (early_jump,),
    "two jumps": (two_jumps,),
    "large jump": (large_jump,),
    "all": (step_allocator, saw, shapes, plateau, drift),
}


def run(
    steps: int,
    noise: tuple[Noise, ...],
    *,
    memory: Memory = Memory.TRAINER,
    leaks: dict[Phase, float] | None = None,
    visits: dict[Phase, int] | None = None,
    passing_mib: float = 30.0,
    seed: int = 0,
) -> list[Leak]:
    """What is told of a run that leaks so many MiB in every update, validation or checkpoint.

    Args:
        visits: updates between two of a phase.
        passing_mib: what a validation or a checkpoint takes and gives back in the next update.
    """
    watch, draw = MemoryWatch("gpt"), random.Random(seed)
    leaks, visits = leaks or {}, visits or {Phase.VALIDATION: 10, Phase.CHECKPOINT: 20}
    told: list[Leak] = []
    leaked = 0.0
    for step in range(1, steps + 1):
        leaked += leaks.get(Phase.TRAINING, 0.0)
        used = 2000 + leaked + sum(each(step, draw) for each in noise)
        told += watch.add(step, Phase.TRAINING, {memory: int(used * MIB)})
        for phase, interval in visits.items():
            if step % interval == 0:
                leaked += leaks.get(phase, 0.0)
                used += leaks.get(phase, 0.0) + passing_mib
                told += watch.add(step, phase, {memory: int(used * MIB)})
    return told


@pytest.mark.parametrize("memory", list(Memory))
@pytest.mark.parametrize(("phase", "mib"), [(Phase.TRAINING, 1.0), (Phase.VALIDATION, 8.0), (Phase.CHECKPOINT, 16.0)])
def test_a_leak_is_found_and_named_by_its_phase_within_200_steps(memory: Memory, phase: Phase, mib: float) -> None:
    told = run(SOON, (), memory=memory, leaks={phase: mib})
    assert told
    assert {(leak.memory, leak.phase) for leak in told} == {(memory, phase)}


@pytest.mark.parametrize("name", ["saw", "plateau", "shapes", "jump"])
def test_a_leak_is_found_beneath_noise(name: str) -> None:
    told = run(SOON, NOISES[name], leaks={Phase.TRAINING: 4.0})
    assert told
    assert {leak.phase for leak in told} == {Phase.TRAINING}


def test_beside_a_large_jump_a_leak_is_found_once_the_jump_is_past() -> None:
    told = run(250, NOISES["large jump"], leaks={Phase.TRAINING: 1.0})
    assert [leak.phase for leak in told] == [Phase.TRAINING]
    assert told[0].step > SOON


def test_a_leak_with_every_hundredth_step_is_found_in_the_end() -> None:
    told = run(600, (), leaks={Phase.VALIDATION: 50.0}, visits={Phase.VALIDATION: 100})
    assert {leak.phase for leak in told} == {Phase.VALIDATION}


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("name", list(NOISES))
def test_a_run_without_a_leak_raises_no_alarm_in_2000_steps(name: str, seed: int) -> None:
    assert run(LONG, NOISES[name], seed=seed) == []


def test_a_slow_leak_is_found_in_the_end() -> None:
    told = run(LONG, (lambda step, draw: saw(step, draw) / 5,), leaks={Phase.TRAINING: 0.1})
    assert told
    assert 5 < told[0].mib_per_100_steps < 20


def test_the_slope_is_told_per_100_steps() -> None:
    assert run(SOON, (), leaks={Phase.TRAINING: 1.5})[0].mib_per_100_steps == pytest.approx(150, rel=0.05)
    (first, *_) = run(400, (), leaks={Phase.VALIDATION: 20.0})
    assert first.mib_per_100_steps == pytest.approx(200, rel=0.2)


def test_the_alarm_is_one_line_and_comes_again_only_when_the_leak_has_doubled() -> None:
    told = run(LONG, (), leaks={Phase.TRAINING: 1.0})
    assert 1 < len(told) < 8
    assert all("\n" not in str(leak) for leak in told)
    assert str(told[0]).startswith(
        "Memory keeps growing: host memory of the trainer, 100 MB per 100 steps, in the training"
    )
    assert "of the gpt stage" in str(told[0])
    assert "Ctrl-C saves the run" in str(told[0])


def test_of_a_producer_only_what_is_known_is_promised() -> None:
    watch, told = MemoryWatch("gpt"), []
    for step in range(1, SOON + 1):
        told += watch.add(step, Phase.PREPARATION, {Memory.PRODUCER: (500 + step) * MIB})
    assert {(leak.memory, leak.phase) for leak in told} == {(Memory.PRODUCER, Phase.PREPARATION)}
    said = str(told[0])
    assert "in the preparation of the gpt stage" in said
    assert "the machine may run out of memory and end the trainer" in said
    assert "Ctrl-C saves the run" in said
    assert "nothing is lost" not in said


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
