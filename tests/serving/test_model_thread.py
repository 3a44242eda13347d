"""The thread that owns the model: loading, leaving, stopping. What clients see of it: `test_routes`."""

import asyncio
import contextlib
import threading

import pytest

from myxtts.serving.model_thread import Job, ModelThread

WAIT_S = 60


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
