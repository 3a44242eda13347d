"""Two roles, two devices: work and variables stay where the plan puts them. Runs without GPUs, on logical CPU devices.

python -m unittest tests.test_dual_gpu_device_placement -v
"""

import sys
import unittest
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # for `python tests/...` straight from a checkout

from tests.support.processes import run_code

PLACE = """
from myxtts.devices import runtime
from myxtts.devices.machine import read_machine
from myxtts.devices.plan import PlanRequest
from myxtts.devices.planning import plan_devices
from myxtts.utils.commons import get_device_context
import tensorflow as tf

plan = plan_devices(PlanRequest(rehearsal=True, data_gpu={data}, model_gpu={model}), read_machine({{}}))
runtime.apply_plan(plan)

@tf.function
def prepare(x):
    return tf.abs(tf.signal.rfft(x))

@tf.function
def train(weights, batch):
    with tf.GradientTape() as tape:
        tape.watch(weights)
        loss = tf.reduce_sum(tf.matmul(batch, weights) ** 2)
    return loss, tape.gradient(loss, weights)

with get_device_context(plan.data.device):
    batch = prepare(tf.random.normal([4, 64]))
with get_device_context(plan.model.device):
    weights = tf.Variable(tf.random.normal([33, 2]))
    arrived = tf.identity(batch)
    loss, gradient = train(weights, arrived)
report([tensor.device[-6:] for tensor in (batch, arrived, weights, loss, gradient)])
"""


class DualDevicePlacement(unittest.TestCase):
    def check(self, data: int, model: int, data_device: str, model_device: str) -> None:
        placed = run_code(PLACE.format(data=data, model=model))
        self.assertEqual(placed, [data_device] + [model_device] * 4)

    def test_the_data_device_prepares_and_the_model_device_trains(self) -> None:
        self.check(0, 1, ":CPU:1", ":CPU:2")

    def test_ids_in_reverse_order_do_not_swap_the_roles(self) -> None:
        self.check(3, 1, ":CPU:2", ":CPU:1")


if __name__ == "__main__":
    unittest.main()
