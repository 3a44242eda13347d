"""A plan that went through JSON is the same plan."""

import json

import pytest

from myxtts.devices.machine import Machine
from myxtts.devices.nvml import Card, CardScan, PhysicalId
from myxtts.devices.plan import PlanRequest, dump_plan, load_plan
from myxtts.devices.planning import plan_devices

CARDS = tuple(Card(PhysicalId(n), f"card {n}", f"GPU-{n}", f"0000:0{n}:00.0", 24576, 24000) for n in range(4))
MACHINE = Machine(CardScan(CARDS, (), None), 64000)


@pytest.mark.parametrize(
    "request_",
    [
        PlanRequest(),
        PlanRequest(rehearsal=True, data_limit_mib=300),
        PlanRequest(data_gpu=3, model_gpu=1),
        PlanRequest(data_gpu=3, model_gpu=1, isolation=True),
        PlanRequest(data_gpu=2, model_gpu=2, data_limit_mib=4096, model_limit_mib=8192),
        PlanRequest(mode="isolated", rehearsal=True),
        PlanRequest(mode="dual", rehearsal=True),
    ],
)
def test_a_plan_survives_json(request_: PlanRequest) -> None:
    plan = plan_devices(request_, MACHINE)
    assert load_plan(json.loads(json.dumps(dump_plan(plan)))) == plan
