"""The trainer as one of several workers: how it learns that it is one, and when it may leave."""

import json
import os
import signal
from types import SimpleNamespace
from unittest.mock import Mock

import pytest

from myxtts.config import XTTSConfig
from myxtts.devices.plan import Mode
from myxtts.training import trainer as module
from myxtts.training.loop import ALL_DONE, Ending
from myxtts.training.stopping import StopRequests
from myxtts.training.trainer import XTTSTrainer
from tests.pipeline.test_failing_sources import make_plan


def test_tf_config_makes_a_worker(monkeypatch):
    cluster = {"worker": ["127.0.0.1:5000", "127.0.0.1:5002"]}
    monkeypatch.setenv("TF_CONFIG", json.dumps({"cluster": cluster, "task": {"type": "worker", "index": 1}}))
    spec = XTTSTrainer(XTTSConfig(), plan=make_plan(Mode.SINGLE))._cluster
    assert (spec.index, spec.size, spec.control.port) == (1, 2, 5001)


@pytest.mark.parametrize(("is_chief", "expected"), [(True, ["spoken", "end"]), (False, ["end"])])
def test_nobody_leaves_before_the_chief_is_done(monkeypatch, tmp_path, is_chief, expected):
    """Not even where it is asked to: a worker that has left is not started again with a chief that dies in its last save."""
    done = []
    monkeypatch.setattr(module, "speak_at_end", lambda *_: done.append("spoken"))
    result = SimpleNamespace(ending=Ending(ALL_DONE, is_finished=True))

    def meet(what, numbers):
        os.kill(os.getpid(), signal.SIGTERM)
        done.append(what)
        return numbers

    trainer = XTTSTrainer(XTTSConfig(), plan=make_plan(Mode.SINGLE))
    with StopRequests() as stop, stop.while_idle():
        trainer._workers = SimpleNamespace(is_chief=is_chief, sum_numbers=meet, stop=stop)
        trainer._speak_at_end(SimpleNamespace(path=tmp_path), Mock(), result)
    assert done == expected
    assert stop.signal is signal.SIGTERM
