"""Parts of a start, by the name under which somebody who asks whether it hangs finds them."""

from contextlib import contextmanager
from types import SimpleNamespace
from unittest.mock import Mock

import pytest

from myxtts.monitoring.time_ledger import Cause, TimeLedger
from myxtts.training import trainer
from myxtts.training.model import RunProgress
from myxtts.training.run_log import read_start_work
from myxtts.training.stopping import StopRequests
from myxtts.training.trainer import XTTSTrainer
from myxtts.training.workers import SingleWorker


class OpeningError(Exception):
    pass


def name_work(ledger):
    return read_start_work(ledger, limit_s=600).stage


def test_opening_the_pipeline_has_a_name():
    ledger, seen = TimeLedger(), []

    def open_batches(saver, recipe):
        seen.append((ledger.peek()[0].cause, name_work(ledger)))
        raise OpeningError

    workers = SingleWorker(StopRequests())
    run = SimpleNamespace(_workers=workers, _ledger=ledger, _updates=Mock(), _open_batches=open_batches)
    saver, schedule = SimpleNamespace(progress=RunProgress()), SimpleNamespace(end_step=5)
    with pytest.raises(OpeningError):
        XTTSTrainer._run_loop(run, saver, schedule, None, None)
    assert seen == [(Cause.START_UP, "opening the pipeline")]


@pytest.mark.parametrize(("cluster", "name"), [(None, "setting up the devices"), ("spec", "meeting the other workers")])
def test_gathering_a_team_has_a_name_until_it_is_there(monkeypatch, cluster, name):
    ledger, seen = TimeLedger(), []

    @contextmanager
    def gather(*_):
        seen.append(name_work(ledger))
        yield "team"
        seen.append("left")

    monkeypatch.setattr(trainer, "gather_workers", gather)
    run = SimpleNamespace(_ledger=ledger, _cluster=cluster, config=None, plan=None)
    with XTTSTrainer._gather_workers(run, None) as team:
        assert team == "team"
        assert seen == [name]
        assert name_work(ledger) == "start-up"
    assert seen == [name, "left"]
