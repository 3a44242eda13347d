"""Nothing loads or initialises TensorFlow too early, and the environment is ready when it loads."""

import pytest

from tests.support.fake_gpus import PLANNING
from tests.support.processes import ROOT, clean_environ, run_code

IMPORT_EVERYTHING = """
import pkgutil, importlib
import myxtts
names = [module.name for module in pkgutil.walk_packages(myxtts.__path__, "myxtts.") if not module.name.endswith("__main__")]
for name in names:
    importlib.import_module(name)
from tensorflow.python.eager import context
state = context.context_safe()
before = state is not None and state._context_handle is not None
PLANNING
runtime.apply_plan(plan_rehearsal(mode="dual"))
report([before, runtime.list_logical_devices(), len(names)])
"""


def test_importing_every_module_leaves_tensorflow_open_to_a_plan():
    initialised, devices, count = run_code(IMPORT_EVERYTHING.replace("PLANNING", PLANNING))
    assert not initialised
    assert devices == ["/CPU:0", "/CPU:1", "/CPU:2"]
    assert count > 20


def test_these_modules_do_not_import_tensorflow():
    code = """
import myxtts.config, myxtts.cli.main, myxtts.cli.train, myxtts.cli.devices, myxtts.devices.planning, myxtts.devices.nvml
import myxtts.devices.machine, myxtts.training.run_folder, myxtts.utils.gpu_memory, myxtts.utils.commons
import myxtts.monitoring.live_view, myxtts.monitoring.summary, myxtts.monitoring.memory, myxtts.monitoring.tensorboard
import myxtts.reports.pages
report([name for name in ("tensorflow", "keras") if name in sys.modules])
"""
    assert run_code(code) == []


RECORD_ENVIRONMENT = """
import os
seen = {}
class Recorder:
    def find_spec(self, name, path=None, target=None):
        if name == "tensorflow":
            seen.update({key: os.environ.get(key) for key in ("CUDA_DEVICE_ORDER", "KERAS_BACKEND")})
        return None
sys.meta_path.insert(0, Recorder())
"""


@pytest.mark.parametrize(
    "entry",
    [
        "import myxtts.devices.runtime",
        "from myxtts.utils.commons import get_device_context; get_device_context()",
        "from myxtts.utils.gpu_memory import setup_gpu_memory_isolation; setup_gpu_memory_isolation(0, 1)",
        "import myxtts.training.memory_isolated_trainer",
    ],
)
def test_cards_are_counted_by_bus_before_tensorflow_loads(entry):
    environ = clean_environ(MYXTTS_REHEARSAL="1")
    environ.pop("KERAS_BACKEND", None)
    seen = run_code(RECORD_ENVIRONMENT + entry + "\nreport(seen)", environ)
    assert seen == {"CUDA_DEVICE_ORDER": "PCI_BUS_ID", "KERAS_BACKEND": "tensorflow"}


def test_help_is_quick_because_tensorflow_is_not_there():
    # Not a timed assertion: what makes it quick is that none of the slow modules is imported.
    code = f"""
import runpy
sys.argv = ["train_main.py", "--help"]
try:
    runpy.run_path({str(ROOT / "train_main.py")!r}, run_name="__main__")
except SystemExit:
    pass
report([name for name in ("tensorflow", "keras", "numpy", "psutil", "pynvml") if name in sys.modules])
"""
    assert run_code(code) == []
