"""What a cluster cannot do is refused, with what to do instead; what its workers must share is compared."""

import pytest

from myxtts.config import XTTSConfig
from myxtts.devices.machine import read_machine
from myxtts.devices.plan import PlanRequest
from myxtts.devices.planning import plan_devices
from myxtts.errors import ClusterError
from myxtts.training.resume_rules import describe_idle_workers, list_shared_settings, refuse_plan, refuse_settings


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({}, "^--model-gpus, --cluster and `myxtts launch` need a codec[^$]*\n  myxtts train --stage codec"),
        ({"stage": "codec", "codec": "x"}, "^--stage codec is trained by one process.*Leave out --model-gpus"),
        ({"codec": "x", "loss_mean": "batches"}, "training.loss_mean must be tokens"),
        ({"codec": "x", "mode": "auto"}, "--mode single or isolated"),
    ],
)
def test_settings_that_cannot_be_shared_are_refused(settings, words):
    with pytest.raises(ClusterError, match=words):
        refuse_settings(XTTSConfig(training=settings))


@pytest.mark.parametrize("settings", [{"codec": "x"}, {"init_from": "x"}, {"stage": "decoder"}])
def test_gpts_and_decoders_can_be_trained(settings):
    refuse_settings(XTTSConfig(training=settings))


@pytest.mark.parametrize(("mode", "is_refused"), [("single", False), ("isolated", False), ("dual", True)])
def test_a_worker_sees_one_card(mode, is_refused):
    plan = plan_devices(PlanRequest(mode=mode, rehearsal=True), read_machine())
    if is_refused:
        with pytest.raises(ClusterError, match="--enable-memory-isolation"):
            refuse_plan(plan)
    else:
        refuse_plan(plan)


def test_settings_that_decide_the_result_or_the_waiting_are_compared():
    one = list_shared_settings(XTTSConfig(training={"seed": 1, "checkpoint_dir": "a", "init_from": "x"}))
    other = list_shared_settings(XTTSConfig(training={"seed": 2, "checkpoint_dir": "b", "init_from": "y"}))
    assert {key for key in one if one[key] != other[key]} == {"training.seed"}, "folders may differ"
    assert {"training.validation_interval", "training.max_steps", "data.batch_size"} <= one.keys()


def test_workers_that_have_nothing_to_do_are_counted():
    config = XTTSConfig(data={"batch_size": 3})
    assert describe_idle_workers(config, 3) is None
    assert "5 workers share batches of 3 clips, so 2 of them have nothing to do" in describe_idle_workers(config, 5)
