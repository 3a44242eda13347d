"""Memory isolation: the plan of two processes, its limits, and what is refused. Runs without GPUs.

python tests/test_memory_isolation.py
"""

import sys
import unittest
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # for `python tests/...` straight from a checkout

from myxtts.devices.machine import Machine
from myxtts.devices.memory import Limit
from myxtts.devices.nvml import Card, CardScan, PhysicalId
from myxtts.devices.plan import Mode, PlanRequest, Process, plan_devices
from myxtts.errors import DevicePlanError
from tests.support.processes import clean_environ, run_code


def make_machine(*free_mib: int) -> Machine:
    cards = tuple(
        Card(PhysicalId(id), "NVIDIA GeForce RTX 3090", f"GPU-{id}", "", 24576, free)
        for id, free in enumerate(free_mib)
    )
    return Machine(CardScan(cards, (), None), host_free_mib=16000)


class IsolationPlan(unittest.TestCase):
    def test_each_process_sees_one_card_with_its_own_limit(self) -> None:
        plan = plan_devices(PlanRequest(data_gpu=0, model_gpu=1, isolation=True), make_machine(24000, 24000))
        self.assertIs(plan.mode, Mode.ISOLATED)
        self.assertEqual([card.memory for card in plan.process(Process.PRODUCER).cards], [Limit(8192)])
        self.assertEqual([card.memory for card in plan.process(Process.TRAINER).cards], [Limit(16384)])

    def test_a_limit_that_does_not_fit_is_refused_before_anything_starts(self) -> None:
        request = PlanRequest(data_gpu=0, model_gpu=1, isolation=True, model_limit_mib=20000)
        with self.assertRaisesRegex(DevicePlanError, "--model-gpu-memory 20000 does not fit"):
            plan_devices(request, make_machine(24000, 18000))

    def test_one_card_needs_both_limits(self) -> None:
        with self.assertRaisesRegex(DevicePlanError, "both limits given"):
            plan_devices(PlanRequest(data_gpu=0, model_gpu=0, isolation=True), make_machine(24000))


class IsolationInThisProcess(unittest.TestCase):
    def test_both_roles_get_their_devices_and_the_plan_is_in_force(self) -> None:
        code = """
from myxtts.devices import runtime
from myxtts.utils.gpu_memory import setup_gpu_memory_isolation
plan = setup_gpu_memory_isolation(data_gpu_id=0, model_gpu_id=1)
report([plan.data.device, plan.model.device, runtime.active_plan() == plan, runtime.list_logical_devices()])
"""
        found = run_code(code, clean_environ(MYXTTS_REHEARSAL="1"))
        self.assertEqual(found, ["/CPU:1", "/CPU:2", True, ["/CPU:0", "/CPU:1", "/CPU:2"]])

    def test_coming_too_late_is_our_error(self) -> None:
        code = """
import tensorflow as tf
from myxtts.errors import DevicesInUseError
from myxtts.utils.gpu_memory import setup_gpu_memory_isolation
tf.constant(1.0)
try:
    setup_gpu_memory_isolation(0, 1)
except DevicesInUseError as error:
    report(str(error))
"""
        text = run_code(code, clean_environ(MYXTTS_REHEARSAL="1"))
        self.assertIn("TensorFlow is already initialised", text)


if __name__ == "__main__":
    unittest.main()
