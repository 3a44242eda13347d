"""GPU memory by physical id, through the real bindings over the NVML stub."""

import math
import random

import pytest

from myxtts.devices.leaks import PeakHistory
from myxtts.devices.plan import Growth, Limit, Process, RolePlan
from myxtts.utils import gpu_memory
from tests.support import fake_gpus
from tests.support.nvml import NOT_SUPPORTED, StubCard
from tests.support.processes import clean_environ, run_code

MONITOR = """
import dataclasses
from myxtts.utils.gpu_memory import monitor_gpu_memory
report([dataclasses.asdict(reading) for reading in monitor_gpu_memory(1, 0)])
"""


def test_readings_come_in_the_order_asked_for_and_unknown_stays_unknown(make_machine):
    first, second = run_code(MONITOR, make_machine(StubCard(0, used=700), StubCard(1, memory=NOT_SUPPORTED)).environ())
    assert (first["gpu_id"], first["total_mb"], first["used_mb"], first["free_mb"]) == (1, None, None, None)
    assert (second["gpu_id"], second["used_mb"], second["free_mb"]) == (0, 700, 23864)
    assert second["pool_used_mb"] is None


def test_one_line_per_role_is_logged_with_the_step(make_machine):
    code = """
import logging
from myxtts.utils.commons import setup_logging
from myxtts.utils.gpu_memory import log_memory_stats
lines = []
handler = logging.Handler()
handler.emit = lambda record: lines.append(record.getMessage())
setup_logging().addHandler(handler)
log_memory_stats(1, 0, step=12)
report(lines)
"""
    machine = make_machine(StubCard(0, used=700), StubCard(1, memory=NOT_SUPPORTED))
    assert run_code(code, machine.environ()) == [
        "[Step 12] Data GPU 1: unknown of unknown MB used",
        "[Step 12] Model GPU 0: 700 of 24564 MB used",
    ]


LIMITS = """
from myxtts.utils.gpu_memory import get_optimal_memory_limits
try:
    report(get_optimal_memory_limits(CALL))
except ValueError as error:
    report(str(error))
"""


