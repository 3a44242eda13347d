"""Parts of a start, by the name under which somebody who asks whether it hangs finds them."""

from contextlib import contextmanager
from types import SimpleNamespace

import numpy as np
import pytest

from myxtts.config import XTTSConfig
from myxtts.monitoring.time_ledger import Cause, TimeLedger
from myxtts.training import run_stages, trainer
from myxtts.training.model import RunProgress
from myxtts.training.run_log import read_start_work
from myxtts.training.run_stages import RunStages
from myxtts.training.stage_run import StageRun
from myxtts.training.stopping import StopRequests
from myxtts.training.trainer import XTTSTrainer


class OpeningError(Exception):
    pass


def name_work(ledger):
    return read_start_work(ledger, limit_s=600).stage


def test_opening_the_pipeline_has_a_name():
    ledger, seen = TimeLedger(), []

    def open_source(progress):
        seen.append((ledger.peek().cause, name_work(ledger)))
        raise OpeningError

    request = SimpleNamespace(config=XTTSConfig(), stop=StopRequests(), team=SimpleNamespace(size=1), ledger=ledger)
    stage = SimpleNamespace(_request=request, end_step=5, _open_source=open_source)
    with pytest.raises(OpeningError):
        StageRun._train(stage, None, RunProgress())
    assert seen == [(Cause.START_UP, "opening the pipeline")]


@pytest.mark.parametrize(("cluster", "name"), [(None, "setting up the devices"), ("spec", "meeting the other workers")])
def test_gathering_a_team_has_a_name_until_it_is_there(monkeypatch, cluster, name):
    ledger, seen = TimeLedger(), []

    @contextmanager
    def gather(*_):
        seen.append(name_work(ledger))
        yield "team"
        seen.append("left")

    monkeypatch.setattr(trainer, "gather_team", gather)
    run = SimpleNamespace(_ledger=ledger, _cluster=cluster, config=None, plan=None)
    with XTTSTrainer._gather_team(run) as team:
        assert team == "team"
        assert seen == [name]
        assert name_work(ledger) == "start-up"
    assert seen == [name, "left"]


def test_measuring_the_mel_statistics_has_a_name(monkeypatch):
    ledger, seen = TimeLedger(), []

    def measure(corpus, seed):
        seen.append(name_work(ledger))
        return np.ones(80, np.float32)

    monkeypatch.setattr(run_stages, "measure_mel_norms", measure)
    stages = SimpleNamespace(ledger=ledger, _config=XTTSConfig())
    RunStages._find_mel_norms(stages, SimpleNamespace(checkpoint=None), SimpleNamespace(train=None))
    assert seen == ["measuring the mel statistics"]
