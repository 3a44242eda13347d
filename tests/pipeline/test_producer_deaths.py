"""Every way in which a producer process can die, and what becomes of the run."""

import os
import re
import signal
import threading
import time

import psutil
import pytest

from myxtts.errors import ProducerFailedError
from myxtts.pipeline import producer_client
from myxtts.pipeline.handoff import EndOfStream
from myxtts.pipeline.producer import Committed, Ready
from myxtts.pipeline.stage import TimeLimits
from tests.pipeline.producers import assert_all_right, list_kinds, make_producer, take_all
from tests.pipeline.tasks import ROWS, SUBSTITUTE

IMPATIENT = TimeLimits(steady_s=1.0)
"""Only for batches after the first: everything before them may take its time on a busy machine."""


def list_reasons(producer, kind):
    return [event.reason for event in producer.events if event.kind == kind]


@pytest.mark.parametrize(
    ("deed", "position"),
    [("kill", 0), ("kill", 5), ("kill", 11), ("segfault", 5), ("abort", 5), ("exit", 5), ("fork", 5)],
)
def test_a_death_costs_nothing_but_time(tmp_path, deed, position):
    fault = {"do": deed, "clip": position * ROWS + 3, "once": str(tmp_path / "done")}
    with make_producer(fault) as producer:
        assert_all_right(take_all(producer), range(12))
        assert list_kinds(producer) == ["started", "ready", "died", "started", "ready"]
        death = producer.events[2]
    assert death.position == position
    names = {"kill": "SIGKILL", "segfault": "SIGSEGV", "abort": "SIGABRT", "exit": "exit code 3", "fork": "SIGKILL"}
    assert names[deed] in death.reason
    assert f"in stage 'row' of batch {position}" in death.reason
    # It may die before its memory was read for the first time; unknown is unknown then.
    assert re.search(r"reading: (memory unknown|\d.* MB resident)", death.reason)


@pytest.mark.parametrize("stage", ["load", "warm-up"])
def test_a_death_before_the_first_batch_blames_no_batch(tmp_path, stage):
    with make_producer({"do": "kill", "stage": stage, "once": str(tmp_path / "done")}) as producer:
        assert_all_right(take_all(producer), range(12))
        (death,) = [event for event in producer.events if event.kind == "died"]
    assert death.position is None
    assert f"in stage '{stage}'" in death.reason


@pytest.fixture
def two_restarts(monkeypatch):
    """The limit of restarts, lowered: each of them takes its time."""
    monkeypatch.setattr(producer_client, "MOST_RESTARTS", 2)


@pytest.mark.usefixtures("two_restarts")
def test_a_producer_that_never_gets_anywhere_is_given_up():
    with (
        make_producer({"do": "kill", "stage": "warm-up"}) as producer,
        pytest.raises(ProducerFailedError, match=r"died 3 times without preparing a batch. Last: .*'warm-up'"),
    ):
        producer.take()


def test_batches_committed_before_a_death_are_still_handed_on():
    with make_producer() as producer:
        position, _ = producer.take()
        assert position == 0
        while len(producer._slots.list_granted()) > 0:
            # The three slots: one taken, two committed.
            producer._heed(producer._process.wait(producer._interrupt))
        os.kill(producer.pid, signal.SIGKILL)
        psutil.Process(producer.pid).wait()
        first_pid = producer.pid
        positions = [producer.take().position for _ in range(2)]
        assert positions == [1, 2]
        assert producer.pid != first_pid, "the next producer is started before it is needed"
        assert list_kinds(producer)[-1] == "started"


def test_a_death_after_the_last_batch_is_noted_and_nothing_is_restarted():
    with make_producer(end_position=3) as producer:
        for _ in range(3):
            producer.take()
        os.kill(producer.pid, signal.SIGKILL)
        psutil.Process(producer.pid).wait()
        with pytest.raises(EndOfStream):
            producer.take()
        assert list_kinds(producer) == ["started", "ready", "died"]


def test_a_hanging_producer_is_killed_and_its_stack_reported(tmp_path):
    fault = {"do": "hang natively", "position": 5, "once": str(tmp_path / "done"), "report": "resample"}
    with make_producer(fault, time_limits=IMPATIENT) as producer:
        assert_all_right(take_all(producer), range(12))
    hangs = [event for event in producer.events if event.kind == "died" and event.position == 5]
    assert hangs[0].reason.startswith(
        "hang (said nothing for 1 s) in stage 'resample' of batch 5; last memory reading: "
    )
    assert "_hang_natively" in hangs[0].report


def test_the_time_limits_are_those_of_what_the_producer_is_doing(tmp_path):
    limits = TimeLimits(start_s=1000, import_s=1000, first_s=2.0, steady_s=1000)
    fault = {"do": "hang", "stage": "warm-up", "once": str(tmp_path / "done")}
    with make_producer(fault, time_limits=limits) as producer:
        producer.take()
        assert list_reasons(producer, "died")[0].startswith("hang (said nothing for 2 s) in stage 'warm-up'")


