"""Hosts in network namespaces: processes and hosts die, cables are pulled, and every run ends as if nothing had happened."""

from __future__ import annotations

import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from benchmarks.hosts import Hosts, find_obstacle
from benchmarks.preparers import measure, open_cluster
from tests.support.processes import ROOT
from tests.support.tiny_run import TinyRun, count_steps, make_corpus, run_tiny, tiny_words, wait_for

pytestmark = [
    pytest.mark.soak,
    pytest.mark.skipif(find_obstacle() is not None, reason=f"no hosts can be made: {find_obstacle()}"),
]

STEPS = 2000
"""A minute, so that every strike falls into the run."""
ENDS_S = 90.0
"""Within which everything is over once the head is gone."""


@pytest.fixture(scope="module")
def folder() -> Iterator[Path]:
    # A short path: sockets lie in it.
    with tempfile.TemporaryDirectory(prefix="mx", dir="/tmp") as name:
        yield Path(name)


@pytest.fixture(scope="module")
def corpus(folder: Path) -> Path:
    return make_corpus(folder / "corpus")


@pytest.fixture(scope="module")
def plain(folder: Path, corpus: Path) -> TinyRun:
    """The run that all others must equal."""
    return run_tiny(folder / "plain", *_choose_flags(corpus), mode="isolated")


def _choose_flags(corpus: Path, steps: int = STEPS) -> list[object]:
    often = ["--codec-steps", 2, "--checkpoint-interval", 500]
    return ["--train-data", corpus, "--max-steps", steps, "--epochs", steps, *often]


def _start_run(hosts: Hosts, folder: Path, corpus: Path, name: str) -> subprocess.Popen[bytes]:
    words = tiny_words(
        folder / name, *_choose_flags(corpus), "--cluster", hosts.address, "--preparers", 2, mode=None
    )  # fmt: skip
    return hosts.start(0, [sys.executable, ROOT / "train_main.py", *words], f"{name}.log")


def _wait_for_step(run: Path, step: int, program: subprocess.Popen[bytes]) -> None:
    wait_for(lambda: count_steps(run) >= step, lambda: program.poll() is None, "the run ended before its time")
    assert count_steps(run) < STEPS, "too late to strike"


def _wait_for_the_end(hosts: Hosts, number: int) -> None:
    """Of all preparers on a host."""
    began_s = time.monotonic()
    while hosts.find(number, "ray::Preparer"):
        assert time.monotonic() - began_s < ENDS_S
        time.sleep(0.5)


def test_what_was_promised_of_speed_and_gaps_is_kept() -> None:
    with open_cluster() as hosts:
        missed = [(title, figure, bar) for title, figure, bar, is_met in measure(hosts, 200) if not is_met]
    assert missed == []


def test_killed_preparers_a_pulled_cable_and_a_dead_host_change_nothing(
    folder: Path, corpus: Path, plain: TinyRun
) -> None:
    with open_cluster() as hosts:
        program = _start_run(hosts, folder, corpus, "struck")
        run = folder / "struck"
        _wait_for_step(run, 200, program)
        assert hosts.kill(1, "ray::Preparer")
        _wait_for_step(run, 500, program)
        hosts.cut(1)
        time.sleep(10)
        hosts.mend(1)
        # The head took it for dead. A new preparer comes while the run goes on.
        hosts.restart_ray(1)
        _wait_for_step(run, 1000, program)
        hosts.lose_power(2)
        _wait_for_step(run, 1100, program)
        hosts.mend(2)
        hosts.start_ray(2)
        _wait_for_step(run, 1400, program)
        # For good: nobody there is killed, and all of them end by themselves.
        hosts.cut(1)
        assert program.wait(600) == 0, (hosts.folder / "struck.log").read_text()[-4000:]
        _wait_for_the_end(hosts, 1)
    found = TinyRun.at(run)
    assert found.story == plain.story
    assert sum("died" in event.name for event in found.events) >= 2


