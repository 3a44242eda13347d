"""Code for a process of its own in which TensorFlow believes in two cards, up to the moment it would use them."""

PREPARE = """
import logging
from myxtts.devices import runtime
from tensorflow.python.eager import context
from myxtts.utils.commons import setup_logging

lines = []
handler = logging.Handler()
handler.emit = lambda record: lines.append(record.getMessage())
setup_logging().addHandler(handler)
state = context.context()
state._initialize_physical_devices()
gpus = [context.PhysicalDevice(f"/physical_device:GPU:{n}", "GPU") for n in range(2)]
state._physical_devices += gpus
state._visible_device_list = list(state._physical_devices)
state._memory_growth_map = {gpu: None for gpu in gpus}
"""
