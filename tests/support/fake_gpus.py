"""Code for a process of its own: plans, and a TensorFlow that believes in cards up to the moment it would use them."""

PLANNING = """
from myxtts.devices import runtime
from myxtts.devices.machine import Machine, read_machine
from myxtts.devices.nvml import Card, CardScan
from myxtts.devices.plan import PlanRequest, Process
from myxtts.devices.planning import plan_devices
from myxtts.errors import DevicesInUseError, PlacementError

def plan_gpus(count, environ={}, in_process=False, **request):
    cards = tuple(Card(n, "RTX 4090", f"GPU-{n}", "", 24564, 24000) for n in range(count))
    return plan_devices(PlanRequest(**request), Machine(CardScan(cards, (), None), 16000, environ), in_process)

def plan_rehearsal(in_process=False, **request):
    return plan_devices(PlanRequest(rehearsal=True, **request), read_machine({}), in_process)
"""

LOG_LINES = """
import logging
from myxtts.utils.commons import setup_logging
lines = []
handler = logging.Handler()
handler.emit = lambda record: lines.append(record.getMessage())
setup_logging().addHandler(handler)
"""

PREPARE = (
    PLANNING
    + LOG_LINES
    + """
from tensorflow.python.eager import context

def show_gpus(count):
    # A fresh state, as TensorFlow has it before it is initialised.
    state = context.context()
    state._initialize_physical_devices(reinitialize=True)
    gpus = [context.PhysicalDevice(f"/physical_device:GPU:{n}", "GPU") for n in range(count)]
    state._physical_devices += gpus
    state._visible_device_list = list(state._physical_devices)
    state._memory_growth_map = {gpu: None for gpu in gpus}
    state._virtual_device_map = {}
    return state

show_gpus(2)
"""
)
