"""A measurement in a process of its own: it answers, or is ended at its limit with the place where it hangs."""

from __future__ import annotations

import psutil
import pytest

from myxtts.data.workers import Task
from myxtts.training.modes import measuring_process
from myxtts.training.modes.measuring_process import MeasuringError, MeasuringKilledError, measure_in_process

WORK = "tests.training.measuring_work"
LONG_S = 120.0


@pytest.fixture(autouse=True)
def nothing_is_left():
    before = set(psutil.Process().children())
    yield
    assert set(psutil.Process().children()) == before


def test_what_is_measured_is_the_answer():
    assert measure_in_process(Task(f"{WORK}:make_answer"), 7, "a test") == {"seen": 7}


@pytest.mark.parametrize("given", [None, "3"])
@pytest.mark.parametrize("name", ["OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS"])
def test_a_measured_run_has_the_threads_that_any_run_has(monkeypatch, name, given):
    monkeypatch.delenv(name, raising=False)
    if given is not None:
        monkeypatch.setenv(name, given)
    assert measure_in_process(Task(f"{WORK}:make_environment_reader"), name, "a test") == {"value": given}


def test_a_measurement_that_is_killed_is_told_apart_from_one_that_fails():
    with pytest.raises(MeasuringKilledError, match="died of signal 9, as a process does that runs out of memory"):
        measure_in_process(Task(f"{WORK}:make_killed"), 7, "a test")


def test_a_measurement_that_hangs_is_ended_at_its_limit_with_its_stack():
    with pytest.raises(MeasuringError) as caught:
        measure_in_process(Task(f"{WORK}:make_hanging"), 7, "--mode auto", import_s=LONG_S, limit_s=0.2)
    said = str(caught.value)
    assert said.startswith("Measuring for --mode auto hangs: its process had not measured after 0.2 s")
    assert "hang_for_ever" in said, "its stack"


def test_a_process_that_hangs_before_it_measures_has_a_limit_of_its_own():
    with pytest.raises(MeasuringError, match=r"had not imported what it needs after 0\.5 s"):
        measure_in_process(Task(f"{WORK}:hang_while_loading"), 7, "--mode auto", import_s=0.5, limit_s=LONG_S)


def test_whoever_stops_a_measurement_leaves_no_process(monkeypatch):
    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(measuring_process, "await_answer", interrupt)
    with pytest.raises(KeyboardInterrupt):
        measure_in_process(Task(f"{WORK}:make_hanging"), 7, "--mode auto")
