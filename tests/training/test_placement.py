"""Whatever is not on the model device is found and named."""

from tests.support.processes import run_code

CHECKS = """
from myxtts.devices import runtime
from myxtts.devices.machine import read_machine
from myxtts.devices.plan import PlanRequest
from myxtts.devices.planning import plan_devices
runtime.apply_plan(plan_devices(PlanRequest(rehearsal=True, mode="dual"), read_machine({})))
import tensorflow as tf
from myxtts.errors import PlacementError
from myxtts.training.model import check_batch, check_placement, check_variables
from myxtts.utils.commons import get_device_context

def make(device, build):
    with get_device_context(device):
        return build()

def tell(check, *arguments):
    try:
        check(*arguments, ["/CPU:2"] if check is check_variables else "/CPU:2")
    except PlacementError as error:
        return str(error)

here = {device: make(device, lambda: tf.Variable([1.0])) for device in ("/CPU:1", "/CPU:2")}
floats = {device: make(device, lambda: tf.constant([1.0])) for device in here}
whole = make("/CPU:1", lambda: tf.constant([1], tf.int32))
double = tf.function(lambda x: 2.0 * x)
losses = {device: make(device, lambda: double(floats[device])) for device in here}
report({
    "variable": tell(check_variables, [("a", here["/CPU:2"]), ("b", here["/CPU:2"])]),
    "variable elsewhere": tell(check_variables, [("gpt/a", here["/CPU:2"]), ("adam/b", here["/CPU:1"])]),
    "batch": tell(check_batch, {"mel_BFM": floats["/CPU:2"], "codes_BM": whole}),
    "batch elsewhere": tell(check_batch, {"codes_BM": whole, "mel_BFM": floats["/CPU:1"]}),
    "loss": tell(check_placement, "the step's result", losses["/CPU:2"]),
    "loss elsewhere": tell(check_placement, "the step's result", losses["/CPU:1"]),
})
"""


def test_what_is_on_the_model_device_is_right_and_what_is_elsewhere_is_named_with_both_devices():
    told = run_code(CHECKS)
    names = {"variable": "Variable adam/b", "batch": "Input mel_BFM", "loss": "The step's result"}
    for what, name in names.items():
        assert told[what] is None
        assert told[f"{what} elsewhere"].startswith(f"{name} must be on /CPU:2, but is on /job:localhost/")
        assert "device:CPU:1. This is a fault of MyXTTS" in told[f"{what} elsewhere"]
