"""What trainer and producer agree on, and what the trainer decides when a producer has died; no process is started."""

import json
import os
import signal
import socket
import threading

import numpy as np
import pytest

from myxtts.errors import ProducerFailedError
from myxtts.pipeline.process_memory import MemoryReading
from myxtts.pipeline.producer import (
    OUT_OF_MEMORY_EXIT_CODE,
    Committed,
    Failed,
    RanOutOfMemory,
    Ready,
    Replaced,
    StatusBoard,
    dump_event,
    is_out_of_memory,
    parse_event,
    send_exit_message,
)
from myxtts.pipeline.producer_client import (
    MOST_REPLACED,
    MOST_RESTARTS,
    ExitCause,
    ProducerExit,
    Recovery,
    classify_exit,
)
from myxtts.pipeline.ring import describe_arrays
from myxtts.processes import Connection
from tests.pipeline.tasks import ResourceExhaustedError

LAYOUT = describe_arrays({"a": np.zeros((2, 3), np.float32)})


@pytest.mark.parametrize(
    "event",
    [
        Ready(),
        Committed(1, 5, LAYOUT, 0.25, 100.0),
        Replaced(0, 3, ["a.wav", "b.wav"]),
        RanOutOfMemory("mel", 3, "OOM"),
        Failed("import", None, "ValueError: x", "Traceback"),
    ],
    ids=lambda event: type(event).__name__,
)
def test_events_survive_the_socket(event):
    assert parse_event(json.loads(json.dumps(dump_event(event)))) == event


def test_the_longest_exit_message_fits_and_keeps_its_end():
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with ours, theirs:
        error = ValueError("\udc80" * 100_000 + "end")
        assert send_exit_message(Connection(theirs, blocking=True), error, "prepare", 1, is_limited=False) != 0
        event = parse_event(Connection(ours, blocking=False).receive())
    assert event.summary.startswith("ValueError: ")
    assert event.traceback.endswith("end\n")


@pytest.fixture
def board():
    board = StatusBoard.create()
    yield board
    board.close()


def test_a_new_board_says_start(board):
    assert board.read() == (1, "start", None)


@pytest.mark.parametrize(("stage", "position"), [("mel", 7), ("wait", None), ("پیش‌پردازش", 1 << 40)])
def test_what_is_written_is_read_by_another_mapping(board, stage, position):
    reader = StatusBoard(os.dup(board.fileno()))
    board.write(stage, position)
    assert reader.read() == (2, stage, position)
    reader.close()


def test_a_write_that_is_cut_short_leaves_the_last_status(board):
    board.write("whole", 5)
    before = bytes(board._page)
    board.write("half", 6)
    after = bytes(board._page)
    # Everything but the count, which is written last.
    board._page[:] = before[:8] + after[8:]
    assert board.read() == (2, "whole", 5)


def test_reading_beside_a_writer_sees_only_whole_records(board):
    is_over = threading.Event()

    def write():
        number = 0
        while not is_over.is_set():
            number += 1
            board.write(f"stage {number}", number)

    thread = threading.Thread(target=write)
    thread.start()
    seen = set()
    while len(seen) < 10:
        _, stage, position = board.read()
        assert stage in (f"stage {position}", "start")
        seen.add(stage)
    is_over.set()
    thread.join()


def die(cause=ExitCause.SIGNAL, position=7, **others):
    facts = {"detail": "SIGKILL", "stage": "prepare", "memory": MemoryReading(1 << 30, 2 << 30, 9 << 30), "report": ""}
    return ProducerExit(cause, position=position, **(facts | others))


@pytest.mark.parametrize(
    ("exit_code", "is_limited", "oom_kills", "cause"),
    [
        (OUT_OF_MEMORY_EXIT_CODE, False, 0, ExitCause.OUT_OF_MEMORY),
        (0, False, 0, ExitCause.EXIT),
        (3, True, 5, ExitCause.EXIT),
        (-signal.SIGSEGV, False, 0, ExitCause.SIGNAL),
        (-signal.SIGSEGV, True, 0, ExitCause.PROBABLY_OUT_OF_MEMORY),
        (-signal.SIGBUS, True, 0, ExitCause.PROBABLY_OUT_OF_MEMORY),
        (-signal.SIGABRT, True, 0, ExitCause.PROBABLY_OUT_OF_MEMORY),
        (-signal.SIGTERM, True, 0, ExitCause.SIGNAL),
        (-signal.SIGKILL, True, 0, ExitCause.SIGNAL),
        (-signal.SIGKILL, False, 1, ExitCause.PROBABLY_OUT_OF_MEMORY),
        (-signal.SIGTERM, False, 1, ExitCause.SIGNAL),
        (-64, False, 0, ExitCause.SIGNAL),
    ],
)
def test_a_death_is_classified_by_its_exit(exit_code, is_limited, oom_kills, cause):
    assert classify_exit(exit_code, is_limited=is_limited, oom_kills=oom_kills)[0] is cause