def test_without_its_head_a_run_ends_soon_and_says_how_to_go_on(folder: Path, corpus: Path, plain: TinyRun) -> None:
    run = folder / "headless"
    with open_cluster(1) as hosts:
        program = _start_run(hosts, folder, corpus, "headless")
        _wait_for_step(run, 700, program)
        began_s = time.monotonic()
        assert hosts.kill(0, "gcs_server")
        assert program.wait(ENDS_S) != 0
        assert time.monotonic() - began_s < ENDS_S
        said = (hosts.folder / "headless.log").read_text()
        assert re.search(r"To go on from the last checkpoint:\n  python train_main\.py .*--cluster", said), said[-4000:]
        _wait_for_the_end(hosts, 1)
    with open_cluster(1) as hosts:
        assert _start_run(hosts, folder, corpus, "headless").wait(600) == 0
    assert TinyRun.at(run).story == plain.story


def test_preparers_end_with_a_killed_driver(folder: Path, corpus: Path) -> None:
    with open_cluster(1) as hosts:
        program = _start_run(hosts, folder, corpus, "driverless")
        _wait_for_step(folder / "driverless", 200, program)
        assert hosts.kill(0, "train_main.py")
        _wait_for_the_end(hosts, 1)


def test_codes_that_preparers_make_are_those_a_run_would_make_and_are_made_once(folder: Path, corpus: Path) -> None:
    codec = ["--codec", run_tiny(folder / "codec", *_choose_flags(corpus, 2), "--stage", "codec").folder]
    words = ["--rehearsal", "--deterministic", "--num-workers", 0, "--train-data", corpus, *codec, "--preparers", 2]
    said = []
    with open_cluster() as hosts:
        for number in range(2):
            command = [sys.executable, "-m", "myxtts.cli.main", "data-prepare", *words, "--cluster", hosts.address]
            program = hosts.start(0, command, f"prepare-{number}.log")
            # One is killed as soon as there is one, at whatever it is.
            killed = number
            while not killed and program.poll() is None:
                killed = hosts.kill(1, "ray::Preparer")
                time.sleep(0.1)
            assert killed, "too late to strike"
            assert program.wait(600) == 0, (hosts.folder / f"prepare-{number}.log").read_text()[-4000:]
            said.append((hosts.folder / f"prepare-{number}.log").read_text())
    assert "25 codes made, 0 were there already" in said[0]
    assert "0 codes made, 25 were there already" in said[1]
    shards = sorted(corpus.glob(".myxtts/codes/*/*.npz"))
    assert shards
    flags = [*_choose_flags(corpus, 30), *codec]
    kept, made = (run_tiny(folder / cache, *flags, **{"data.cache": cache}) for cache in ("disk", "off"))
    assert kept.story == made.story
    assert sorted(corpus.glob(".myxtts/codes/*/*.npz")) == shards, "the run made none"


def test_trainers_on_two_hosts_lose_one_and_have_the_losses_of_one_process(folder: Path, corpus: Path) -> None:
    codec = run_tiny(folder / "spoken", *_choose_flags(corpus, 2), "--stage", "codec").folder
    # Without dropout, whose masks are drawn for a trainer's own rows.
    flags, exact = [*_choose_flags(corpus, 12), "--codec", codec, "--checkpoint-interval", 4], {"model.dropout": 0}
    alone, run = run_tiny(folder / "alone", *flags, **exact), folder / "shared"
    with open_cluster() as hosts:
        words = tiny_words(run, *flags, "--cluster", hosts.address, "--trainers", 2, **exact)
        program = hosts.start(0, [sys.executable, ROOT / "train_main.py", *words], "shared.log")
        wait_for(lambda: count_steps(run) >= 5, lambda: program.poll() is None, "the run ended before its time")
        trainers = [hosts.find(number, "myxtts.cli.main train") for number in (1, 2)]
        assert all(trainers), "each host trains"
        assert hosts.kill(1, "myxtts.cli.main train")
        assert program.wait(600) == 0, (hosts.folder / "shared.log").read_text()[-4000:]
        said = (hosts.folder / "shared.log").read_text()
    assert "start again from the last checkpoint, 1. time" in said
    assert "TensorFlow listens at port" in said
    found = dict(TinyRun.at(run).losses)
    assert found == {step: pytest.approx(loss, rel=2e-5) for step, loss in alone.losses}
