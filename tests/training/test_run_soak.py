"""Twenty kills of a run, and twenty of its producer: the losses are those of a run that nothing happened to."""

import functools
import random
import time
from signal import SIGKILL

import pytest

from tests.pipeline.small_runs import damage_clip
from tests.training.conftest import DAMAGED
from tests.training.runs import finish, make_corpus, read_events, read_story, start, train
from tests.training.strikes import at_step, count_steps, in_saving, kill_producer, leaves_nothing, strike

KILLS = 20
STEPS = 64
MODES = ("single", "dual", "isolated")
LARGE_BATCH = {"data.batch_size": 40, "data.pipeline_buffer_size": 1}
LITTLE_MB = 200
"""Of it, forty clips of eleven seconds and those of their prompts take 75 as they are read. What is left does for preparing a few
of them at a time; all forty need more than 210."""
pytestmark = pytest.mark.soak


@pytest.fixture(scope="module")
def long_flags(share):
    """Of runs with several shapes of batches and a clip that cannot be read, long enough to be killed often."""

    def make(folder):
        corpus = make_corpus(folder / "corpus", seconds=(0.7, 1.3))
        train(folder / "codec", "--train-data", corpus, "--stage", "codec", "--max-steps", "3", "--mode", "single")
        damage_clip(corpus / "wavs" / DAMAGED)

    base = share("soak_base", make)
    return (
        *("--train-data", str(base / "corpus"), "--codec", str(base / "codec"), "--grad-accum", "2"),
        *("--max-steps", str(STEPS), "--validation-interval", "5", "--checkpoint-interval", "2"),
    )


@pytest.fixture(scope="module")
def long_run(share, long_flags):
    """The run that nothing happened to."""

    def make(folder):
        said = train(folder, *long_flags, "--mode", "single")
        assert f"{DAMAGED} (step" in said, "the damaged clip was never met"

    return share("soak_unbroken", make)


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


@pytest.mark.parametrize("seed", [0])
def test_twenty_kills_of_the_trainer_change_nothing(long_flags, long_run, tmp_path, record_property, seed):
    folder = tmp_path / "killed"
    chance, lines = Chance(seed, folder), []
    for number in range(KILLS):
        mode = MODES[number % len(MODES)]
        with leaves_nothing(folder):
            moment, name = chance.choose(number)
            run = start(folder, *long_flags, "--mode", mode, **{"data.num_workers": number % 2})
            strike(run, moment, SIGKILL)
            assert finish(run, folder).code == -SIGKILL
        half = [path.name for path in folder.glob(".myxtts-*")]
        lines.append(
            f"kill {number + 1}: {mode}, {name}, at step {count_steps(folder)}{', half written: ' * bool(half)}{' '.join(half)}"
        )
    train(folder, *long_flags, "--mode", "single", "--resume")
    same = read_story(folder) == read_story(long_run)
    record_property(
        "summary", [*lines, f"losses, validations, samples and weights of {STEPS} steps equal bit for bit: {same}"]
    )
    assert read_story(folder) == read_story(long_run)
    assert any("half written" in line for line in lines), "no kill met a checkpoint half written"


def has_done(folder, step):
    return count_steps(folder) >= step


@pytest.mark.parametrize("seed", [0])
def test_twenty_kills_of_the_producer_change_nothing(long_flags, long_run, tmp_path, record_property, seed):
    folder = tmp_path / "producer_killed"
    draw, lines, struck = random.Random(seed), [], set()
    with leaves_nothing(folder):
        run = start(folder, *long_flags, "--mode", "isolated")
        for number in range(KILLS):
            # Now and then a young one; the others are let work, or there would soon be nothing left to kill.
            step = count_steps(folder) + (0 if number % 4 == 0 else draw.randint(1, 3))
            kill_producer(run, folder, functools.partial(has_done, folder, min(step, STEPS - 8)), struck)
            lines.append(f"kill {number + 1}: at step {count_steps(folder)}")
        said = finish(run, folder)
    assert said.code == 0, said.text[-6000:]
    died = sum(event.name == "producer died" for event in read_events(folder))
    same = read_story(folder) == read_story(long_run)
    record_property(
        "summary",
        [*lines, f"{died} deaths noticed; losses, samples and weights of {STEPS} steps equal bit for bit: {same}"],
    )
    assert died == KILLS
    assert read_story(folder) == read_story(long_run)


def test_a_producer_without_enough_memory_goes_on_with_fewer_clips_at_a_time(tmp_path, record_property):
    corpus = make_corpus(tmp_path / "corpus", clips=44, seconds=(10.9, 11.2))
    codec = ("--train-data", corpus, "--stage", "codec", "--max-steps", "1", "--mode", "single")
    train(tmp_path / "codec", *codec, **LARGE_BATCH)
    flags = ("--train-data", corpus, "--codec", tmp_path / "codec", "--max-steps", "3")
    enough, little = tmp_path / "enough", tmp_path / "little"
    train(enough, *flags, "--mode", "single", **LARGE_BATCH)
    train(little, *flags, "--mode", "isolated", "--data-gpu-memory", LITTLE_MB, **LARGE_BATCH)
    events = [
        f"{event.name}: {event.text.splitlines()[0]}"
        for event in read_events(little)
        if event.name.startswith("producer")
    ]
    same = read_story(little) == read_story(enough)
    record_property("summary", [*events, f"losses and weights equal those of enough memory bit for bit: {same}"])
    assert any(event.startswith("producer shrunk") for event in events), events
    assert read_story(little) == read_story(enough)
