"""The loop when something comes in between: a signal while it waits, a validation that does not fit."""

import json
import os
import signal
import threading
from itertools import chain
from types import SimpleNamespace
from unittest.mock import Mock

import numpy as np
import pytest
import tensorflow as tf

from myxtts.config import XTTSConfig
from myxtts.data.buckets import Bucket
from myxtts.data.replacements import ReplacementJournal
from myxtts.data.sampler import EMPTY_ROW, GlobalBatch, MicroBatch
from myxtts.monitoring.time_ledger import Cause, TimeLedger
from myxtts.pipeline.batch_facts import BatchFacts
from myxtts.pipeline.handoff import EndOfStream
from myxtts.pipeline.order import Kind
from myxtts.training import loop as loop_module
from myxtts.training import validation as validation_module
from myxtts.training.errors import NotFiniteError, ValidationMemoryError
from myxtts.training.loop import TrainingLoop
from myxtts.training.model import RunProgress
from myxtts.training.optimizer import WeightAverage
from myxtts.training.step import UpdateMaker
from myxtts.training.stopping import StopRequests
from myxtts.training.workers import SingleWorker
from tests.training.test_step import ROWS, cut_rows, make_step, make_tensors, read_weights

TOO_LONG_S = 30
"""No test waits so long unless a signal was not heard."""


def describe(kind, updates, micro_batch=0, micro_batches=1):
    return BatchFacts(0, kind, updates, micro_batch, micro_batches, 0, 0, ROWS, 6000, 7200)


def make_batch(*facts):
    return SimpleNamespace(tensors=make_tensors(), facts=describe(*facts), replaced=(), memory=None)


class ListSource:
    """Batches of a list; a None in it is a wait in which a signal comes."""

    def __init__(self, *batches, number=signal.SIGTERM):
        self._batches = list(batches)
        self._number = number

    def take(self):
        if not self._batches:
            raise EndOfStream
        batch = self._batches.pop(0)
        if batch is None:
            os.kill(os.getpid(), self._number)
            threading.Event().wait(TOO_LONG_S)
            raise AssertionError("the wait was not ended")
        return batch

    def advance(self):
        pass

    def release(self):
        pass

    def read_facts(self):
        return None


class ListSaver:
    """Remembers what would have been saved."""

    def __init__(self, step, progress, data):
        self.trained = SimpleNamespace(step=step, prefix="gpt.", device="/CPU:0")
        self.progress = progress
        self.data = data
        self.config = XTTSConfig()
        self.saved_step = None
        self.saved = []
        self.journal = ReplacementJournal()

    def save(self, metrics):
        self.saved_step = self.progress.step
        self.saved.append((self.progress.step, self.progress.is_validated))
        return Mock(size_bytes=1)


@pytest.fixture(scope="module")
def step():
    return make_step()


def run_loop(step, source, stop, *, end_step=2, interval=1, progress=None, data=None, log=None, folder=os.curdir):
    """How a loop ended, and what it saved."""
    data = data or SimpleNamespace(sampler=None, validation=None)
    data.validation_batches = 1
    saver = ListSaver(step, progress or RunProgress(), data)
    training = SimpleNamespace(log_interval=100, early_stopping=0)
    schedule = SimpleNamespace(
        training=training, end_step=end_step, validation_interval=interval, checkpoint_interval=100, saves_best=False,
        choose_rate=lambda number: 1e-3,
    )  # fmt: skip
    log = log or Mock(ledger=TimeLedger(), folder=folder)
    order = SimpleNamespace(
        validation_batches=1, validation_interval=interval, end_step=end_step, is_last_of_round=lambda number: True
    )
    updates = UpdateMaker(step, schedule.choose_rate, accumulation=1)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(loop_module, "RunOrder", lambda *_, **__: order)
        loop = TrainingLoop(source, updates, saver, schedule, log, SingleWorker(stop))
    try:
        return loop.run(), saver.saved
    except ValidationMemoryError as error:
        return error, saver.saved


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_while_the_first_batch_is_awaited_ends_the_run_at_once(step, number):
    with StopRequests() as stop:
        ending, saved = run_loop(step, ListSource(None, number=number), stop)
    assert (ending.is_finished, ending.signal) == (False, number)
    assert saved == [], "nothing was trained"


def test_a_signal_between_micro_batches_saves_the_last_whole_update(step):
    batches = [make_batch(Kind.TRAIN, 0), make_batch(Kind.TRAIN, 1, 0, 2), None]
    with StopRequests() as stop:
        ending, saved = run_loop(step, ListSource(*batches), stop, interval=2)
    assert ending.reason == "stopped by SIGTERM"
    assert saved == [(1, True)]


def test_a_signal_that_comes_after_everything_is_done_stops_nothing(step):
    with StopRequests() as stop:
        ending, saved = run_loop(step, ListSource(None), stop, progress=RunProgress(step=2))
    assert ending.is_finished
    assert saved == [(2, True)]


def test_a_validation_that_cannot_be_made_leaves_a_saved_run(step, monkeypatch):
    monkeypatch.setattr(step, "evaluate", raise_out_of_memory)
    with StopRequests() as stop:
        source = ListSource(make_batch(Kind.TRAIN, 0), make_batch(Kind.VALIDATION, 1))
        error, saved = run_loop(step, source, stop)
    assert "validation after 1 updates" in str(error)
    assert saved == [(1, False)], "and the validation is made when it is resumed"


