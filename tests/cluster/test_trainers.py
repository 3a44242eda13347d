"""The driver of several trainers, with a cluster that only answers: signals that come early, errors of Ray, and how often all start again."""

from __future__ import annotations

import json
import os
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from myxtts.cluster import trainers
from myxtts.cluster.trainers import MOST_RESTARTS, Trainer, train_on_cluster
from myxtts.config import XTTSConfig, resolve_config
from myxtts.errors import ClusterError, ConfigError, MachineError
from myxtts.training.peers import choose_gpu
from myxtts.training.stopping import StopNow, StopRequests


class RayError(Exception):
    pass


class RayTaskError(RayError):
    pass


class GetTimeoutError(RayError):
    pass


class FakeRay:
    """Every trainer gives its address at once, then says what it is told to by `say(session, index)`: lines, at last a code or an error."""

    exceptions = SimpleNamespace(RayError=RayError, RayTaskError=RayTaskError, GetTimeoutError=GetTimeoutError)

    def __init__(self, say: Callable[[int, int], list[Any]], gpus: int = 0):
        self.say, self.gpus = say, gpus
        self.started, self.killed = 0, 0
        self.words: list[list[str]] = []
        self.signals: list[int] = []
        self.address: Any = "127.0.0.1:1"

    def cluster_resources(self) -> dict[str, float]:
        return {"GPU": self.gpus}

    def remote(self, kind: type) -> Any:
        return SimpleNamespace(options=lambda **needs: SimpleNamespace(remote=self._start))

    def _start(self) -> Any:
        session, index = divmod(self.started, 2)
        self.started += 1

        def run(words: list[str], folder: str, told: str) -> Iterator[Any]:
            self.words.append(words)
            return iter(self.say(session, index))

        return SimpleNamespace(
            find_address=SimpleNamespace(remote=lambda: self.address),
            run=SimpleNamespace(options=lambda **options: SimpleNamespace(remote=run)),
            send=SimpleNamespace(remote=self.signals.append),
        )

    def wait(self, refs: list[Any], timeout: float, num_returns: int = 1) -> tuple[list[Any], list[Any]]:
        return refs[:num_returns], refs[num_returns:]

    def get(self, ref: Any, timeout: float = 0) -> Any:
        for each in ref if isinstance(ref, list) else [ref]:
            if isinstance(each, Exception):
                raise each
        return ref

    def kill(self, actor: Any) -> None:
        self.killed += 1


def make_config(*flags: str) -> XTTSConfig:
    from myxtts.cli.main import make_parser

    words = ["--train-data", "corpus", "--cluster", "10.0.0.1:6379", "--trainers", "2", *flags]
    return resolve_config(flags=make_parser("train", "train").parse_all(words).given, environ={})


def drive(monkeypatch: pytest.MonkeyPatch, ray: FakeRay, stop: Any = None) -> tuple[int, list[str]]:
    """The exit code of a driver, and what it said."""

    @contextmanager
    def join(address: str, cpus: int) -> Iterator[Any]:
        yield ray

    head = SimpleNamespace(
        address="10.0.0.1:6379", look=lambda: None, end=lambda actors: [ray.kill(each) for each in actors]
    )
    monkeypatch.setattr(trainers, "join_cluster", join)
    monkeypatch.setattr(trainers, "HeadWatch", lambda ray: head)
    said: list[str] = []
    command = ["myxtts", "train"]
    code = train_on_cluster(
        make_config(),
        ["--preparers", "4"],
        command,
        lambda at, line: said.append(f"[{at}] {line}"),
        stop or StopRequests(),
    )
    assert ray.killed == ray.started
    return code, said