def test_the_silence_while_nobody_listens_is_not_a_hang():
    with make_producer(end_position=1, time_limits=TimeLimits(first_s=60.0)) as producer:
        process = producer._process
        while not isinstance(process.wait(producer._interrupt), Ready):
            pass
        os.kill(process.pid, signal.SIGSTOP)
        # The trainer was busy with something else for longer than the limit.
        process._clock = lambda: time.monotonic() + 1000.0
        timer = threading.Timer(0.2, os.kill, [process.pid, signal.SIGCONT])
        timer.start()
        assert isinstance(process.wait(producer._interrupt), Committed)
        timer.join()


def test_a_batch_that_kills_twice_is_made_of_other_clips(caplog):
    with make_producer({"do": "kill", "clip": 4 * ROWS + 3}) as producer:
        assert_all_right(take_all(producer), range(12), [4])
        assert producer.replaced == [4]
        assert list_kinds(producer).count("died") == 2
    names = ", ".join(f"clip {4 * ROWS + row}" for row in range(ROWS))
    assert list_reasons(producer, "replaced") == [names]
    assert caplog.text.count(f"Batch 4 killed two producers: its {ROWS} clips are replaced: {names}.") == 1


def test_two_batches_that_kill_and_substitutes_that_kill_too(caplog):
    deadly = [ROWS + 1, ROWS + 2 + SUBSTITUTE, 2 * ROWS]
    with make_producer(*({"do": "kill", "clip": clip} for clip in deadly), end_position=4) as producer:
        batches = take_all(producer)
        assert producer.replaced == [1, 1, 2]
        assert_all_right(batches, range(4), producer.replaced)
    assert list_reasons(producer, "replaced")[1].startswith(f"clip {ROWS + SUBSTITUTE}, ")
    assert caplog.text.count("killed two producers") == 3, "told once, though every producer is told all of it"


def test_a_batch_that_kills_with_any_clips_ends_the_run():
    with (
        make_producer({"do": "kill", "position": 3}) as producer,
        pytest.raises(
            ProducerFailedError, match=r"died \d+ times .* its clips were replaced 4 times. Last: .*of batch 3"
        ),
    ):
        take_all(producer)
    assert set(producer.replaced) == {3}


@pytest.mark.soak
def test_a_batch_that_hangs_twice_is_made_of_other_clips_as_well():
    limits = TimeLimits(first_s=2.0, steady_s=1.0)
    with make_producer({"do": "hang", "clip": 1 * ROWS}, end_position=3, time_limits=limits) as producer:
        assert_all_right(take_all(producer), range(3), [1])


@pytest.mark.parametrize("deed", ["memory", "exhaust"])
def test_running_out_of_memory_halves_the_preparation_batch(deed):
    with make_producer({"do": deed, "position": 5, "above": 3}, batch=16) as producer:
        assert_all_right(take_all(producer), range(12))
        assert producer.preparation_batch == 2
        assert list_reasons(producer, "shrunk") == [
            "preparation batch 8 after 16",
            "preparation batch 4 after 8",
            "preparation batch 2 after 4",
        ]
        assert {reason.split(" (")[0] for reason in list_reasons(producer, "died")} == {"out of memory"}


def test_running_out_of_memory_with_one_row_at_a_time_ends_the_run():
    with (
        make_producer({"do": "memory", "position": 5}, batch=2) as producer,
        pytest.raises(ProducerFailedError, match=r"one clip at a time does not fit.*--data-gpu-memory.*of batch 5"),
    ):
        take_all(producer)


def test_an_enforced_limit_makes_the_task_run_out_of_memory():
    # The limit leaves no room for an array of 1 GB; smaller preparation batches do not make one.
    fault = {"do": "allocate", "position": 5, "above": 4}
    with make_producer(fault, batch=8, memory_limit_bytes=256 << 20) as producer:
        assert_all_right(take_all(producer), range(12))
        assert producer.preparation_batch == 4
        (reason,) = list_reasons(producer, "died")
    assert reason.startswith("out of memory (")
    assert "Unable to allocate 1.00 GiB" in reason


def test_what_was_imported_does_not_count_towards_the_limit():
    with make_producer(memory_limit_bytes=16 << 20, end_position=3) as producer:
        assert_all_right(take_all(producer), range(3))
        assert psutil.Process(producer.pid).memory_info().rss > 16 << 20


def test_a_limit_that_is_passed_by_warming_up_alone_is_named():
    with (
        make_producer({"do": "hold", "stage": "warm-up"}, memory_limit_bytes=16 << 20, batch=1) as producer,
        pytest.raises(ProducerFailedError, match=r"in use after warm-up; the limit is 16.0 MB\) in stage 'warm-up'"),
    ):
        producer.take()


@pytest.mark.parametrize("deed", ["segfault", "abort"])
def test_a_crash_under_a_limit_is_probably_out_of_memory(deed):
    with make_producer({"do": deed, "position": 5, "above": 2}, batch=8, memory_limit_bytes=1 << 30) as producer:
        assert_all_right(take_all(producer), range(12))
        assert producer.preparation_batch == 2
        reasons = list_reasons(producer, "died")
    assert len(reasons) == 2
    assert all(reason.startswith("probably out of memory (SIG") and "of batch 5" in reason for reason in reasons)


def test_a_kill_under_a_limit_is_not_taken_for_memory(tmp_path):
    fault = {"do": "kill", "position": 5, "once": str(tmp_path / "done")}
    with make_producer(fault, batch=8, memory_limit_bytes=1 << 30) as producer:
        assert_all_right(take_all(producer), range(12))
        assert producer.preparation_batch == 8
