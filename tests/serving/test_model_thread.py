"""The thread that owns the model: order, errors, cancelling, stopping."""

import asyncio
import contextlib
import threading

import pytest

from myxtts.serving.model_thread import Job, JobCancelled, ModelThread, ModelThreadError


@pytest.fixture
def thread():
    thread = ModelThread(lambda: contextlib.nullcontext("model"))
    assert thread.start() == "model"
    yield thread
    thread.stop(10)


async def collect(job):
    return [result async for result in job]


def test_the_model_is_loaded_used_and_left_in_one_thread():
    seen = []

    @contextlib.contextmanager
    def open_model():
        seen.append(threading.current_thread().name)
        yield "model"
        seen.append(threading.current_thread().name)

    def work(model):
        yield threading.current_thread().name

    async def ask():
        return await collect(thread.submit(Job(work)))

    thread = ModelThread(open_model)
    thread.start()
    seen += asyncio.run(ask())
    thread.stop(10)
    assert seen == ["myxtts-model"] * 3
    assert "myxtts-model" not in [each.name for each in threading.enumerate()]


def test_a_model_that_cannot_be_loaded_is_an_error_of_start():
    def open_model():
        raise FileNotFoundError("no model")

    with pytest.raises(FileNotFoundError, match="no model"):
        ModelThread(open_model).start()


def test_jobs_run_one_after_the_other(thread):
    log = []

    def make_work(name):
        def work(model):
            for step in range(3):
                log.append((name, step))
                yield step

        return work

    async def ask():
        jobs = [thread.submit(Job(make_work(name))) for name in "ab"]
        return [await collect(job) for job in jobs]

    assert asyncio.run(ask()) == [[0, 1, 2], [0, 1, 2]]
    assert log == [("a", 0), ("a", 1), ("a", 2), ("b", 0), ("b", 1), ("b", 2)]


def test_an_error_reaches_who_asked_and_the_next_job_runs(thread):
    def fail(model):
        yield 1
        raise ZeroDivisionError("broken")

    def work(model):
        yield None
        yield model

    async def ask():
        job = thread.submit(Job(fail))
        assert await job.receive() == 1
        with pytest.raises(ZeroDivisionError, match="broken"):
            await job.receive()
        return await collect(thread.submit(Job(work)))

    assert asyncio.run(ask()) == ["model"]


def test_a_thread_that_dies_says_of_what_and_keeps_nobody_waiting(caplog):
    begun, gate = threading.Event(), threading.Event()

    def die(model):
        begun.set()
        assert gate.wait(60)
        raise SystemExit("broken")
        yield

    async def ask():
        jobs = [thread.submit(Job(die)), thread.submit(Job(lambda model: iter([1])))]
        await asyncio.to_thread(begun.wait, 10)
        gate.set()
        for job in jobs:
            with pytest.raises(ModelThreadError, match="must be started again"):
                await asyncio.wait_for(job.receive(), 10)
            assert thread.has_died
        with pytest.raises(ModelThreadError, match=r"log says how\. The server must be started again"):
            thread.submit(Job(die))

    thread = ModelThread(lambda: contextlib.nullcontext("model"))
    thread.start()
    assert not thread.has_died
    asyncio.run(ask())
    (record,) = caplog.records
    assert record.levelname == "CRITICAL"
    assert str(record.exc_info[1]) == "broken"
    thread.stop(10)


def test_a_model_that_cannot_be_left_is_told(caplog):
    @contextlib.contextmanager
    def open_model():
        yield "model"
        raise RuntimeError("still in use")

    thread = ModelThread(open_model)
    thread.start()
    thread.stop(10)
    assert "The model's thread has ended" in caplog.text
    assert "still in use" in caplog.text


def test_a_cancelled_job_ends_at_its_next_result(thread):
    gate, closed = threading.Semaphore(0), threading.Event()
    made = []

    def work(model):
        try:
            for number in range(100):
                assert gate.acquire(timeout=60)
                made.append(number)
                yield number
        finally:
            closed.set()

    async def ask():
        job = thread.submit(Job(work))
        gate.release()
        assert await job.receive() == 0
        job.cancel()
        with pytest.raises(JobCancelled):
            await job.receive()

    asyncio.run(ask())
    gate.release(100)
    assert closed.wait(60)
    assert len(made) <= 2


def test_stopping_ends_the_job_under_way_and_drops_the_rest():
    gate, begun = threading.Semaphore(0), threading.Event()
    ran = []

    def work(model):
        begun.set()
        assert gate.acquire(timeout=60)
        ran.append("first")
        yield 1
        ran.append("too much")

    def never(model):
        ran.append("second")
        yield 2

    async def ask():
        thread = ModelThread(lambda: contextlib.nullcontext("model"))
        thread.start()
        jobs = [thread.submit(Job(work)), thread.submit(Job(never))]
        begun.wait(60)
        with pytest.raises(ModelThreadError, match="still busy"):
            thread.stop(0.01)
        gate.release()
        await asyncio.to_thread(thread.stop, 10)
        # What was made before is handed over.
        assert await jobs[0].receive() == 1
        for job in jobs:
            with pytest.raises(JobCancelled):
                await job.receive()

    asyncio.run(ask())
    assert ran == ["first"]


def test_results_for_a_loop_that_is_gone_do_not_stop_the_thread(thread):
    gate, begun = threading.Event(), threading.Event()

    def work(model):
        begun.set()
        assert gate.wait(60)
        yield 1

    def again(model):
        yield 2

    async def leave():
        thread.submit(Job(work))
        await asyncio.to_thread(begun.wait, 10)

    async def ask():
        return await collect(thread.submit(Job(again)))

    asyncio.run(leave())
    gate.set()
    assert asyncio.run(ask()) == [2]
