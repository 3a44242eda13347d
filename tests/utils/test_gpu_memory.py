"""GPU memory by physical id, through the real bindings over the NVML stub."""

import math

import pytest

from myxtts.devices.leaks import PeakHistory
from tests.support.fake_gpus import LOG_LINES, PLANNING, PREPARE
from tests.support.nvml import NOT_SUPPORTED, StubCard
from tests.support.processes import run_code

MONITOR = """
import dataclasses
from myxtts.utils.gpu_memory import log_memory_stats, monitor_gpu_memory
log_memory_stats(1, 0, step=12)
report([*(dataclasses.asdict(reading) for reading in monitor_gpu_memory(1, 0)), lines])
"""


def test_readings_and_log_lines_come_in_the_order_asked_for_and_unknown_stays_unknown(make_machine):
    machine = make_machine(StubCard(0, used=700), StubCard(1, memory=NOT_SUPPORTED))
    first, second, lines = run_code(LOG_LINES + MONITOR, machine.environ())
    assert (first["gpu_id"], first["total_mb"], first["used_mb"], first["free_mb"]) == (1, None, None, None)
    assert (second["gpu_id"], second["used_mb"], second["free_mb"]) == (0, 700, 23864)
    assert second["pool_used_mb"] is None
    said = ("Data GPU 1: unknown of unknown MB used", "Model GPU 0: 700 of 24564 MB used")
    assert lines == [f"[Step 12] {each}" for each in said]


ASK = """
from myxtts.utils.gpu_memory import FUNCTION

def ask(*call):
    try:
        return FUNCTION(*call)
    except ValueError as error:
        return str(error)

report([ask(*call) for call in CALLS])
"""


def ask(machine, function, calls):
    return run_code(ASK.replace("FUNCTION", function).replace("CALLS", repr(calls)), machine.environ())


