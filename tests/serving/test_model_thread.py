"""The thread that owns the model: order, errors, cancelling, stopping."""

import asyncio
import contextlib
import threading

import pytest

from myxtts.serving.model_thread import Job, JobCancelled, ModelThread, ModelThreadError

WAIT_S = 60


@pytest.fixture
def thread():
    thread = ModelThread(lambda: contextlib.nullcontext("model"))
    assert thread.start() == "model"
    yield thread
    thread.stop(WAIT_S)


def ask(thread, work):
    async def collect():
        return [result async for result in thread.submit(Job(work))]

    return asyncio.run(collect())


class Gated:
    """Work that goes on when the test lets it."""

    def __init__(self):
        self.begun, self.gate, self.closed, self.made = threading.Event(), threading.Semaphore(0), threading.Event(), 0

    def __call__(self, model):
        self.begun.set()
        try:
            for number in range(100):
                assert self.gate.acquire(timeout=WAIT_S)
                self.made += 1
                yield number
        finally:
            self.closed.set()


def test_the_model_is_loaded_used_and_left_in_one_thread(caplog):
    seen = []

    @contextlib.contextmanager
    def open_model():
        seen.append(threading.current_thread().name)
        yield "model"
        seen.append(threading.current_thread().name)
        raise RuntimeError("still in use")

    thread = ModelThread(open_model)
    thread.start()
    seen += ask(thread, lambda model: iter([None, threading.current_thread().name]))
    thread.stop(WAIT_S)
    assert len(seen) == 3
    assert {seen[0], seen[2]} == {"myxtts-model"}
    assert "myxtts-model" not in [each.name for each in threading.enumerate()]
    assert "The model's thread has ended" in caplog.text
    assert "still in use" in caplog.text


def test_a_model_that_cannot_be_loaded_is_an_error_of_start():
    def open_model():
        raise FileNotFoundError("no model")

    with pytest.raises(FileNotFoundError, match="no model"):
        ModelThread(open_model).start()


def test_jobs_run_one_after_the_other_and_an_error_reaches_who_asked(thread):
    log = []

    def make_work(name, error=None):
        def work(model):
            for step in range(2):
                log.append((name, step))
                yield step
            if error:
                raise error

        return work

    async def ask_both():
        first, second = (
            thread.submit(Job(work)) for work in (make_work("a", ZeroDivisionError("broken")), make_work("b"))
        )
        assert [await first.receive(), await first.receive()] == [0, 1]
        with pytest.raises(ZeroDivisionError, match="broken"):
            await first.receive()
        assert [result async for result in second] == [0, 1]

    asyncio.run(ask_both())
    assert log == [("a", 0), ("a", 1), ("b", 0), ("b", 1)]


def test_a_thread_that_dies_says_of_what_and_keeps_nobody_waiting(caplog):
    begun, gate = threading.Event(), threading.Event()

    def die(model):
        begun.set()
        assert gate.wait(WAIT_S)
        raise SystemExit("broken")
        yield

    async def ask_all():
        jobs = [thread.submit(Job(die)), thread.submit(Job(lambda model: iter([1])))]
        await asyncio.to_thread(begun.wait, WAIT_S)
        gate.set()
        for job in jobs:
            with pytest.raises(ModelThreadError, match="must be started again"):
                await asyncio.wait_for(job.receive(), WAIT_S)
            assert thread.has_died
        with pytest.raises(ModelThreadError, match=r"log says how\. The server must be started again"):
            thread.submit(Job(die))

    thread = ModelThread(lambda: contextlib.nullcontext("model"))
    thread.start()
    assert not thread.has_died
    asyncio.run(ask_all())
    (record,) = caplog.records
    assert (record.levelname, str(record.exc_info[1])) == ("CRITICAL", "broken")
    thread.stop(WAIT_S)


def test_a_cancelled_job_ends_at_its_next_result_and_the_loop_may_be_gone_by_then(thread):
    work = Gated()

    async def leave():
        job = thread.submit(Job(work))
        work.gate.release()
        assert await job.receive() == 0
        job.cancel()
        with pytest.raises(JobCancelled):
            await job.receive()

    asyncio.run(leave())
    work.gate.release(100)
    assert work.closed.wait(WAIT_S)
    assert work.made <= 2
    assert ask(thread, lambda model: iter([model])) == ["model"]


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