def test_trainers_that_die_again_and_again_are_started_a_bounded_number_of_times(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    ray = FakeRay(lambda session, index: [f"session {session}", 1 if index else 0])
    code, said = drive(monkeypatch, ray)
    assert code == 1
    assert ray.started == 2 * (1 + MOST_RESTARTS)
    assert sum("start again" in line for line in said) == MOST_RESTARTS
    assert ["--resume" in words for words in ray.words[::2]] == [False, True, True, True]
    assert all(words.count("--preparers") == 1 for words in ray.words), "each trainer divides the number by itself"


def test_a_trainer_that_is_lost_is_started_again(monkeypatch: pytest.MonkeyPatch) -> None:
    ray = FakeRay(lambda session, index: [RayError("its machine died")] if session == 0 else [0])
    assert drive(monkeypatch, ray)[0] == 0
    assert ray.started == 4


def test_what_cannot_begin_names_the_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    lost = RayTaskError("ray::Trainer.run()\n  File ...\nFileNotFoundError: No such file or directory: '/data/work'")
    with pytest.raises(
        ClusterError, match=r"^Trainer 0 cannot begin: FileNotFoundError: .*'/data/work'\. Every machine needs"
    ):
        drive(monkeypatch, FakeRay(lambda session, index: [lost]))
    ray = FakeRay(lambda session, index: [0])
    ray.address = RayError("The actor died\nModuleNotFoundError: No module named 'myxtts'\n")
    with pytest.raises(
        ClusterError, match=r"^A trainer cannot begin: ModuleNotFoundError: No module named 'myxtts'\. "
    ):
        drive(monkeypatch, ray)


def test_what_cannot_begin_any_more_is_not_the_users_mistake(monkeypatch: pytest.MonkeyPatch) -> None:
    def say(session: int, index: int) -> list[Any]:
        ray.address = GetTimeoutError("no room")
        return [-9]

    ray = FakeRay(say)
    with pytest.raises(MachineError, match="has not found room for 2 trainers"):
        drive(monkeypatch, ray)


def test_a_signal_before_trainers_begin_ends_the_driver(monkeypatch: pytest.MonkeyPatch) -> None:
    ray, stop = FakeRay(lambda session, index: [0]), StopRequests()
    stop.signal = signal.SIGTERM
    with pytest.raises(StopNow):
        drive(monkeypatch, ray, stop)
    assert ray.words == []


@pytest.fixture
def actor(monkeypatch: pytest.MonkeyPatch) -> Trainer:
    monkeypatch.setitem(sys.modules, "ray", SimpleNamespace(get_gpu_ids=list))
    monkeypatch.setattr(trainers, "HeadWatch", lambda ray: SimpleNamespace(end_process=lambda: None))
    return Trainer()


@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, os.EX_TEMPFAIL), (signal.SIGINT, 130)])
def test_a_trainer_that_is_asked_to_stop_before_it_begins_does_not_begin(
    actor: Trainer, tmp_path: Path, number: int, code: int
) -> None:
    actor.send(number)
    assert list(actor.run([], str(tmp_path / "is not looked for"), "")) == [code]


def test_a_trainer_that_dies_of_the_signal_because_it_cannot_listen_yet_was_asked_to_stop(
    actor: Trainer, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    # A Python that waits for ever before it has come to anything of ours.
    (tmp_path / "sitecustomize.py").write_text("import time\nprint('begun', flush=True)\ntime.sleep(600)\n")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    said = actor.run([], str(tmp_path), json.dumps([["127.0.0.1:1"], 0, []]))
    assert next(said) == "begun"
    assert actor._child is not None
    with actor._child:
        actor.send(signal.SIGTERM)
        assert list(said) == [os.EX_TEMPFAIL]


@pytest.mark.parametrize(("gpus", "flags", "expected"), [
    (0, [], False), (1, [], True), (5, ["--trainers", "2"], False), (6, ["--trainers", "2"], True),
    (6, ["--trainers", "2", "--model-gpus", "0,1"], False), (8, ["--trainers", "2", "--model-gpus", "0,1"], True),
    (9, ["--rehearsal"], False),
])  # fmt: skip
def test_preparers_leave_trainers_their_cards(gpus: int, flags: list[str], expected: bool) -> None:
    config = make_config("--trainers", "1", "--preparers", "4", *flags)
    assert choose_gpu(FakeRay(lambda session, index: [], gpus), config) is expected


def test_preparers_that_cannot_be_divided_equally_are_refused() -> None:
    with pytest.raises(ConfigError, match=r"is 3, which cannot be divided equally among 2 trainers\. Give a multiple"):
        make_config("--preparers", "3")
