"""Every way in which a producer process can end, and what becomes of the run: the batches are those of an undisturbed one."""

import os
import random
import re
import signal
import threading
import time

import psutil
import pytest

from myxtts.errors import ProducerFailedError
from myxtts.pipeline.producer import OUT_OF_MEMORY_EXIT_CODE, is_out_of_memory
from myxtts.pipeline.producer_client import MOST_RESTARTS, ExitCause, ProducerExit, Recovery, classify_exit
from myxtts.pipeline.threads import EndOfStream, TimeLimits
from myxtts.processes import ProcessMemory
from tests.pipeline.producers import (
    assert_all_right,
    list_kinds,
    list_reasons,
    list_replaced,
    open_producer,
    take_all,
)
from tests.pipeline.tasks import ROWS, SUBSTITUTE, ResourceExhaustedError

IMPATIENT = TimeLimits(steady_s=1.0)
"""Only for batches after the first: everything before them may take its time on a busy machine."""


@pytest.mark.parametrize(
    ("deed", "position", "name"),
    [
        ("kill", 0, "SIGKILL"),
        ("kill", 11, "SIGKILL"),
        ("segfault", 5, "SIGSEGV"),
        ("abort", 5, "SIGABRT"),
        ("exit", 5, "exit code 3"),
        ("fork", 5, "SIGKILL"),
    ],
)
def test_an_exit_costs_nothing_but_time(tmp_path, deed, position, name):
    fault = {"do": deed, "clip": position * ROWS + 3, "once": str(tmp_path / "done")}
    with open_producer(fault) as producer:
        assert_all_right(take_all(producer), range(12))
        assert list_kinds(producer) == ["started", "ready", "died", "started", "ready"]
        exit_ = producer.events[2]
    assert exit_.position == position
    assert name in exit_.reason
    assert f"in stage 'row' of batch {position}" in exit_.reason
    # It may die before its memory was read for the first time; unknown is unknown then.
    assert re.search(r"reading: (memory unknown|\d.* MB resident)", exit_.reason)


def kill_and_wait(producer):
    process = psutil.Process(producer.pid)
    process.kill()
    process.wait()


def test_batches_committed_before_an_exit_are_still_handed_on(tmp_path):
    hangs = tmp_path / "hangs"
    with open_producer({"do": "hang", "position": 3, "once": str(hangs)}) as producer:
        assert producer.take().position == 0
        producer.release()
        # In the fourth batch: two are committed by then, and nothing of them was taken.
        while not hangs.exists():
            time.sleep(0.01)
        kill_and_wait(producer)
        first_pid = producer.pid
        assert [producer.take().position for _ in range(2)] == [1, 2]
        assert producer.pid != first_pid, "the next producer is started before it is needed"
        assert list_kinds(producer).count("started") == 2


def test_an_exit_after_the_last_batch_is_noted_and_nothing_is_restarted():
    with open_producer(end_position=3) as producer:
        for _ in range(3):
            producer.take()
        kill_and_wait(producer)
        with pytest.raises(EndOfStream):
            producer.take()
        assert list_kinds(producer) == ["started", "ready", "died"]


@pytest.mark.parametrize(
    ("fault", "limits", "reason"),
    [
        ({"do": "hang natively", "position": 5, "report": "mix"}, IMPATIENT, "1 s) in stage 'mix' of batch 5"),
        ({"do": "hang", "stage": "warm-up"}, TimeLimits(1000, first_s=2.0, import_s=1000), "2 s) in stage 'warm-up'"),
    ],
)
def test_a_hanging_producer_is_killed_by_the_limit_of_what_it_does_and_its_stack_reported(
    tmp_path, fault, limits, reason
):
    with open_producer({**fault, "once": str(tmp_path / "done")}, time_limits=limits) as producer:
        assert_all_right(take_all(producer), range(12))
    hangs = [event for event in producer.events if event.reason.startswith(f"hang (said nothing for {reason}")]
    assert ("_hang_natively" in hangs[0].report) == (fault["do"] == "hang natively")


def test_the_silence_while_nobody_listens_is_not_a_hang():
    with open_producer(end_position=4, time_limits=IMPATIENT) as producer:
        producer.take()
        os.kill(producer.pid, signal.SIGSTOP)
        # The trainer is busy with something else for longer than the limit.
        time.sleep(1.5 * IMPATIENT.steady_s)
        timer = threading.Timer(0.2, os.kill, [producer.pid, signal.SIGCONT])
        timer.start()
        producer.release()
        assert_all_right(take_all(producer), range(1, 4))
        timer.join()
        assert list_kinds(producer).count("died") == 0


