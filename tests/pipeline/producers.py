"""Producer processes for tests, and what must come out of them."""

import os
from contextlib import closing, contextmanager

import numpy as np

from myxtts.pipeline.producer_client import ProducerProcess
from myxtts.pipeline.threads import EndOfStream
from tests.pipeline.tasks import make_expected
from tests.support.processes import ROOT

SLOT_BYTES = 1 << 16
ENVIRONMENT = {**os.environ, "PYTHONPATH": str(ROOT)}


@contextmanager
def open_producer(*faults, task="tests.pipeline.tasks:NumbersTask", batch=None, more=None, **arguments):
    """A producer of a task with these faults; `more` are further settings, `arguments` those of the producer."""
    settings = {"faults": list(faults), **(more or {})}
    if batch is not None:
        settings["preparation_batch"] = batch
    given = {"slot_bytes": SLOT_BYTES, "end_position": 12, "environment": ENVIRONMENT} | arguments
    with closing(ProducerProcess(task, settings, **given)) as producer:
        yield producer


def take_all(producer):
    """Everything a producer makes, by position, in the order of arrival."""
    batches = {}
    while True:
        try:
            position, views = producer.take()
        except EndOfStream:
            return batches
        assert position not in batches
        batches[position] = {name: np.array(view) for name, view in views.items()}
        del views
        producer.release()


def assert_all_right(batches, positions, replaced=()):
    """Nothing lost, nothing doubled, in order, and every bit as an undisturbed task makes it."""
    assert list(batches) == list(positions)
    for position, arrays in batches.items():
        expected = make_expected(position, replaced)
        assert list(arrays) == list(expected)
        for name, array in expected.items():
            np.testing.assert_array_equal(arrays[name], array)
            assert arrays[name].dtype == array.dtype


def list_kinds(producer):
    return [event.kind for event in producer.events]


def list_reasons(producer, kind):
    return [event.reason for event in producer.events if event.kind == kind]


def list_replaced(producer):
    """The batches that were made of other clips."""
    return [event.position for event in producer.events if event.kind == "replaced" and event.position is not None]
