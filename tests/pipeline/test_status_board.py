import os
import threading

import pytest

from myxtts.pipeline.producer import StatusBoard


@pytest.fixture
def board():
    board = StatusBoard.create()
    yield board
    board.close()


def test_a_new_board_says_start(board):
    assert board.read() == (1, "start", None)


@pytest.mark.parametrize(("stage", "position"), [("mel", 7), ("wait", None), ("", 0), ("پیش‌پردازش", 1 << 40)])
def test_what_is_written_is_read_by_another_mapping(board, stage, position):
    reader = StatusBoard(os.dup(board.fileno()))
    board.write(stage, position)
    assert reader.read() == (2, stage, position)
    reader.close()


def test_a_long_stage_is_cut(board):
    board.write("x" * 10_000, 1)
    assert set(board.read().stage) == {"x"}
    board.write("short", 2)
    assert board.read()[1:] == ("short", 2)


def test_a_write_that_is_cut_short_leaves_the_last_status(board):
    board.write("whole", 5)
    before = bytes(board._page)
    board.write("half", 6)
    after = bytes(board._page)
    # Everything but the count, which is written last.
    board._page[:] = before[:8] + after[8:]
    assert board.read() == (2, "whole", 5)


def test_nonsense_is_readable(board):
    board._page[:] = b"\xff" * len(board._page)
    status = board.read()
    assert isinstance(status.stage, str)


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