def test_a_task_that_says_the_same_again_and_again_is_not_hanging():
    # Its rows take twice the limit together.
    with open_producer({"do": "nothing"}, end_position=2, more={"pause_s": 0.4}, time_limits=IMPATIENT) as producer:
        assert_all_right(take_all(producer), range(2))
        assert list_kinds(producer) == ["started", "ready"]


def test_a_batch_that_kills_twice_is_made_of_other_clips(caplog):
    with open_producer({"do": "kill", "clip": 4 * ROWS + 3}) as producer:
        assert_all_right(take_all(producer), range(12), [4])
        assert list_kinds(producer).count("died") == 2
    names = ", ".join(f"clip {4 * ROWS + row}" for row in range(ROWS))
    assert list_reasons(producer, "replaced") == [names]
    assert caplog.text.count(f"Batch 4 killed two producers: its {ROWS} clips are replaced: {names}.") == 1


def test_two_batches_that_kill_and_substitutes_that_kill_too():
    deadly = [ROWS + 1, ROWS + 2 + SUBSTITUTE, 2 * ROWS]
    with open_producer(*({"do": "kill", "clip": clip} for clip in deadly), end_position=4) as producer:
        batches = take_all(producer)
    assert list_replaced(producer) == [1, 1, 2]
    assert_all_right(batches, range(4), [1, 1, 2])
    assert list_reasons(producer, "replaced")[1].startswith(f"clip {ROWS + SUBSTITUTE}, ")


def test_a_batch_that_kills_with_any_clips_ends_the_run():
    with (
        open_producer({"do": "kill", "position": 3}) as producer,
        pytest.raises(ProducerFailedError, match=r"died \d+ times .* were replaced 4 times. Last: .*of batch 3"),
    ):
        take_all(producer)
    assert set(list_replaced(producer)) == {3}


@pytest.mark.parametrize(
    ("deed", "above", "limit", "reason", "sizes"),
    [
        ("memory", 3, None, "out of memory (", [8, 4, 2]),
        ("exhaust", 3, None, "out of memory (", [8, 4, 2]),
        # The limit leaves no room for an array of 1 GB; smaller preparation batches do not make one.
        ("allocate", 8, 256 << 20, "out of memory (", [8]),
        ("segfault", 4, 1 << 30, "probably out of memory (SIGSEGV", [8, 4]),
        ("abort", 4, 1 << 30, "probably out of memory (SIGABRT", [8, 4]),
        ("kill", 0, 1 << 30, "signal (SIGKILL) ", []),
    ],
)
def test_running_out_of_memory_halves_the_preparation_batch(tmp_path, deed, above, limit, reason, sizes):
    fault = {"do": deed, "position": 5, "above": above}
    if not sizes:
        fault["once"] = str(tmp_path / "done")
    with open_producer(fault, batch=16, memory_limit_bytes=limit) as producer:
        assert_all_right(take_all(producer), range(12))
    shrunk = [f"preparation batch {size} after {2 * size}" for size in sizes]
    assert list_reasons(producer, "shrunk") == shrunk
    assert all(told.startswith(reason) and "of batch 5" in told for told in list_reasons(producer, "died"))
    assert len(list_reasons(producer, "died")) == max(1, len(sizes))


@pytest.mark.parametrize(
    ("fault", "batch", "limit", "text"),
    [
        ({"do": "memory", "position": 5}, 2, None, r"one clip at a time does not fit.*--data-gpu-memory.*of batch 5"),
        ({"do": "hold", "stage": "warm-up"}, 1, 16 << 20, r"in use after warm-up; the limit is 16.0 MB\)"),
    ],
)
def test_memory_that_does_not_suffice_for_one_row_ends_the_run(fault, batch, limit, text):
    with (
        open_producer(fault, batch=batch, memory_limit_bytes=limit) as producer,
        pytest.raises(ProducerFailedError, match=text),
    ):
        take_all(producer)


def test_what_was_imported_does_not_count_towards_the_limit():
    with open_producer(memory_limit_bytes=16 << 20, end_position=3) as producer:
        assert_all_right(take_all(producer), range(3))
        assert psutil.Process(producer.pid).memory_info().rss > 16 << 20


POSITIONS = 60
KILLS = 20


