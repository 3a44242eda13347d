"""Twenty kills of a run, and twenty of its producer: the losses are those of a run that nothing happened to."""

import functools
import random
import time
from signal import SIGKILL

import pytest

from tests.support.tiny_run import (
    TinyRun,
    at_step,
    count_steps,
    in_saving,
    leaves_nothing,
    make_corpus,
    run_tiny,
    start_tiny,
)
from tests.training.conftest import DAMAGED

KILLS = 20
STEPS = 64
MODES = ("single", "dual", "isolated")
LARGE_BATCH = {"data.batch_size": 40, "data.pipeline_buffer_size": 1}
LITTLE_MB = 200
"""Of it, forty clips of eleven seconds and those of their prompts take 75 as they are read. What is left does for preparing a few
of them at a time; all forty need more than 210."""
pytestmark = pytest.mark.soak


@pytest.fixture(scope="module")
def long_flags(make_base):
    """Of runs with several shapes of batches and a clip that cannot be read, long enough to be killed often."""
    base = make_base("soak_base", seconds=(0.7, 1.3))
    return (
        *("--train-data", str(base / "corpus"), "--codec", str(base / "codec"), "--grad-accum", "2"),
        *("--max-steps", str(STEPS), "--validation-interval", "5", "--checkpoint-interval", "2"),
    )


@pytest.fixture(scope="module")
def long_run(share, long_flags):
    """The run that nothing happened to."""

    run = TinyRun.at(share("soak_unbroken", lambda folder: run_tiny(folder, *long_flags)))
    assert f"{DAMAGED} (step" in run.text, "the damaged clip was never met"
    return run


class Chance:
    """Moments to be killed at, drawn from a seed."""

    def __init__(self, seed, folder):
        self._draw = random.Random(seed)
        self._folder = folder

    def choose(self, number):
        """A moment, and what it is called. The first and every third while a checkpoint is written."""
        done = count_steps(self._folder)
        if number % 3 == 0:
            return in_saving(self._folder), "while a checkpoint was written"
        if number % 7 == 4:
            return self._after(self._draw.uniform(0.5, 12)), "on its way to the first step"
        step, delay_s = done + self._draw.randint(1, 4), self._draw.uniform(0, 0.3)
        return self._both(at_step(self._folder, step), delay_s), f"{delay_s * 1000:.0f} ms after step {step}"

    def _after(self, delay_s):
        end = time.monotonic() + delay_s
        return lambda: time.monotonic() >= end

    def _both(self, moment, delay_s):
        reached = []

        def is_now():
            if not reached and moment():
                reached.append(time.monotonic())
            return bool(reached) and time.monotonic() >= reached[0] + delay_s

        return is_now


def test_twenty_kills_of_the_trainer_change_nothing(long_flags, long_run, tmp_path, record_property):
    folder = tmp_path / "killed"
    chance, lines = Chance(0, folder), []
    for number in range(KILLS):
        mode = MODES[number % len(MODES)]
        with leaves_nothing(folder):
            moment, name = chance.choose(number)
            live = start_tiny(folder, *long_flags, mode=mode, **{"data.num_workers": number % 2})
            live.strike(moment, SIGKILL)
            live.finish(-SIGKILL)
        half = [path.name for path in folder.glob(".myxtts-*")]
        lines.append(
            f"kill {number + 1}: {mode}, {name}, at step {count_steps(folder)}{', half written: ' * bool(half)}{' '.join(half)}"
        )
    run = run_tiny(folder, *long_flags, "--resume")
    same = run.story == long_run.story
    told = f"losses, validations, samples and weights of {STEPS} steps equal bit for bit: {same}"
    record_property("summary", [*lines, told])
    assert run.story == long_run.story
    assert any("half written" in line for line in lines), "no kill met a checkpoint half written"


def has_done(folder, step):
    return count_steps(folder) >= step


def test_twenty_kills_of_the_producer_change_nothing(long_flags, long_run, tmp_path, record_property):
    folder = tmp_path / "producer_killed"
    draw, lines, struck = random.Random(0), [], set()
    with leaves_nothing(folder):
        live = start_tiny(folder, *long_flags, mode="isolated")
        for number in range(KILLS):
            # Now and then a young one; the others are let work, or there would soon be nothing left to kill.
            step = count_steps(folder) + (0 if number % 4 == 0 else draw.randint(1, 3))
            live.kill_producer(functools.partial(has_done, folder, min(step, STEPS - 8)), struck)
            lines.append(f"kill {number + 1}: at step {count_steps(folder)}")
        run = live.finish(0)
    died = sum(event.name == "producer died" for event in run.events)
    same = run.story == long_run.story
    told = f"{died} deaths noticed; losses, samples and weights of {STEPS} steps equal bit for bit: {same}"
    record_property("summary", [*lines, told])
    assert died == KILLS
    assert run.story == long_run.story


def test_a_producer_without_enough_memory_goes_on_with_fewer_clips_at_a_time(tmp_path, record_property):
    corpus = make_corpus(tmp_path / "corpus", clips=44, seconds=(10.9, 11.2))
    run_tiny(tmp_path / "codec", "--train-data", corpus, "--stage", "codec", "--max-steps", "1", **LARGE_BATCH)
    flags = ("--train-data", corpus, "--codec", tmp_path / "codec", "--max-steps", "3")
    enough = run_tiny(tmp_path / "enough", *flags, **LARGE_BATCH)
    flags = (*flags, "--data-gpu-memory", LITTLE_MB)
    little = run_tiny(tmp_path / "little", *flags, mode="isolated", **LARGE_BATCH)
    events = [f"{each.name}: {each.text.splitlines()[0]}" for each in little.events if each.name.startswith("producer")]
    same = little.story == enough.story
    record_property("summary", [*events, f"losses and weights equal those of enough memory bit for bit: {same}"])
    assert any(event.startswith("producer shrunk") for event in events), events
    assert little.story == enough.story