@pytest.mark.parametrize(
    ("call", "expected"),
    [
        ("0, 1", [int((24000 - 512) * 0.33), int((10000 - 512) * 0.67)]),
        ("1, 0, 0.5, 1.0", [(10000 - 512) // 2, 24000 - 512]),
        ("0, 1, None, None", [8192, 8192]),
        ("0, 0, 0.4, 0.6", [int((24000 - 1024) * 0.4), int((24000 - 1024) * 0.6)]),
        ("0, 0, None, None", [int((24000 - 1024) / 3), int((24000 - 1024) * 2 / 3)]),
        ("0, 0, None, 0.75", [int((24000 - 1024) * 0.25), int((24000 - 1024) * 0.75)]),
    ],
)
def test_each_fraction_is_of_its_own_cards_free_memory(make_machine, call, expected):
    machine = make_machine(StubCard(0, used=564), StubCard(1, name="RTX 3080", total=10240, used=240))
    assert run_code(LIMITS.replace("CALL", call), machine.environ()) == expected


@pytest.mark.parametrize(
    ("call", "words"),
    [
        ("0, 0, 0.5, 0.6", "must sum to at most 1"),
        ("0, 1, 0.0, 0.5", "data_fraction must be above 0"),
        ("0, 1, 0.3, 1.5", "model_fraction must be above 0 and at most 1"),
        ("0, 7", "There is no GPU 7; present: 0, 1"),
        ("'0', 1", "data_gpu_id must be the number of a card"),
    ],
)
def test_fractions_that_cannot_be_are_refused(make_machine, call, words):
    assert words in run_code(LIMITS.replace("CALL", call), make_machine(StubCard(0), StubCard(1)).environ())


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


def test_growth_that_goes_on_is_a_leak(make_machine):
    answers = run_leak(make_machine(StubCard(0)), "500 + 10 * step")
    assert any(answers)
    assert not any(answers[:10])


def test_one_jump_is_not_a_leak(make_machine):
    assert not any(run_leak(make_machine(StubCard(0)), "500 if step < 20 else 5000"))


def test_unknown_memory_is_no_leak(make_machine):
    assert not any(run_leak(make_machine(StubCard(0, memory=NOT_SUPPORTED)), "500"))


def test_a_history_stays_small_and_still_sees_a_slow_leak():
    history = PeakHistory()
    for step in range(10_000):
        # A sawtooth of 50 on top of a growth of 0.02 per reading.
        history.add(1000 + 0.02 * step + 50 * abs(math.sin(step)))
    assert len(history.stretches) < PeakHistory.CAPACITY
    assert history.measure_growth() > 50


@pytest.mark.parametrize("spread", [0.5, 5, 50])
def test_noise_far_above_the_baseline_never_grows_like_a_leak(spread):
    for seed in range(20):
        noise = random.Random(seed)
        history = PeakHistory()
        for _ in range(2000):
            history.add(5000 + noise.uniform(-spread, spread))
            assert history.measure_growth() <= 50


def test_growth_during_warm_up_is_forgotten():
    history = PeakHistory()
    for step in range(200):
        history.add(min(step, history.warm_up - 1) * 100)
        assert history.measure_growth() == 0


ISOLATION = """
import dataclasses
from myxtts.utils.gpu_memory import read_role_memory, setup_gpu_memory_isolation
try:
    plan = setup_gpu_memory_isolation(CALL)
    report([plan.mode, plan.data.device, plan.model.device, plan.data.memory.mib, plan.model.memory.mib,
            dataclasses.asdict(read_role_memory(plan.model))])
except ValueError as error:
    report(str(error))
"""


def test_isolation_in_this_process_rehearses_with_the_roles_in_place():
    mode, data, model, data_mib, model_mib, reading = run_code(
        ISOLATION.replace("CALL", "1, 0, 600, 900"), clean_environ(MYXTTS_REHEARSAL="1")
    )
    assert (mode, data, model) == ("isolated", "/CPU:2", "/CPU:1")
    assert (data_mib, model_mib) == (600, 900)
    assert (reading["id"], reading["device"], reading["limit_mb"]) == (0, "/CPU:1", 900)
    assert reading["used_mb"] > 100


@pytest.mark.parametrize(
    ("call", "words"),
    [
        ("0, 5", "Insufficient GPUs for Multi-GPU Mode: asked for GPU 0 and GPU 5"),
        ("0, 1, 30000", "data_gpu_memory_limit 30000 does not fit"),
        ("0, 0, 100, 100", "Isolation inside one process needs two cards"),
        (
            "0, 1, -5",
            "data_gpu_memory_limit must be a whole number of MB above 0, or None to have it computed, but is -5",
        ),
        ("0, 1, 4096.7", "but is 4096.7"),
        ("0, 1, '4096'", "but is '4096'"),
        ("0, '1'", "model_gpu_id must be the number of a card"),
        ("0, 2, 4096, 16384", "model_gpu_memory_limit 16384 does not fit"),
    ],
)
def test_isolation_that_cannot_be_had_is_a_clear_error(make_machine, call, words):
    machine = make_machine(StubCard(0), StubCard(1), StubCard(2, name="RTX 3080", total=10240))
    assert words in run_code(ISOLATION.replace("CALL", call), machine.environ())


FAKE_GPUS = (
    fake_gpus.PREPARE
    + """
from myxtts.utils import gpu_memory
plan = gpu_memory.setup_gpu_memory_isolation(1, 0)
before = gpu_memory.monitor_gpu_memory(0)[0].pool_used_mb
# From here on TensorFlow counts as initialised, with a pool that the test decides about.
runtime._is_initialised = lambda: True
pools = {"GPU:0": {"current": 300 << 20, "peak": 400 << 20}, "GPU:1": {"current": 5 << 20, "peak": 6 << 20}}
runtime.tf.config.experimental.get_memory_info = pools.get
"""
)


def test_a_default_that_does_not_fit_is_reported_and_the_pool_is_read_by_role(make_machine):
    machine = make_machine(StubCard(0, used=2000), StubCard(1, name="RTX 3080", total=8192, used=0))
    code = """
model, data = gpu_memory.monitor_gpu_memory(0, 1)
role = gpu_memory.read_role_memory(plan.model)
report([before, model.used_mb, model.pool_used_mb, model.pool_peak_mb, data.pool_used_mb, role.used_mb, role.peak_mb, lines])
"""
    *values, lines = run_code(FAKE_GPUS + code, machine.environ())
    assert values == [None, 2000, 300, 400, 5, 300, 400]
    assert any("instead of the default 8192 MB" in line for line in lines)


def test_a_rehearsal_asked_for_by_flag_is_seen_by_the_readings(make_machine):
    code = """
import dataclasses
from myxtts.devices import runtime
from myxtts.devices.machine import read_machine
from myxtts.devices.plan import PlanRequest
from myxtts.devices.planning import plan_devices
from myxtts.utils.gpu_memory import get_optimal_memory_limits, read_role_memory
plan = plan_devices(PlanRequest(rehearsal=True, mode="dual"), read_machine())
runtime.apply_plan(plan)
reading = read_role_memory(plan.model)
report([reading.device, reading.used_mb > 100, get_optimal_memory_limits(0, 1)[0] < 0.34 * read_machine().host_free_mib])
"""
    assert run_code(code, make_machine(StubCard(0, used=7), StubCard(1, used=7)).environ()) == ["/CPU:2", True, True]


ROOM = """
from myxtts.devices.plan import Growth, Limit
from myxtts.devices.plan import Process, Role, RolePlan
from myxtts.utils import gpu_memory

def ask(memory, card=0, **reading):
    held = gpu_memory.monitor_gpu_memory(0)[0] if card == 0 else None
    if reading:
        gpu_memory.monitor_gpu_memory = lambda *ids: (dataclasses.replace(held, **reading),)
    return gpu_memory.read_room_mib(RolePlan(Role.MODEL, Process.TRAINER, "/GPU:0", card, memory))

import dataclasses
report([
    ask(Limit(100)), ask(None), ask(Growth(), None), ask(Growth(), 1), ask(Growth()),
    ask(Growth(), process_mb=900, pool_used_mb=300.0), ask(Growth(), process_mb=None, pool_used_mb=300.0),
])
"""


def test_the_room_of_a_role_without_a_limit_is_what_is_free_less_the_context(make_machine):
    machine = make_machine(StubCard(0, total=8000, used=1000), StubCard(1, memory=NOT_SUPPORTED))
    limited, host, nowhere, unknown, fresh, own, unclear = run_code(ROOM, machine.environ())
    assert (limited, host, nowhere, unknown) == (None, None, None, None)
    assert fresh == 7000 - 512
    assert own == 7000 + 900 - 512, "what this process holds already it has"
    assert unclear is None, "how much of what is taken is its own is not known"


@pytest.mark.parametrize(
    ("limit", "pool", "process", "context"),
    [(Limit(1000), 300.0, 1450, 450), (Growth(), 300.0, 1450, None), (Limit(1000), None, 1450, None), (Limit(1000), 300.0, None, None)],
)  # fmt: skip
def test_pool_process_and_context_are_told_apart(monkeypatch, limit, pool, process, context):
    reading = gpu_memory.GpuMemory(1, 24000, 9000, 15000, pool, pool, process)
    monkeypatch.setattr(gpu_memory, "monitor_gpu_memory", lambda gpu_id: (reading,))
    role = RolePlan(role="model", process=Process.TRAINER, physical_id=1, device="/GPU:0", memory=limit)
    memory = gpu_memory.read_role_memory(role)
    assert (memory.pool_mb, memory.process_mb, memory.context_mb) == (pool, process, context)
    assert memory.used_mb == (9000 if pool is None else pool)