@pytest.mark.parametrize("seed", [0, *(pytest.param(seed, marks=pytest.mark.soak) for seed in range(1, 11))])
def test_twenty_kills_at_random_change_nothing(seed):
    """Kills from a thread of its own, so that it strikes wherever the process happens to be; sometimes its successor too."""
    choice, is_over = random.Random(seed), threading.Event()
    batches, killed = {}, [None]

    def kill():
        while len(killed) <= KILLS:
            made = len(batches)
            while len(batches) == made and not is_over.wait(0.001):
                pass
            for delay in (choice.uniform(0, 0.03), choice.uniform(0, 0.4))[: choice.choice([1, 1, 2])]:
                while producer.pid in (None, killed[-1]) and not is_over.wait(0.001):
                    pass
                if is_over.wait(delay):
                    return
                if (pid := producer.pid) not in (None, killed[-1]):
                    os.kill(pid, signal.SIGKILL)
                    killed.append(pid)

    with open_producer(end_position=None, more={"pause_s": 0.004}) as producer:
        thread = threading.Thread(target=kill)
        thread.start()
        try:
            while thread.is_alive() or len(batches) < POSITIONS:
                position, views = producer.take()
                batches[position] = {name: view.copy() for name, view in views.items()}
                del views
                producer.release()
        finally:
            is_over.set()
            thread.join()
        # A batch at which two producers happen to be killed is made of other clips.
        assert_all_right(batches, range(len(batches)), list_replaced(producer))
        assert list_kinds(producer).count("died") >= KILLS - 1


def run_killed_before_line(line, path):
    """Whether the process was killed before its last batch had arrived; either way the batches must be right."""
    settings = {"line": line, "once": str(path / f"{line}")}
    with open_producer(task="tests.pipeline.tasks:make_mortal", end_position=3, more=settings) as producer:
        assert_all_right(take_all(producer), range(3))
        return list_kinds(producer).count("died") == 1


@pytest.mark.parametrize("line", [1, 60, 120, 200, 280])
def test_a_kill_before_a_line_of_the_engine_changes_nothing(line, tmp_path):
    assert run_killed_before_line(line, tmp_path)


@pytest.mark.soak
def test_a_kill_before_any_line_of_the_engine_changes_nothing(tmp_path):
    line = 1
    while run_killed_before_line(line, tmp_path):
        line += 1
    assert line > 250


def end(cause=ExitCause.SIGNAL, position=7, **others):
    facts = {"detail": "SIGKILL", "doing": "prepare", "memory": ProcessMemory(1 << 30, 2 << 30, 9 << 30), "report": ""}
    return ProducerExit(cause, position=position, **(facts | others))


@pytest.mark.parametrize(
    ("exit_code", "is_limited", "oom_kills", "cause"),
    [
        (OUT_OF_MEMORY_EXIT_CODE, False, 0, ExitCause.OUT_OF_MEMORY),
        (3, True, 5, ExitCause.EXIT),
        (-signal.SIGBUS, True, 0, ExitCause.PROBABLY_OUT_OF_MEMORY),
        (-signal.SIGKILL, False, 1, ExitCause.PROBABLY_OUT_OF_MEMORY),
        (-signal.SIGTERM, True, 1, ExitCause.SIGNAL),
        (-64, False, 0, ExitCause.SIGNAL),
    ],
)
def test_an_exit_is_classified_by_its_code(exit_code, is_limited, oom_kills, cause):
    assert classify_exit(exit_code, is_limited=is_limited, oom_kills=oom_kills)[0] is cause


def wrap(error):
    outer = RuntimeError("outer")
    outer.__cause__ = error
    return outer


@pytest.mark.parametrize(
    ("error", "expected", "expected_under_limit"),
    [
        (MemoryError(), True, True),
        (type("_ArrayMemoryError", (MemoryError,), {})(), True, True),
        (wrap(ResourceExhaustedError()), True, True),
        (OSError(12, "Cannot allocate memory"), True, True),
        (OSError(28, "No space left on device"), False, False),
        (wrap(ValueError("MemoryError")), False, False),
        (ImportError("a.so: failed to map segment from shared object"), False, True),
        (RuntimeError("can't start new thread"), False, True),
    ],
)
def test_running_out_of_memory_is_told_from_other_errors(error, expected, expected_under_limit):
    assert is_out_of_memory(error, is_limited=False) is expected
    assert is_out_of_memory(error, is_limited=True) is expected_under_limit


def test_progress_makes_up_for_exits_unless_it_is_at_an_earlier_batch_and_those_between_batches_blame_none():
    recovery = Recovery(None)
    assert [recovery.decide(end(position=position)) for position in (7, None, 7, 8, 9)] == [None, None, 7, None, None]
    for _ in range(5 * MOST_RESTARTS):
        assert recovery.decide(end()) is None
        recovery.note_progress(7)
    assert recovery.decide(end(position=4)) is None
    recovery.note_progress(3)
    assert recovery.decide(end(position=4)) == 4


def test_trying_without_progress_comes_to_an_end_with_the_last_words():
    recovery = Recovery(None)
    for _ in range(MOST_RESTARTS):
        recovery.decide(end(position=None))
    with pytest.raises(ProducerFailedError, match=r"died 11 times without preparing a batch(.|\n)*no such device"):
        recovery.decide(end(position=None, report="no such device"))
