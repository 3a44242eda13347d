import io
import logging
import sys
from dataclasses import replace

import pytest

from myxtts.monitoring.clock import Progress
from myxtts.monitoring.live_view import Picture, format_line, format_picture, open_view
from myxtts.monitoring.metrics import MemoryUse, ValidationRow
from myxtts.pipeline.threads import HandoffFacts
from tests.monitoring.runs import make_flow, make_train_row


class Terminal(io.StringIO):
    def isatty(self):
        return True


@pytest.fixture(autouse=True)
def _plain_environment(monkeypatch):
    for name in ("FORCE_COLOR", "TTY_COMPATIBLE", "TTY_INTERACTIVE", "NO_COLOR"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "80")


def make_picture(step=200, **changes):
    validation = ValidationRow(time_s=0.0, step=150, loss=3.25)
    return Picture(make_train_row(step, **changes), Progress(step, 400, 4, 300, 0.95), None, validation)


def test_without_a_terminal_there_is_one_plain_line_per_picture():
    out = io.StringIO()
    with open_view("gpt", "dual", out) as show:
        show(make_picture(200))
        show(make_picture(210))
    first, second = out.getvalue().splitlines()
    assert first.startswith("gpt  step 200/400  epoch 3 of 4  loss 3.1")
    for words in ("920 ms/step", "16 clips/s", "waits 5.0%"):
        assert words in first
    assert first.endswith("left 3 min 10 s")
    assert second.startswith("gpt  step 210/400")
    assert "\x1b" not in out.getvalue()


def test_a_run_that_nobody_looks_at_any_more_goes_on_and_says_so_once(caplog):
    class Closed(io.StringIO):
        def flush(self):
            raise BrokenPipeError

    with open_view("gpt", "dual", Closed()) as show:
        show(make_picture(200))
        show(make_picture(210))
    assert caplog.text.count("Nobody reads what this run shows any more") == 1


def test_in_a_terminal_the_picture_shows_all_that_was_asked_for():
    out = Terminal()
    with open_view("gpt", "isolated", out) as show:
        show(make_picture())
    for words in (
        "step 200 of 400", "epoch 3 of 4", "50.0%", "left 3 min 10 s", "validation 3.25 (step 150)", "lr 0.0002", "16 clips/s",
        "58 audio-s/s", "ready  98%   waits: transfer 30%, train 2%", "/GPU:1 9.0 GB of 16.0 GB", "/GPU:0 unknown of 8.0 GB",
        "next checkpoint in 100 steps (1 min 35 s)",
    ):  # fmt: skip
        assert words in out.getvalue(), words


def test_the_picture_fits_80_columns_and_ascii_and_breaks_no_memory():
    uses = (
        MemoryUse("data /GPU:0", 7_900_000_000, 8 << 30),
        MemoryUse("model /GPU:1", 15_900_000_000, 16 << 30),
        MemoryUse("host, trainer", 12_345_000_000, None),
        MemoryUse("host, producer", 2_345_000_000, None),
    )
    lines = format_picture("a title that is far too long for this view, " * 2, make_picture(memory=uses), is_ascii=True)
    assert max(map(len, lines)) <= 80
    assert "".join(lines).isascii()
    first = next(number for number, line in enumerate(lines) if line.startswith("memory"))
    assert lines[first : first + 2] == [
        "memory   data /GPU:0 7.4 GB of 8.0 GB   model /GPU:1 14.8 GB of 16.0 GB",
        "         host, trainer 11.5 GB   host, producer 2.2 GB",
    ]


def test_what_is_unknown_is_shown_as_unknown():
    picture = Picture(
        make_train_row(10, flow=None, memory=(), losses=(), learning_rate=None, step_times_s=(), clips_per_s=None),
        Progress(10, 400, None, None, None),
    )
    text = "\n".join(format_picture("gpt", picture))
    for words in (
        "loss unknown", "step time unknown (p95 unknown)", "who waits: unknown", "memory   unknown", "left unknown",
        "next checkpoint none",
    ):  # fmt: skip
        assert words in text
    assert format_line(picture) == "step 10/400  epoch 1  loss unknown  lr unknown  58 audio-s/s  waits 5.0%"


def test_of_each_preparer_of_a_cluster_it_is_told_who_waits():
    preparers = tuple(HandoffFacts(f"Preparer {n} on host-{n}", 5, 1.0 * n, 2.0, 0.25) for n in range(10))
    text = "\n".join(format_picture("gpt", make_picture(flow=replace(make_flow(), preparers=preparers))))
    assert "ready  25%   waits: itself 10%, train 20%" in next(line for line in text.splitlines() if "host-1" in line)
    assert "host-8" not in text
    assert "and 2 more preparers" in text


def test_of_each_trainer_of_a_cluster_it_is_told_for_what_it_waits():
    trainers = tuple(HandoffFacts(f"Trainer {n}", 5, 4.0 * n, 1.0, 0.0) for n in range(2))
    text = "\n".join(format_picture("gpt", make_picture(flow=replace(make_flow(), trainers=trainers))))
    assert "Trainer 0  waits: for its batches 10%, for other trainers 0%" in text
    assert "Trainer 1  waits: for its batches 10%, for other trainers 40%" in text


def test_lines_of_the_log_scroll_by_above_the_picture_and_come_back_afterwards(monkeypatch):
    out = Terminal()
    monkeypatch.setattr(sys, "stderr", out)
    logger = logging.getLogger("myxtts")
    handler = logging.StreamHandler(out)
    logger.addHandler(handler)
    try:
        with open_view("gpt", "dual", out) as show:
            show(make_picture())
            before = len(out.getvalue())
            logger.warning("checkpoint saved")
            drawn = out.getvalue()[before:]
            assert handler.stream is not out
        assert handler.stream is out
    finally:
        logger.removeHandler(handler)
    # Cursor up over the picture first, then the line, then the picture anew.
    assert drawn.index("\x1b[") < drawn.index("checkpoint saved") < drawn.index("step 200 of 400")


def test_a_log_that_goes_to_a_file_stays_there(monkeypatch):
    out, file = Terminal(), io.StringIO()
    monkeypatch.setattr(sys, "stderr", file)
    with open_view("gpt", "dual", out) as show:
        show(make_picture())
        sys.stderr.write("to the file\n")
    assert file.getvalue() == "to the file\n"
    assert "to the file" not in out.getvalue()


def test_what_stands_beside_the_loss_is_shown_with_it():
    picture = make_picture(scalars={"mel_loss": 0.91234, "discriminator_loss": 4.0, "gradient_norm": 7.0})
    assert "loss 3.174 (mel 0.912, discriminator 4)" in format_line(picture)
    assert "mel 0.912, discriminator 4" in format_picture("decoder", picture)