def test_each_fraction_is_of_its_own_cards_free_memory(make_machine):
    machine = make_machine(StubCard(0, used=564), StubCard(1, name="RTX 3080", total=10240, used=240))
    shared = 24000 - 1024
    expected = {
        (0, 1): [int((24000 - 512) * 0.33), int((10000 - 512) * 0.67)],
        (1, 0, 0.5, 1.0): [(10000 - 512) // 2, 24000 - 512],
        (0, 1, None, None): [8192, 8192],
        (0, 0, 0.4, 0.6): [int(shared * 0.4), int(shared * 0.6)],
        (0, 0, None, None): [int(shared / 3), int(shared * 2 / 3)],
        (0, 0, None, 0.75): [int(shared * 0.25), int(shared * 0.75)],
    }
    assert ask(machine, "get_optimal_memory_limits", list(expected)) == list(expected.values())


REFUSED_FRACTIONS = {
    (0, 0, 0.5, 0.6): "must sum to at most 1",
    (0, 1, 0.0, 0.5): "data_fraction must be above 0",
    (0, 1, 0.3, 1.5): "model_fraction must be above 0 and at most 1",
    (0, 7): "There is no GPU 7; present: 0, 1",
    ("0", 1): "data_gpu_id must be the number of a card",
}
REFUSED_ISOLATION = {
    (0, 5): "Insufficient GPUs for Multi-GPU Mode: asked for GPU 0 and GPU 5",
    (0, 1, 30000): "data_gpu_memory_limit 30000 does not fit",
    (0, 0, 100, 100): "Isolation inside one process needs two cards",
    (0, 1, -5): "data_gpu_memory_limit must be a whole number of MB above 0, or None to have it computed, but is -5",
    (0, 1, 4096.7): "but is 4096.7",
    (0, 1, "4096"): "but is '4096'",
    (0, "1"): "model_gpu_id must be the number of a card",
    (0, 2, 4096, 16384): "model_gpu_memory_limit 16384 does not fit",
}


@pytest.mark.parametrize(
    ("function", "refused"),
    [("get_optimal_memory_limits", REFUSED_FRACTIONS), ("setup_gpu_memory_isolation", REFUSED_ISOLATION)],
)
def test_what_cannot_be_had_is_a_clear_error(make_machine, function, refused):
    cards = [StubCard(0), StubCard(1), StubCard(2, name="RTX 3080", total=10240)]
    machine = make_machine(*(cards if function == "setup_gpu_memory_isolation" else cards[:2]))
    for said, words in zip(ask(machine, function, list(refused)), refused.values(), strict=True):
        assert words in said


LEAK = """
import os, pathlib
from myxtts.utils.gpu_memory import detect_memory_leak
file = pathlib.Path(os.environ["NVML_STUB"])
text = file.read_text()
answers = []
for step in range(STEPS):
    file.write_text(text.replace(" 500 ", f" {USED} "))
    answers.append(detect_memory_leak(0, 500))
report(answers)
"""


def run_leak(machine, used, steps=60):
    return run_code(LEAK.replace("STEPS", str(steps)).replace("USED", used), machine.environ())


def test_growth_that_goes_on_is_a_leak_and_one_jump_or_the_unknown_is_none(make_machine):
    answers = run_leak(make_machine(StubCard(0)), "500 + 10 * step")
    assert any(answers)
    assert not any(answers[:10])
    assert not any(run_leak(make_machine(StubCard(0)), "500 if step < 20 else 5000"))
    assert not any(run_leak(make_machine(StubCard(0, memory=NOT_SUPPORTED)), "500"))


def test_a_history_stays_small_and_still_sees_a_slow_leak():
    history = PeakHistory()
    for step in range(10_000):
        # A sawtooth of 50 on top of a growth of 0.02 per reading.
        history.add(1000 + 0.02 * step + 50 * abs(math.sin(step)))
    assert len(history.stretches) < PeakHistory.CAPACITY
    assert history.measure_growth() > 50


FAKE_GPUS = (
    PREPARE
    + """
import os
from pathlib import Path
from myxtts.devices.plan import Growth, Limit, Role, RolePlan
from myxtts.utils import gpu_memory

def hold(mib):
    # What the driver says of this process from now on.
    with Path(os.environ["NVML_STUB"]).open("a") as file:
        file.write(f"process 0 {os.getpid()} {mib}\\n")

def ask_room(memory, card=0):
    return gpu_memory.read_room_mib(RolePlan(Role.MODEL, Process.TRAINER, "/GPU:0", card, memory))

def start(used_mib):
    # From here on TensorFlow counts as initialised, with a pool that the test decides about.
    runtime._is_initialised = lambda: True
    pools = {"GPU:0": {"current": used_mib << 20, "peak": 400 << 20}, "GPU:1": {"current": 5 << 20, "peak": 6 << 20}}
    runtime.tf.config.experimental.get_memory_info = pools.get
"""
)


def test_a_default_that_does_not_fit_is_reported_and_the_pool_is_read_by_role(make_machine):
    machine = make_machine(StubCard(0, used=2000), StubCard(1, name="RTX 3080", total=8192, used=0))
    code = """
plan = gpu_memory.setup_gpu_memory_isolation(1, 0)
before = gpu_memory.monitor_gpu_memory(0)[0].pool_used_mb
start(300)
model, data = gpu_memory.monitor_gpu_memory(0, 1)
roles = [gpu_memory.read_role_memory(plan.model)]
hold(plan.model.limit_mib + 450)
roles.append(gpu_memory.read_role_memory(plan.model))
report([[before, model.used_mb, model.pool_used_mb, model.pool_peak_mb, data.pool_used_mb],
        [[role.used_mb, role.peak_mb, role.pool_mb, role.context_mb] for role in roles], lines])
"""
    values, roles, lines = run_code(FAKE_GPUS + code, machine.environ())
    assert values == [None, 2000, 300, 400, 5]
    # Beside a limited pool, which is taken whole, the driver counts the context.
    assert roles == [[300, 400, 300, None], [300, 400, 300, 450]]
    assert any("instead of the default 8192 MB" in line for line in lines)


def test_a_rehearsal_asked_for_by_flag_is_seen_by_the_readings(make_machine):
    code = """
from myxtts.utils.gpu_memory import get_optimal_memory_limits, read_role_memory
plan = plan_rehearsal(mode="dual")
runtime.apply_plan(plan)
reading = read_role_memory(plan.model)
report([reading.device, reading.used_mb > 100, get_optimal_memory_limits(0, 1)[0] < 0.34 * read_machine().host_free_mib])
"""
    environ = make_machine(StubCard(0, used=7), StubCard(1, used=7)).environ()
    assert run_code(PLANNING + code, environ) == ["/CPU:2", True, True]


def test_the_room_of_a_role_without_a_limit_is_what_is_free_less_the_context(make_machine):
    machine = make_machine(StubCard(0, total=8000, used=1000), StubCard(1, memory=NOT_SUPPORTED))
    code = """
runtime.apply_plan(plan_gpus(1))
nothing = [ask_room(Limit(100)), ask_room(None), ask_room(Growth(), None), ask_room(Growth(), 1)]
fresh = ask_room(Growth())
start(300)
unclear = ask_room(Growth())
hold(900)
report([nothing, fresh, unclear, ask_room(Growth())])
"""
    nothing, fresh, unclear, own = run_code(FAKE_GPUS + code, machine.environ())
    assert nothing == [None] * 4
    assert fresh == 7000 - 512
    assert unclear is None, "how much of what is taken is its own is not known"
    assert own == 7000 + 900 - 512, "what this process holds already it has"
