"""Plans put into force: the exact options TensorFlow would use for GPUs, and rehearsals run for real.

TensorFlow is set up once per process, so everything here happens in children. Fake physical GPUs are placed in
TensorFlow's Python context, from which it computes the options it hands to its GPU runtime.
"""

import re

import pytest

from tests.support.fake_gpus import PLANNING, PREPARE
from tests.support.processes import run_code

GPU_OPTIONS = (
    PREPARE
    + """
def options(process, environ={}, **request):
    plan = plan_gpus(4, environ, **request)
    # A child started with CUDA_VISIBLE_DEVICES set to one UUID finds one GPU.
    state = show_gpus(1 if plan.process(process).environ else len(environ.get("CUDA_VISIBLE_DEVICES", "0,1,2,3").split(",")))
    runtime._Active.plan = None
    runtime.apply_plan(plan, process)
    gpu = state.config.gpu_options
    assert state._context_handle is None
    return {
        "visible": gpu.visible_device_list,
        "growth": gpu.allow_growth,
        "limits": [list(device.memory_limit_mb) for device in gpu.experimental.virtual_devices],
        "devices": [plan.data.device, plan.model.device],
    }

T, P = Process.TRAINER, Process.PRODUCER
found = {}
for data, model in ((0, 1), (1, 0), (2, 3), (3, 1)):
    found[f"dual {data} {model}"] = options(T, data_gpu=data, model_gpu=model)
    found[f"isolated trainer {data} {model}"] = options(T, data_gpu=data, model_gpu=model, isolation=True)
    found[f"isolated producer {data} {model}"] = options(P, data_gpu=data, model_gpu=model, isolation=True)
    found[f"in-process {data} {model}"] = options(T, in_process=True, data_gpu=data, model_gpu=model, isolation=True, data_limit_mib=5000)
for process in (T, P):
    found[f"split {process}"] = options(process, data_gpu=2, model_gpu=2, data_limit_mib=6000, model_limit_mib=12000)
found["single"] = options(T)
found["container"] = options(T, environ={"CUDA_VISIBLE_DEVICES": "3,1"}, data_gpu=1, model_gpu=3)
found["rehearsal"] = options(T, rehearsal=True, mode="dual")
report(found)
"""
)


@pytest.fixture(scope="module")
def gpu_options():
    return run_code(GPU_OPTIONS)


@pytest.mark.parametrize(
    ("case", "visible", "growth", "limits", "devices"),
    [
        ("dual 1 0", "0,1", True, [], ["/GPU:1", "/GPU:0"]),
        ("dual 3 1", "1,3", True, [], ["/GPU:1", "/GPU:0"]),
        ("isolated trainer 0 1", "1", False, [[16384]], ["/GPU:0", "/GPU:0"]),
        ("isolated trainer 3 1", "1", False, [[16384]], ["/GPU:0", "/GPU:0"]),
        ("isolated producer 0 1", "0", False, [[8192]], ["/GPU:0", "/GPU:0"]),
        ("in-process 1 0", "0,1", False, [[16384], [5000]], ["/GPU:1", "/GPU:0"]),
        ("in-process 3 1", "1,3", False, [[16384], [5000]], ["/GPU:1", "/GPU:0"]),
        ("split trainer", "2", False, [[12000]], ["/GPU:0", "/GPU:0"]),
        ("split producer", "0", False, [[6000]], ["/GPU:0", "/GPU:0"]),
        ("single", "0", True, [], ["/GPU:0", "/GPU:0"]),
        ("container", "0,1", True, [], ["/GPU:1", "/GPU:0"]),
        ("rehearsal", "", False, [], ["/CPU:1", "/CPU:2"]),
    ],
)
def test_tensorflow_gets_exactly_these_gpu_options(gpu_options, case, visible, growth, limits, devices):
    assert gpu_options[case] == {"visible": visible, "growth": growth, "limits": limits, "devices": devices}


REHEARSAL = (
    PLANNING
    + """
from myxtts.utils.commons import get_device_context
import tensorflow as tf
plan = plan_rehearsal(**REQUEST)
runtime.apply_plan(plan, Process(PROCESS))

def place(device):
    with get_device_context(device):
        variable = tf.Variable(tf.random.normal([8, 8]))
        return [variable.device[-6:], tf.matmul(variable, variable).device[-6:]]

@tf.function
def step(x):
    return tf.reduce_sum(tf.matmul(x, x))

with get_device_context(plan.model.device):
    loss = step(tf.ones([4, 4]))
report({
    "logical": runtime.list_logical_devices(),
    "data": place(plan.data.device),
    "model": place(plan.model.device),
    "step": loss.device[-6:],
    "elsewhere": tf.constant(1.0).device[-6:],
    "active": runtime.active_plan() == plan,
})
"""
)


def rehearse(process, **request):
    return run_code(REHEARSAL.replace("REQUEST", repr(request)).replace("PROCESS", repr(process)))


