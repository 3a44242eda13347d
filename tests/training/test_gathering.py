"""What is done before workers train, and in which order."""

from contextlib import contextmanager, nullcontext

import pytest

from myxtts.cluster.errors import RendezvousError
from myxtts.config import XTTSConfig
from myxtts.devices.machine import read_machine
from myxtts.devices.plan import PlanRequest
from myxtts.devices.planning import plan_devices
from myxtts.training import workers as gathering
from tests.cluster.test_link import make_specs

CONFIG = XTTSConfig(training={"codec": "x"}, data={"batch_size": 1})


class Team:
    """Notes what is asked of it."""

    def __init__(self, done):
        self._done = done

    def require_sums(self):
        self._done.append("sums")

    def require_equal(self, what, facts, advice):
        self._done.append(what)


@pytest.fixture
def done(monkeypatch):
    """What was done."""
    steps = []
    monkeypatch.setattr(gathering, "open_link", lambda spec: nullcontext("link"))
    monkeypatch.setattr(gathering, "require_open_doors", lambda link: steps.append("doors"))
    monkeypatch.setattr(gathering, "Exchange", lambda spec, has_gpu: steps.append("exchange"))
    monkeypatch.setattr(gathering, "ClusterWorkers", lambda link, exchange, stop: Team(steps))
    monkeypatch.setattr(gathering, "apply_devices", lambda config, plan: steps.append("devices"))
    return steps


@contextmanager
def gather(done, index=0):
    plan = plan_devices(PlanRequest(mode="single", rehearsal=True), read_machine())
    with gathering.gather_workers(CONFIG, plan, make_specs()[index], None) as team:
        yield team


def test_doors_are_tried_before_tensorflow_waits_behind_them(done):
    with gather(done):
        pass
    assert done == ["doors", "devices", "exchange", "sums", "versions", "settings"]


def test_a_closed_door_ends_it_before_anything_is_set_up(done, monkeypatch):
    def find_closed(link):
        raise RendezvousError("closed")

    monkeypatch.setattr(gathering, "require_open_doors", find_closed)
    with pytest.raises(RendezvousError, match="closed"), gather(done):
        pass
    assert done == []


@pytest.mark.parametrize("index", [0, 1])
def test_the_chief_alone_says_that_workers_have_nothing_to_do(done, caplog, index):
    with gather(done, index):
        pass
    assert ("1 of them have nothing to do" in caplog.text) == (index == 0)
