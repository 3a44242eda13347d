"""What a producer says reaches the trainer once."""

import logging

import numpy as np
import pytest

from myxtts.data.drops import Drop, DropReason, DropReport
from myxtts.pipeline.batch_meters import BatchMeters
from myxtts.pipeline.preparation_task import MOST_NOTE_BYTES, NoteReader, NoteTaker

DROP = Drop(DropReason.CORRUPT, "wavs/a.wav", "step 3, row 1", "no header")


def make_report() -> DropReport:
    return DropReport(lines=3, kept_seconds=1.0)


def say(taker: NoteTaker, *lines: str) -> None:
    for line in lines:
        taker.handle(logging.LogRecord("myxtts.data", logging.WARNING, "", 0, line, (), None))


def test_lines_and_failed_clips_arrive(caplog: pytest.LogCaptureFixture) -> None:
    there, here = make_report(), make_report()
    taker, reader = NoteTaker(there), NoteReader(here)
    say(taker, "one, 100 % sure", "zwei\nZeilen: کتاب")
    there.replaced.append(DROP)
    with caplog.at_level(logging.INFO, "myxtts"):
        reader.read(taker.dump())
    assert caplog.messages == ["one, 100 % sure", "zwei\nZeilen: کتاب"]
    assert {record.levelno for record in caplog.records} == {logging.WARNING}
    assert here.replaced == [DROP]
    assert taker.dump().size == 0


def test_what_a_second_producer_says_again_is_no_news(caplog: pytest.LogCaptureFixture) -> None:
    here = make_report()
    reader = NoteReader(here)
    with caplog.at_level(logging.INFO, "myxtts"):
        for _ in range(2):
            there = make_report()
            taker = NoteTaker(there)
            say(taker, "loaded")
            there.replaced.append(DROP)
            reader.read(taker.dump())
    assert caplog.messages == ["loaded"]
    assert here.replaced == [DROP]


def test_what_does_not_fit_goes_with_the_next_batch(caplog: pytest.LogCaptureFixture) -> None:
    taker, reader = NoteTaker(make_report()), NoteReader(make_report())
    lines = [f"{number} {'x' * 1500}" for number in range(60)]
    say(taker, *lines)
    with caplog.at_level(logging.INFO, "myxtts"):
        for _ in range(4):
            notes = taker.dump()
            assert notes.nbytes <= MOST_NOTE_BYTES
            reader.read(notes)
    assert caplog.messages == lines


def test_meters_add_up_and_survive_a_slot() -> None:
    meters = BatchMeters(1, 0.5, 0.25, 3, 2, 1)
    total = meters + BatchMeters.parse(np.array(meters.dump()))
    assert total == BatchMeters(2, 1.0, 0.5, 6, 4, 2)
    assert total - meters == meters
    assert [(facts.name, facts.items, facts.busy_s) for facts in total.list_stages()] == [
        ("read", 2, 1.0),
        ("prepare", 2, 0.5),
    ]
