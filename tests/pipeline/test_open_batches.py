"""What goes wrong in a pipeline is raised where batches are taken, by the name of its part, and nothing survives it."""

import os
import signal
import threading
import time
from contextlib import closing, suppress
from dataclasses import replace
from unittest.mock import MagicMock

import pytest

from myxtts.devices.plan import Mode
from myxtts.errors import WorkFailedError
from myxtts.pipeline.batch import Batch
from myxtts.pipeline.batches import PipedBatches, open_batches
from myxtts.pipeline.threads import Handoff, Stopped, TimeLimits
from tests.pipeline.producers import open_producer
from tests.pipeline.small_runs import damage_clip, make_plan, make_run, make_run_folder
from tests.pipeline.source_program import list_what_is_left
from tests.pipeline.test_batch import INFO


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return make_run_folder(tmp_path_factory.mktemp("run"), clips=16)


def open_small(folder, mode, data=None, changes=None, **options):
    sections = {"data": {"num_workers": 0, "batch_size": 5, **(data or {})}}
    run_data, recipe = make_run(folder, plan=make_plan(mode), **sections)
    return open_batches(replace(recipe, **(changes or {})), run_data, folder=folder / "producer", **options)


def break_mels(folder):
    """What no mel can be made with."""
    _, recipe = make_run(folder)
    return {"preparation": replace(recipe.preparation, mel_norms=(1.0, 2.0))}


@pytest.mark.parametrize("mode", [Mode.SINGLE, Mode.DUAL])
def test_an_error_in_preparing_names_that_and_the_batch(mode, folder):
    with (
        # Without fixed shapes nothing is traced before the first batch.
        closing(open_small(folder, mode, {"pad_to_fixed_length": False}, break_mels(folder))) as source,
        pytest.raises(WorkFailedError, match="Stage 'prepare' failed at batch 0: ") as error,
    ):
        source.take()
    assert type(error.value.__cause__).__name__ in str(error.value)


def test_an_error_in_reading_names_that(tmp_path):
    folder = make_run_folder(tmp_path, clips=16)
    open_small(folder, Mode.DUAL).close()
    for path in (folder / "corpus" / "wavs").iterdir():
        damage_clip(path)
    with (
        closing(open_small(folder, Mode.DUAL)) as source,
        pytest.raises(WorkFailedError, match="Stage 'read' failed at batch 0: ReadingError"),
    ):
        source.take()


@pytest.mark.parametrize("mode", [Mode.SINGLE, Mode.DUAL])
def test_batches_may_be_closed_at_any_time(mode, folder):
    open_small(folder, mode).close()
    source = open_small(folder, mode, {"num_workers": 1})
    source.take()
    source.advance()
    source.close()


@pytest.mark.parametrize("mode", [Mode.DUAL, Mode.ISOLATED])
def test_what_is_broken_off_while_it_is_opened_leaves_nothing(mode, folder, monkeypatch):
    real = threading.Thread.start

    def start(thread):
        if thread.name == "myxtts-transfer":
            raise KeyboardInterrupt
        real(thread)

    monkeypatch.setattr(threading.Thread, "start", start)
    with pytest.raises(KeyboardInterrupt):
        open_small(folder, mode, {"num_workers": 1})
    assert list_what_is_left() == []


def test_what_is_broken_off_while_it_warms_up_leaves_nothing(folder):
    waiting = MagicMock()
    waiting.__enter__.side_effect = KeyboardInterrupt
    with pytest.raises(KeyboardInterrupt):
        open_small(folder, Mode.SINGLE, {"num_workers": 1}, waiting=lambda: waiting)
    assert list_what_is_left() == []


def pipe(prepared, folder, delay_s=0.0):
    """Batches that somebody puts into a hand-off, or those of a producer."""
    _, recipe = make_run(folder, plan=make_plan(Mode.DUAL), data={"model_start_delay": delay_s})
    return PipedBatches(recipe, prepared, close_source=lambda: None)


def test_everything_that_happens_to_a_producer_counts_as_progress(folder):
    def take_until_it_is_closed():
        with suppress(Stopped):
            source.take()

    with open_producer({"do": "hang", "stage": "warm-up"}) as producer, closing(pipe(producer, folder)) as source:
        assert source.read_work() is None, "nobody waits"
        waiting = threading.Thread(target=take_until_it_is_closed)
        waiting.start()
        while (work := source.read_work()) is None:
            pass
        assert work.name == "waiting for a batch"
        assert work.limit_s == TimeLimits().longest_s, "a producer that is started again takes its time"
        os.kill(producer.pid, signal.SIGKILL)
        while source.read_work() == work:
            time.sleep(0.01)
        assert [event.kind for event in producer.events][:2] == ["started", "died"]
        source.close()
        waiting.join(30)
        assert not waiting.is_alive()
        assert source.read_work() is None


# The first batch has its time, and only then the slots have theirs: nothing is waited for that cannot come.
@pytest.mark.parametrize(
    ("batches", "delay_s", "is_over", "waits"),
    [(1, 0.01, False, True), (3, 2.0, False, False), (1, 2.0, True, False), (1, 0.0, False, False)],
)
def test_no_wait_is_announced_that_does_not_happen(batches, delay_s, is_over, waits, folder, caplog):
    prepared = Handoff("prepared")
    for _ in range(batches):
        prepared.reserve()
        prepared.commit(Batch({}, INFO))
    if is_over:
        prepared.finish()
    with closing(pipe(prepared, folder, delay_s)) as source:
        caplog.set_level("INFO")
        caplog.clear()
        # All that there is stands ready before it is asked for.
        while prepared.read_facts().items < batches or not source.placed.wait_for_item(60):
            pass
        if not waits and delay_s:
            assert source.placed.wait_until_full(60)
        source.take()
    first, ready, *waiting, starting = caplog.messages
    assert first == "Multi-GPU Mode: Waiting for the first batch..."
    assert ready.startswith("Multi-GPU Mode: The first batch was ready after ")
    assert waiting == [f"Multi-GPU Mode: Waiting up to {delay_s:.1f}s for data pipeline to warm up..."] * waits
    assert starting == "Model training starting now"
