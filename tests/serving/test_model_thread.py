"""The thread that owns the model: loading, leaving, stopping. What clients see of it: `test_routes`."""

import asyncio
import contextlib
import threading

import pytest

from myxtts.serving.model_thread import Job, JobCancelled, ModelThread, ModelThreadError

WAIT_S = 60


class Gated:
    """Work that goes on when the test lets it."""

    def __init__(self):
        self.begun, self.gate, self.made = threading.Event(), threading.Semaphore(0), 0

    def __call__(self, model):
        self.begun.set()
        for number in range(100):
            assert self.gate.acquire(timeout=WAIT_S)
            self.made += 1
            yield number


def test_the_model_is_loaded_used_and_left_in_one_thread(caplog):
    seen = []

    @contextlib.contextmanager
    def open_model():
        seen.append(threading.current_thread().name)
        yield "model"
        seen.append(threading.current_thread().name)
        raise RuntimeError("still in use")

    async def ask():
        return [result async for result in thread.submit(Job(lambda _: iter([None, threading.current_thread().name])))]

    thread = ModelThread(open_model)
    assert thread.start() == "model"
    seen += asyncio.run(ask())
    thread.stop(WAIT_S)
    assert len(seen) == 3
    assert {seen[0], seen[2]} == {"myxtts-model"}
    assert "myxtts-model" not in [each.name for each in threading.enumerate()]
    assert "The model has failed" in caplog.text
    assert "still in use" in caplog.text


def test_a_model_that_cannot_be_loaded_is_an_error_of_start():
    def open_model():
        raise FileNotFoundError("no model")

    with pytest.raises(FileNotFoundError, match="no model"):
        ModelThread(open_model).start()


def test_stopping_ends_the_job_under_way_and_drops_the_rest():
    work, dropped = Gated(), Gated()

    async def stop():
        thread = ModelThread(lambda: contextlib.nullcontext("model"))
        thread.start()
        jobs = [thread.submit(Job(work)), thread.submit(Job(dropped))]
        work.begun.wait(WAIT_S)
        with pytest.raises(ModelThreadError, match="still busy"):
            thread.stop(0.01)
        work.gate.release()
        await asyncio.to_thread(thread.stop, WAIT_S)
        # What was made before is handed over.
        assert await jobs[0].receive() == 0
        for job in jobs:
            with pytest.raises(JobCancelled):
                await job.receive()

    asyncio.run(stop())
    assert (work.made, dropped.begun.is_set()) == (1, False)
