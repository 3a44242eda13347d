"""Every batch is handed on once and in order, whoever of the preparers dies, hangs or is late. With actors that only pretend."""

from __future__ import annotations

import logging
import random
import time
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from myxtts.cluster import preparers
from myxtts.cluster.preparer import Failed, Made
from myxtts.cluster.preparers import PreparerPool
from myxtts.errors import ProducerFailedError
from myxtts.pipeline.recipe import Kit
from myxtts.pipeline.threads import EndOfStream, Stopped, TimeLimits

END = 30


class ActorDied(Exception):
    pass


class Ref:
    """An answer that is to come: `read` gives it or raises; None while there is none."""

    def __init__(self, read: Callable[[], Any]):
        self.read = read


class Actor:
    """Pretends to be a preparer. `behave(actor, number)` returns the answer, raises, or returns None to stay silent."""

    def __init__(self, ray: FakeRay, number: int):
        self.ray, self.number, self.is_dead = ray, number, False
        self.asked: list[int] = []
        self.made: dict[int, Any] = {}
        self.replaced: tuple[int, ...] = ()
        self.rows: int | None = None

    def __getattr__(self, name: str) -> Any:
        return SimpleNamespace(remote=getattr(self, f"do_{name}"))

    def do_begin(self, kit: Any, rows: int | None) -> Ref:
        self.rows = rows
        return self._answer(lambda: ("host", "/CPU:1"))

    def do_prepare(self, number: int, replaced: tuple[int, ...]) -> Ref:
        self.asked.append(number)

        def make() -> Any:
            # One after another, as the preparing thread does.
            first = next((each for each in self.asked if each not in self.made), None)
            if number in self.made or number != first:
                return self.made.get(number)
            self.replaced = replaced
            made = self.ray.behave(self, number)
            if made is not None:
                self.made[number] = made
            return made

        return self._answer(make)

    def do_close(self) -> Ref:
        return self._answer(lambda: "closed")

    def _answer(self, read: Callable[[], Any]) -> Ref:
        def check() -> Any:
            if self.is_dead:
                raise ActorDied(self.ray.reason)
            return read()

        return Ref(check)


def answer(actor: Actor, number: int) -> Made:
    return Made({"number": np.array([number])}, 0.0, 0.001)


class FakeRay:
    exceptions = SimpleNamespace(RayError=ActorDied, RayActorError=ActorDied)

    def __init__(self, behave: Callable[[Actor, int], Any] = answer):
        self.behave, self.reason = behave, "killed by a test\nin two lines"
        self.draw = random.Random(5)
        self.actors: list[Actor] = []

    def remote(self, kind: type) -> Any:
        return self

    def options(self, **needs: Any) -> Any:
        def start() -> Actor:
            self.actors.append(Actor(self, len(self.actors)))
            return self.actors[-1]

        return SimpleNamespace(remote=start)

    def put(self, value: Any) -> Any:
        return value

    def cluster_resources(self) -> dict[str, float]:
        return {}

    def get_runtime_context(self) -> Any:
        return SimpleNamespace(gcs_address="127.0.0.1:9")

    def kill(self, actor: Actor) -> None:
        actor.is_dead = True

    def wait(self, refs: list[Ref], timeout: float, num_returns: int = 1) -> tuple[list[Ref], list[Ref]]:
        end = time.perf_counter() + timeout
        while True:
            # In any order: those asked last may answer first.
            for ref in self.draw.sample(refs, len(refs)):
                try:
                    is_there = ref.read() is not None
                except ActorDied:
                    is_there = True
                if is_there:
                    return [ref], [each for each in refs if each is not ref]
            if time.perf_counter() > end:
                return [], refs
            time.sleep(0.002)

    def get(self, ref: Ref) -> Any:
        return ref.read()


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(preparers, "LATE_S", 0.05)
    monkeypatch.setattr(preparers, "_LISTEN_S", 0.01)


def open_pool(ray: FakeRay, count: int = 2, micro_batches: int = 1, watchdog_s: float = 300.0) -> PreparerPool:
    return PreparerPool(
        ray,
        Kit({}, None, ""),
        range(END),
        count,
        uses_gpu=False,
        limits=TimeLimits.from_setting(watchdog_s),
        rows=8,
        room=max(3, 2 * micro_batches),
        follows=lambda number: number % micro_batches > 0,
    )


def take_all(pool: PreparerPool) -> list[int]:
    """The numbers of all batches, as their arrays say."""
    numbers = []
    try:
        while True:
            slot = pool.take()
            assert slot.arrays["number"].tolist() == [slot.position]
            numbers.append(slot.position)
            pool.release()
    except EndOfStream:
        return numbers
    finally:
        pool.close()


def test_batches_come_in_order_and_everybody_has_work() -> None:
    ray = FakeRay()
    pool = open_pool(ray, count=3)
    assert take_all(pool) == list(range(END))
    assert sorted(number for actor in ray.actors for number in actor.asked) == list(range(END))
    assert all(len(actor.asked) >= 5 for actor in ray.actors)
    assert all(actor.is_dead for actor in ray.actors), "nobody is left"


def test_what_a_dead_preparer_owed_is_asked_of_another_and_it_is_replaced(caplog: pytest.LogCaptureFixture) -> None:
    def behave(actor: Actor, number: int) -> Made | None:
        actor.is_dead |= actor.number == 0 and len(actor.asked) > 3
        if actor.is_dead:
            raise ActorDied("killed")
        return answer(actor, number)

    ray = FakeRay(behave)
    assert take_all(open_pool(ray)) == list(range(END))
    assert len(ray.actors) == 3
    assert ray.actors[2].asked, "the new one works too"
    assert "Preparer 1 on host died: killed by a test" in caplog.text


