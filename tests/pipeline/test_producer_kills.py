"""The producer is killed with SIGKILL again and again: the batches are those of an undisturbed run."""

import random
import threading

import pytest

from tests.pipeline.producers import assert_all_right, list_kinds, make_producer, take_all

POSITIONS = 60
KILLS = 20


class Killer:
    """Kills a producer's process from a thread of its own, so that it strikes wherever the process happens to be."""

    def __init__(self, producer, seed):
        self._producer = producer
        self._random = random.Random(seed)
        self._thread = None
        self._last_victim = None
        self._is_over = threading.Event()
        self.kills = 0

    def strike(self):
        """Begins a kill if the last one is done; sometimes its successor is killed as well, while it starts."""
        if self._thread is not None and self._thread.is_alive():
            return
        delays = [self._random.choice([0.0, self._random.uniform(0, 0.03)])]
        if self._random.random() < 0.3:
            delays.append(self._random.uniform(0, 0.4))
        self._thread = threading.Thread(target=self._kill, args=[delays])
        self._thread.start()

    def finish(self):
        self._is_over.set()
        self._thread.join()

    def _kill(self, delays):
        for delay in delays:
            while self._producer._process in (None, self._last_victim) and not self._is_over.wait(0.001):
                pass
            self._is_over.wait(delay)
            victim = self._producer._process
            if self._is_over.is_set() or self.kills == KILLS or victim is None or victim.has_ended():
                return
            victim.kill()
            self._last_victim = victim
            self.kills += 1


def run_with_kills(seed):
    with make_producer(end_position=POSITIONS, more={"pause_s": 0.004}) as producer:
        killer = Killer(producer, seed)

        def strike_now_and_then(position):
            if killer.kills < KILLS:
                killer.strike()

        batches = take_all(producer, strike_now_and_then)
        killer.finish()
        # A batch at which two producers happen to be killed is made of other clips.
        assert_all_right(batches, range(POSITIONS), producer.replaced)
        assert len(producer.replaced) <= KILLS // 2
        assert killer.kills == KILLS
        # Kills are over well before the last batch, so every one of them is noticed.
        assert list_kinds(producer).count("died") == KILLS


def test_twenty_kills_at_random_change_nothing():
    run_with_kills(seed=0)


@pytest.mark.soak
@pytest.mark.parametrize("seed", range(1, 11))
def test_two_hundred_kills_at_random_change_nothing(seed):
    run_with_kills(seed)


def run_killed_before_line(line, path):
    """Whether the process was killed before its last batch had arrived; either way the batches must be right."""
    settings = {"line": line, "once": str(path / f"{line}")}
    with make_producer(factory="tests.pipeline.tasks:make_mortal", end_position=3, more=settings) as producer:
        assert_all_right(take_all(producer), range(3))
        return list_kinds(producer).count("died") == 1


@pytest.mark.parametrize("line", [1, 77, 158, 301, 400])
def test_a_kill_before_a_line_of_the_engine_changes_nothing(line, tmp_path):
    assert run_killed_before_line(line, tmp_path)


@pytest.mark.soak
def test_a_kill_before_any_line_of_the_engine_changes_nothing(tmp_path):
    line = 1
    while run_killed_before_line(line, tmp_path):
        line += 1
    assert line > 300
