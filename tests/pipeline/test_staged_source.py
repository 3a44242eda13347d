"""What a training that waits is told to the watchdog and to the log."""

import threading
from contextlib import ExitStack, closing, suppress
from types import SimpleNamespace

import pytest

from myxtts.pipeline.batch_meters import METERS, BatchMeters
from myxtts.pipeline.handoff import EndOfStream, Handoff
from myxtts.pipeline.staged_source import StagedSource


def test_everything_that_happens_to_a_producer_counts_as_progress():
    prepared = Handoff("prepared")
    producer = SimpleNamespace(events=[], preparation_batch=None, longest_silence_s=750.0)
    source = StagedSource(
        prepared,
        unpack=dict,
        stages=[],
        resources=ExitStack(),
        device="/CPU:0",
        start_delay_s=0.0,
        producer=producer,
    )
    with closing(source):
        assert source.read_work() is None, "nobody waits"
        waiting = threading.Thread(target=take_until_the_end, args=(source,))
        waiting.start()
        while (work := source.read_work()) is None:
            pass
        assert work.stage == "waiting for a batch"
        assert work.limit_s == 750.0, "a producer that is started again takes its time"
        producer.events.append(SimpleNamespace(time_s=7.0))
        assert source.read_work() != work
        prepared.finish()
        waiting.join(30)
        assert not waiting.is_alive()
        assert source.read_work() is None


def take_until_the_end(source):
    with suppress(EndOfStream):
        source.take()


def test_the_first_batch_has_its_time_and_only_then_the_slots_have_theirs(monkeypatch, caplog):
    caplog.set_level("INFO")
    prepared = Handoff("prepared")
    source = StagedSource(prepared, unpack=dict, stages=[], resources=ExitStack(), device="/CPU:0", start_delay_s=2.0)
    heard = []

    def wait_for_the_first(placed, stages, patience):
        heard.extend(lines(caplog))
        give_batch(prepared)
        assert placed.wait_for_item(60)

    monkeypatch.setattr("myxtts.pipeline.staged_source.wait_watched", wait_for_the_first)
    with closing(source):
        # Full, or ended: nothing is waited for that cannot come.
        monkeypatch.setattr(source.placed, "wait_until_full", lambda timeout_s: heard.append(timeout_s) or False)
        source.take()
    assert heard == ["Multi-GPU Mode: Waiting for the first batch...", 0.0, 2.0]
    first, ready, waiting, starting = lines(caplog)
    assert first == heard[0]
    assert ready.startswith("Multi-GPU Mode: The first batch was ready after ")
    assert waiting == "Multi-GPU Mode: Waiting up to 2.0s for data pipeline to warm up..."
    assert starting == "Model training starting now"


@pytest.mark.parametrize(("batches", "delay_s"), [(3, 2.0), (1, 0.0)])
def test_no_wait_is_announced_that_does_not_happen(batches, delay_s, caplog):
    caplog.set_level("INFO")
    prepared = Handoff("prepared")
    for _ in range(batches):
        give_batch(prepared)
    prepared.finish()
    source = StagedSource(
        prepared, unpack=dict, stages=[], resources=ExitStack(), device="/CPU:0", start_delay_s=delay_s
    )
    with closing(source):
        # All that there is stands ready before it is asked for.
        assert source.placed.wait_until_full(60)
        source.take()
    assert not [line for line in lines(caplog) if "Waiting up to" in line]
    assert lines(caplog)[-1] == "Model training starting now"


@pytest.fixture(autouse=True)
def batches_are_empty(monkeypatch):
    monkeypatch.setattr("myxtts.pipeline.staged_source.place_batch", lambda arrays, device, began_s: arrays)


def give_batch(prepared):
    prepared.reserve()
    prepared.commit({METERS: BatchMeters().dump()})


def lines(caplog):
    return [record.getMessage() for record in caplog.records if record.name == "myxtts.pipeline.staged_source"]