@pytest.mark.parametrize(("reason", "replaced"), [("killed", [5]), ("The actor's node has died", [])])
def test_a_batch_at_which_two_die_gets_other_clips_unless_their_machines_did(reason: str, replaced: list[int]) -> None:
    deaths = 2

    def behave(actor: Actor, number: int) -> Made | None:
        nonlocal deaths
        if number == 5 and deaths:
            deaths -= 1
            actor.is_dead = True
            raise ActorDied(reason)
        assert number != 5 or list(actor.replaced) == replaced
        return answer(actor, number)

    ray = FakeRay(behave)
    ray.reason = reason
    pool = open_pool(ray, count=1)
    assert take_all(pool) == list(range(END))
    assert [event.position for event in pool.events if event.kind == "replaced"] == replaced


def test_a_late_preparer_is_not_waited_for_and_works_again_when_it_answers(caplog: pytest.LogCaptureFixture) -> None:
    is_cut = True

    def behave(actor: Actor, number: int) -> Made | None:
        nonlocal is_cut
        if number >= 10:
            is_cut = False
        return None if actor.number == 0 and is_cut else answer(actor, number)

    ray = FakeRay(behave)
    caplog.set_level(logging.WARNING)
    pool = open_pool(ray)
    began_s = time.perf_counter()
    assert take_all(pool) == list(range(END))
    assert time.perf_counter() - began_s < 2.0
    assert "Preparer 1 on host has not answered" in caplog.text
    first, second = ray.actors
    owed_at_once = set(first.asked[:3])
    assert owed_at_once <= set(second.asked), "all of it was asked of the other one"
    assert max(first.asked) > 10, "it is asked again once it has answered"
    assert len(ray.actors) == 2


def test_one_that_hangs_for_good_is_replaced() -> None:
    ray = FakeRay(lambda actor, number: None if actor.number == 0 else answer(actor, number))
    pool = open_pool(ray, count=1, watchdog_s=0.1)
    assert take_all(pool) == list(range(END))
    assert ray.actors[0].is_dead
    assert any("said nothing for" in event.reason for event in pool.events)
    assert not [event for event in pool.events if event.kind == "late"], "there is nobody else to ask"


def test_an_error_of_the_work_ends_the_run_with_its_traceback() -> None:
    answers = [Failed("ReadingError: the disk is gone", "Traceback of there", ran_out=False)]
    pool = open_pool(FakeRay(lambda actor, number: answers.pop() if answers else answer(actor, number)))
    expected = r"(?s)^Preparer \d on host failed at batch .: .*disk is gone.*Traceback of there"
    for _ in range(2):
        with pytest.raises(ProducerFailedError, match=expected):
            pool.take()
    pool.close()


def test_one_that_dies_is_enough_to_go_on_and_deaths_between_which_batches_are_made_are_never_too_many() -> None:
    deaths = set(range(2, END, 2))

    def behave(actor: Actor, number: int) -> Made:
        if number in deaths:
            deaths.remove(number)
            actor.is_dead = True
            raise ActorDied("killed")
        return answer(actor, number)

    assert take_all(open_pool(FakeRay(behave), count=1)) == list(range(END))


def test_the_silence_of_a_time_in_which_nobody_listened_makes_nobody_late(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(preparers, "LATE_S", 0.5)
    pool = open_pool(FakeRay(), count=3)
    for _ in range(2):
        pool.take()
        pool.release()
        # The training saves a checkpoint.
        time.sleep(0.6)
    take_all(pool)
    assert not [event for event in pool.events if event.kind == "late"]


def test_one_that_runs_out_of_memory_prepares_fewer_rows_at_a_time() -> None:
    def behave(actor: Actor, number: int) -> Any:
        assert actor.rows is not None
        return Failed("ResourceExhaustedError", "", ran_out=True) if actor.rows > 2 else answer(actor, number)

    ray = FakeRay(behave)
    assert take_all(open_pool(ray, count=1)) == list(range(END))
    assert [actor.rows for actor in ray.actors] == [8, 4, 2]


def test_a_step_is_made_by_one_preparer_whose_clips_it_has_read() -> None:
    ray = FakeRay()
    pool = open_pool(ray, micro_batches=3)
    while len(pool.list_preparers()) < 2:
        pool._listen()
    assert take_all(pool) == list(range(END))
    makers = {number: actor.number for actor in ray.actors for number in actor.asked}
    assert all(makers[number] == makers[number - number % 3] for number in range(END))
    assert set(makers.values()) == {0, 1}


def test_who_waits_for_whom_is_told_of_each() -> None:
    def behave(actor: Actor, number: int) -> Made:
        return Made({"number": np.array([number])}, 0.25 if actor.number else 0.0, 0.001)

    ray = FakeRay(behave)
    pool = open_pool(ray)
    for _ in range(10):
        pool.take()
    facts = {each.name: each for each in pool.list_preparers()}
    assert set(facts) == {"Preparer 1 on host", "Preparer 2 on host"}
    assert sum(each.items for each in facts.values()) == 10
    assert facts["Preparer 1 on host"].giver_wait_s == 0.0
    assert facts["Preparer 2 on host"].giver_wait_s >= 0.25
    pool.close()
    with pytest.raises(Stopped):
        pool.take()
