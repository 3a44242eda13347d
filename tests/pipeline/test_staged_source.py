"""What the watchdog is told of a training that waits for a producer process."""

import threading
from contextlib import ExitStack, closing, suppress
from types import SimpleNamespace

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