@pytest.mark.parametrize(
    ("request_values", "process", "cpus", "data", "model"),
    [
        # A process each: what the others show as well is left to the long tests.
        pytest.param({}, "trainer", 2, 1, 1, marks=pytest.mark.soak),
        ({"data_gpu": 0, "model_gpu": 1}, "trainer", 3, 1, 2),
        pytest.param({"mode": "isolated"}, "trainer", 2, 1, 1, marks=pytest.mark.soak),
        ({"mode": "isolated"}, "producer", 2, 1, 1),
        ({"data_gpu": 0, "model_gpu": 0, "data_limit_mib": 300, "model_limit_mib": 300}, "producer", 2, 1, 1),
        ({"data_gpu": 1, "model_gpu": 0, "isolation": True, "in_process": True}, "trainer", 3, 2, 1),
    ],
)
def test_a_rehearsal_runs_its_roles_on_their_own_logical_cpus(request_values, process, cpus, data, model):
    seen = rehearse(process, **request_values)
    assert seen["logical"] == [f"/CPU:{n}" for n in range(cpus)]
    assert seen["data"] == [f":CPU:{data}"] * 2
    assert seen["model"] == [f":CPU:{model}"] * 2
    assert seen["step"] == f":CPU:{model}"
    assert seen["elsewhere"] == ":CPU:0"
    assert seen["active"]


GPU_LOG = PREPARE + "runtime.apply_plan(plan_gpus(2, **REQUEST))\nreport(lines)"


def test_the_log_on_two_gpus_has_the_lines_people_look_for():
    lines = run_code(GPU_LOG.replace("REQUEST", "dict(data_gpu=0, model_gpu=1)"))
    assert lines == [
        "Configuring Multi-GPU Mode...",
        "Data Processing GPU: 0",
        "Model Training GPU: 1",
        "Set visible devices: GPU 0 and GPU 1",
        "Configured memory growth for data GPU",
        "Configured memory growth for model GPU",
        "Multi-GPU configuration completed successfully",
        "Multi-GPU Mode: Model will be placed on /GPU:1",
        "(Original GPU 1 is now mapped to GPU:1)",
    ]


def test_the_log_of_an_isolated_trainer_speaks_of_its_one_card():
    lines = run_code(GPU_LOG.replace("REQUEST", "dict(data_gpu=0, model_gpu=1, isolation=True)"))
    assert "Set visible devices: GPU 1" in lines
    assert "Set memory limit for model GPU: 16384 MB" in lines
    assert "/GPU:0 (physical GPU 1)" in lines
    assert not any("growth" in line for line in lines)


REFUSED = """
errors = []
def ask(call):
    try:
        call()
    except (DevicesInUseError, PlacementError) as error:
        errors.append(str(error))
"""
SECOND_PLAN = """
first = plan_rehearsal(mode="dual")
runtime.apply_plan(first)
runtime.apply_plan(first)
ask(lambda: runtime.apply_plan(plan_rehearsal()))
report([errors, runtime.active_plan() == first])
"""
TOO_LATE = """
import tensorflow as tf
tf.constant(1.0)
ask(lambda: runtime.apply_plan(plan_rehearsal(mode="dual")))
ask(lambda: runtime.set_thread_pools(1, 1))
report([errors, runtime.active_plan() is None])
"""
NOT_FOUND = """
ask(lambda: runtime.apply_plan(plan_gpus(2, data_gpu=0, model_gpu=1)))
report([errors, runtime.active_plan() is None])
"""


@pytest.mark.parametrize(
    ("code", "said"),
    [
        (SECOND_PLAN, [r"A device plan \(dual mode\) is already in force"]),
        (TOO_LATE, ["plan comes too late: TensorFlow is already initialised.*makes a tensor", "pools come too late"]),
        (NOT_FOUND, [r"driver shows GPU 0 and GPU 1.*pip install 'tensorflow\[and-cuda\]'"]),
    ],
    ids=["a second plan", "one that comes too late", "cards that TensorFlow does not find"],
)
def test_a_plan_that_cannot_be_had_is_an_error_and_not_in_force(code, said):
    errors, is_as_before = run_code(PLANNING + REFUSED + code)
    assert [bool(re.search(words, error, re.DOTALL)) for words, error in zip(said, errors, strict=True)] == [
        True
    ] * len(said)
    assert is_as_before


IMPORTED_FIRST = """
import os
os.environ.pop("CUDA_DEVICE_ORDER", None)
import tensorflow
""" + GPU_LOG.replace("REQUEST", "dict(data_gpu=0, model_gpu=1)")


def test_tensorflow_imported_first_is_worth_a_warning():
    assert any("TensorFlow was imported before MyXTTS" in line for line in run_code(IMPORTED_FIRST))


EXECUTION = """
from dataclasses import asdict
from myxtts.devices import runtime
before = asdict(runtime.read_execution())
runtime.apply_execution(runtime.Execution(intra_op=1, inter_op=2, is_deterministic=True, is_synchronous=False))
import tensorflow as tf
try:
    tf.random.normal([1])
    refused = ""
except RuntimeError as error:
    refused = str(error)
report([before, asdict(runtime.read_execution()), refused])
"""


def test_a_process_runs_operations_as_another_one_does():
    before, after, refused = run_code(EXECUTION)
    assert before == {"intra_op": 0, "inter_op": 0, "is_deterministic": False, "is_synchronous": True}
    assert after == {"intra_op": 1, "inter_op": 2, "is_deterministic": True, "is_synchronous": False}
    assert "determinism" in refused, "determinism is really on: random operations without a seed are refused"


def test_thread_pools_are_read_back_from_the_process_whoever_set_them():
    found = run_code(
        """
import os
os.environ |= {"TF_NUM_INTRAOP_THREADS": "3", "TF_NUM_INTEROP_THREADS": "5"}
from myxtts.devices import runtime
report([runtime.read_execution().intra_op, runtime.start_devices()])
"""
    )
    # The setting knows nothing of the variable.
    assert found == [0, 8]