def cut_batch(kind, updates, rows, micro_batch=0, micro_batches=1):
    batch = make_batch(kind, updates, micro_batch, micro_batches)
    batch.tensors = cut_rows(batch.tensors, 0, rows)
    return batch


def test_results_are_looked_at_once_for_every_shape_of_a_batch(step, monkeypatch):
    steps = [
        # A step whose result tells of two shapes, one of them not its last; then nothing new; then a third shape.
        [cut_batch(Kind.TRAIN, 0, 4, 0, 2), make_batch(Kind.TRAIN, 0, 1, 2), make_batch(Kind.VALIDATION, 1)],
        [make_batch(Kind.TRAIN, 1), make_batch(Kind.VALIDATION, 2)],
        [cut_batch(Kind.TRAIN, 2, 4), make_batch(Kind.VALIDATION, 3)],
        [cut_batch(Kind.TRAIN, 3, 5), cut_batch(Kind.VALIDATION, 4, 5)],
    ]
    looked_at = []
    for module in (loop_module, validation_module):
        monkeypatch.setattr(module, "check_result", lambda result, device: looked_at.append(tuple(result.shape)))
    with StopRequests() as stop:
        ending, _ = run_loop(step, ListSource(*chain(*steps)), stop, end_step=4)
    assert ending.is_finished
    update, sums = (len(step.objective.sum_names) + 4,), (len(step.objective.sum_names),)
    assert looked_at == [update, sums, update, sums]


def test_a_second_shape_of_a_bucket_is_a_retrace_and_its_batch_is_not_timed():
    """As where shapes are not fixed: each costs a trace, though by a function of its own."""
    log = Mock(ledger=TimeLedger())
    buckets_and_rows = [(0, 4), (1, 5), (0, 4), (0, 6), (1, 5), (1, 6)]
    batches = [cut_batch(Kind.TRAIN, number, rows) for number, (_, rows) in enumerate(buckets_and_rows)]
    for batch, (bucket, _) in zip(batches, buckets_and_rows, strict=True):
        batch.facts = batch.facts._replace(bucket_number=bucket)
    with StopRequests() as stop:
        run_loop(make_step(), ListSource(*batches), stop, end_step=9, interval=9, log=log)
    told = [call.kwargs for call in log.count_batch.call_args_list]
    assert [each["has_traced"] for each in told] == [True, True, False, True, False, False]
    assert [each["is_retrace"] for each in told] == [False, False, False, True, False, False]


def test_alone_no_time_is_booked_as_waiting_for_others(step):
    log = Mock(ledger=TimeLedger())
    with StopRequests() as stop:
        run_loop(step, ListSource(make_batch(Kind.TRAIN, 0)), stop, interval=9, log=log)
    assert log.ledger.read()[Cause.OTHER_WORKERS] == 0.0


def test_a_step_that_is_not_finite_is_told_with_its_clips_and_their_prompts(tmp_path, monkeypatch):
    bad = make_batch(Kind.TRAIN, 0)
    bad.tensors["mel_BFM"] = tf.fill(bad.tensors["mel_BFM"].shape, np.nan)
    clips, prompts = np.array([2, EMPTY_ROW, 0], np.int32), np.array([1, EMPTY_ROW, 3], np.int32)
    bucket = Bucket(rows=3, samples=2048, tokens=9)

    maker = SimpleNamespace(
        plan_step=lambda number, _: GlobalBatch(number, 5, (MicroBatch(bucket, 0, 0, clips, prompts),))
    )
    monkeypatch.setattr(loop_module, "make_maker", lambda *_: maker)

    data = SimpleNamespace(
        sampler=SimpleNamespace(seed=7, accumulation=1, plan=SimpleNamespace(batches_per_epoch=9), steps_per_epoch=9),
        train=SimpleNamespace(audio=["a.wav", "b.wav", "c.wav", "d.wav"]),
        validation=None,
    )
    with StopRequests() as stop, pytest.raises(NotFiniteError, match="2 clips, in 1 batches, and their voice prompts"):
        run_loop(make_step(), ListSource(bad), stop, data=data, folder=tmp_path)
    told = json.loads((tmp_path / "not-finite-step-00000000.json").read_text(encoding="utf-8"))
    assert told == {
        "step": 0, "epoch": 5, "seed": 7, "clips": ["c.wav", "a.wav"], "prompts": ["b.wav", "d.wav"]
    }  # fmt: skip


def raise_out_of_memory(*arguments):
    raise tf.errors.ResourceExhaustedError(None, None, "OOM when allocating tensor")


def test_weights_are_their_own_again_when_their_averages_do_not_fit():
    step = make_step(ema_decay=0.5)
    for variable in step.optimizer.variables.values():
        variable.assign_add(tf.ones_like(variable))
    before = read_weights(step)
    variables = dict(step.optimizer.variables)
    last = list(variables)[-1]
    average = WeightAverage(variables, 0.5)
    average._averages[last] = Mock(spec=[])
    with pytest.raises(ValueError, match="Mock"), average.in_place():
        pytest.fail("the exchange must fail")
    for name, value in read_weights(step).items():
        np.testing.assert_array_equal(value, before[name], err_msg=name)