def test_a_death_says_where_why_and_with_how_much_memory():
    death = die(ExitCause.PROBABLY_OUT_OF_MEMORY, detail="SIGSEGV under a memory limit", stage="mel")
    assert str(death) == (
        "probably out of memory (SIGSEGV under a memory limit) in stage 'mel' of batch 7; "
        "last memory reading: 1.0 GB resident, 2.0 GB at most"
    )


def wrap(error):
    outer = RuntimeError("outer")
    outer.__cause__ = error
    return outer


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (MemoryError(), True),
        (type("_ArrayMemoryError", (MemoryError,), {})(), True),
        (ResourceExhaustedError(), True),
        (wrap(ResourceExhaustedError()), True),
        (OSError(12, "Cannot allocate memory"), True),
        (OSError(28, "No space left on device"), False),
        (ValueError("MemoryError"), False),
        (wrap(ValueError()), False),
    ],
)
def test_running_out_of_memory_is_told_from_other_errors(error, expected):
    assert is_out_of_memory(error, is_limited=False) is expected


@pytest.mark.parametrize(
    "error", [ImportError("a.so: failed to map segment from shared object"), RuntimeError("can't start new thread")]
)
def test_what_a_limit_refuses_is_known_in_disguise(error):
    assert is_out_of_memory(error, is_limited=True)
    assert not is_out_of_memory(error, is_limited=False)


@pytest.mark.parametrize("cause", [ExitCause.OUT_OF_MEMORY, ExitCause.PROBABLY_OUT_OF_MEMORY])
def test_out_of_memory_halves_the_preparation_batch_down_to_one(cause):
    recovery = Recovery(11)
    batches = []
    while recovery.preparation_batch > 1:
        assert recovery.decide(die(cause)) is None
        batches.append(recovery.preparation_batch)
    assert batches == [5, 2, 1]


def test_out_of_memory_with_one_row_at_a_time_says_what_to_change():
    with pytest.raises(ProducerFailedError, match=r"one clip at a time does not fit.*Raise --data-gpu-memory.*batch 7"):
        Recovery(1).decide(die(ExitCause.OUT_OF_MEMORY))
    with pytest.raises(ProducerFailedError, match="no preparation_batch"):
        Recovery(None).decide(die(ExitCause.OUT_OF_MEMORY))


def test_a_probable_out_of_memory_with_one_row_at_a_time_is_a_death_like_others():
    recovery = Recovery(1)
    assert recovery.decide(die(ExitCause.PROBABLY_OUT_OF_MEMORY)) is None
    assert recovery.decide(die(ExitCause.PROBABLY_OUT_OF_MEMORY)) == 7


def test_two_deaths_at_one_batch_have_it_replaced_and_two_at_different_ones_do_not():
    recovery = Recovery(None)
    assert [recovery.decide(die(position=position)) for position in (7, 8, 8, 8)] == [None, None, 8, None]


def test_deaths_between_batches_blame_no_batch():
    recovery = Recovery(None)
    deaths = [die(), die(position=None), die(position=None)]
    assert {recovery.decide(death) for death in deaths} == {None}
    assert recovery.decide(die()) == 7


def test_progress_makes_up_for_deaths():
    recovery = Recovery(None)
    for _ in range(5 * MOST_RESTARTS):
        death = die()
        assert recovery.decide(death) is None
        recovery.note_progress(death.position)


def test_progress_at_an_earlier_batch_does_not_clear_a_later_one():
    recovery = Recovery(None)
    assert recovery.decide(die(position=4)) is None
    recovery.note_progress(3)
    assert recovery.decide(die(position=4)) == 4


def test_restarts_without_progress_come_to_an_end_with_the_last_words():
    recovery = Recovery(None)
    for _ in range(MOST_RESTARTS):
        recovery.decide(die(position=None, stage="import"))
    with pytest.raises(ProducerFailedError, match=r"died 11 times without preparing a batch(.|\n)*no such device"):
        recovery.decide(die(position=None, stage="import", report="no such device"))


def test_replacing_without_progress_comes_to_an_end():
    recovery = Recovery(None)
    decided = [recovery.decide(die()) for _ in range(2 * MOST_REPLACED + 1)]
    assert decided == [None, 7] * MOST_REPLACED + [None]
    with pytest.raises(ProducerFailedError, match="its clips were replaced 4 times"):
        recovery.decide(die())
