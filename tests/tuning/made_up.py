"""Batches and a training that only take time, for those who measure them."""

import time
from types import SimpleNamespace

from myxtts.monitoring.profile_facts import Launches
from myxtts.pipeline.batch import BatchMeters, BatchSpans, Span
from myxtts.pipeline.batches import PipelineFacts


class MadeUpBatches:
    """A source that never ends, whose batches are read, prepared and moved one after the other when they are taken.

    Args:
        seconds: of reading, preparing and moving.
        read: seconds of reading, by the number of the batch.
        rare_from: the batch from which on they are of a rare shape.
    """

    def __init__(self, seconds=(0.0, 0.0, 0.0), read=None, rare_from=10**6):
        self._seconds, self._read, self._rare_from = seconds, read or (lambda _: seconds[0]), rare_from
        self.open = self.taken = 0

    def take(self):
        self.open += 1
        self.taken += 1
        spans = []
        for seconds in (self._read(self.taken), *self._seconds[1:]):
            began = time.perf_counter()
            time.sleep(seconds)
            spans.append(Span(began, time.perf_counter()))
        facts = SimpleNamespace(number=self.taken, bucket_number=9 if self.taken >= self._rare_from else self.taken % 2)
        return SimpleNamespace(info=SimpleNamespace(facts=facts, spans=BatchSpans(*spans)))

    def advance(self):
        """Nothing is prepared."""

    def release(self):
        self.open -= 1

    def read_facts(self):
        return PipelineFacts(time.perf_counter(), (), (), BatchMeters())


class MadeUpTraining:
    """What was dispatched takes its time when it is waited for, as on a GPU.

    Args:
        train: is called with every batch, and may say that it was traced.
        traces: whether each step that is dispatched is traced; the last one holds for all that follow.
        step_s: of a step that is dispatched.
        pauses: seconds more, by the number of the wait.
    """

    def __init__(self, train=lambda _: False, traces=(False,), step_s=0.0, pauses=None):
        self._train, self._traces, self._step_s, self._pauses = train, list(traces), step_s, pauses or {}
        self._owed = self.settled = 0

    def train(self, batch):
        has_traced = self.dispatch(batch)
        self.settle()
        return has_traced

    def dispatch(self, batch):
        self._owed += 1
        is_next = self._traces.pop(0) if len(self._traces) > 1 else self._traces[0]
        return bool(self._train(batch)) or is_next

    def count_launches(self):
        return Launches(1000, 200, is_compiled=False)

    def settle(self):
        self.settled += 1
        time.sleep(self._owed * self._step_s + self._pauses.get(self.settled, 0.0))
        self._owed = 0
