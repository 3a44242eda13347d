"""The modules people import by name set up the environment before TensorFlow reads it, however they are reached."""

import pytest

from tests.support.processes import run_code

STOP_AT_TENSORFLOW = """
import os
class Stop:
    def find_spec(self, name, path=None, target=None):
        if name == "tensorflow":
            report(os.environ.get("CUDA_DEVICE_ORDER"))
            sys.stdout.flush()
            # Loading it would take five seconds, and everything is known.
            os._exit(0)
sys.meta_path.insert(0, Stop())
import {module}
"""


@pytest.mark.parametrize("module", ["myxtts.training.trainer", "myxtts.training.memory_isolated_trainer"])
def test_cards_are_counted_as_nvidia_smi_does_before_tensorflow_is_imported(module):
    assert run_code(STOP_AT_TENSORFLOW.replace("{module}", module)) == "PCI_BUS_ID"
