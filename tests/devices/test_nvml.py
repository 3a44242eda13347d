"""The driver's library through the real bindings, against a C stub of it."""

import json

import pytest

from tests.support.nvml import (
    DRIVER_NOT_LOADED,
    GPU_IS_LOST,
    LIBRARY_NOT_FOUND,
    NOT_SUPPORTED,
    VERSION_MISMATCH,
    StubCard,
)
from tests.support.processes import run_code, run_python

SCAN = """
import dataclasses
from myxtts.devices.nvml import scan_cards
report(dataclasses.asdict(scan_cards()))
"""


def test_two_cards_are_read_with_names_uuids_and_memory(make_machine):
    machine = make_machine(StubCard(0, used=1000), StubCard(1, name="NVIDIA GeForce RTX 3080", total=10240, used=40))
    scan = run_code(SCAN, machine.environ())
    assert scan["cards"] == [
        {"physical_id": 0, "name": "NVIDIA GeForce RTX 4090", "uuid": "GPU-00000000-stub", "bus_id": "00000000:00:00.0",
         "total_mib": 24564, "free_mib": 23564, "capability": [8, 9]},
        {"physical_id": 1, "name": "NVIDIA GeForce RTX 3080", "uuid": "GPU-00000001-stub", "bus_id": "00000000:01:00.0",
         "total_mib": 10240, "free_mib": 10200, "capability": [8, 9]},
    ]  # fmt: skip
    assert (scan["lost"], scan["problem"]) == ([], None)


@pytest.mark.parametrize(
    ("cards", "init", "lost", "problem"),
    [
        ([StubCard(0, state=GPU_IS_LOST), StubCard(1)], [], [[0, "The NVIDIA driver could not tell GPU 0: GPU is lost."]], None),
        ([], [f"init {DRIVER_NOT_LOADED}"], [], "The NVIDIA driver does not answer: Driver Not Loaded."),
        ([], [f"init {VERSION_MISMATCH}"], [], "version mismatch"),
        # What the bindings themselves answer where there is no library, on a machine that may have one.
        ([], [f"init {LIBRARY_NOT_FOUND}"], [], None),
    ],
)  # fmt: skip
def test_a_lost_card_and_a_driver_that_fails_are_told_from_a_machine_without_cards(
    make_machine, cards, init, lost, problem
):
    scan = run_code(SCAN, make_machine(*cards, extra=init).environ())
    assert [card["physical_id"] for card in scan["cards"]] == [1] * bool(cards)
    assert scan["lost"] == lost
    assert scan["problem"] is None if problem is None else problem in scan["problem"]


def test_topology_levels_and_nvlink(make_machine):
    cards = [StubCard(id) for id in range(4)]
    machine = make_machine(*cards, extra=["link 0 1 10", "link 0 2 50", "link 1 2 40", "link 0 3 50", "nvlink 0 3"])
    code = """
from myxtts.devices.machine import read_links
report([[link.connection for link in read_links(ids)] for ids in ((0, 1, 2, 3), (3, 0), (1, 0), (1,))])
"""
    all_pairs = ["PIX", "SYS", "NVLink", "NODE", "unknown", "unknown"]
    assert run_code(code, machine.environ()) == [all_pairs, ["NVLink"], ["PIX"], []]


def test_the_devices_command_lists_cards_links_and_what_is_wrong(make_machine):
    machine = make_machine(
        StubCard(0), StubCard(1, memory=NOT_SUPPORTED), StubCard(2, state=GPU_IS_LOST), extra=["link 0 1 50"]
    )
    result = run_python(["-m", "myxtts.cli.main", "devices"], machine.environ(CUDA_VISIBLE_DEVICES="0"))
    assert result.returncode == 0
    assert "GPU 0   NVIDIA GeForce RTX 4090, 24064 MB free of 24564 MB, compute capability 8.9\n" in result.stdout
    assert "unknown free of unknown, compute capability 8.9, hidden by CUDA_VISIBLE_DEVICES" in result.stdout
    assert "GPU 2   The NVIDIA driver could not tell GPU 2: GPU is lost." in result.stdout
    assert "GPU 0 - GPU 1: SYS, on different NUMA nodes" in result.stdout
    facts = json.loads(run_python(["-m", "myxtts.cli.main", "devices", "--json"], machine.environ()).stdout)
    assert facts["cards"][1]["free_mib"] is None
    assert facts["links"] == [{"first": 0, "second": 1, "connection": "SYS"}]


def test_the_devices_command_lists_cards_that_a_plan_would_refuse(make_machine):
    environ = make_machine(StubCard(0)).environ(CUDA_VISIBLE_DEVICES="MIG-1")
    result = run_python(["-m", "myxtts.cli.main", "devices", "--rehearsal"], environ)
    assert result.returncode == 0
    assert "GPU 0   NVIDIA GeForce RTX 4090" in result.stdout
    assert "MyXTTS plans with whole cards" in result.stdout


def test_activity_is_read_with_what_holds_the_clocks_down(make_machine):
    machine = make_machine(
        StubCard(0, util=93, used=700),
        StubCard(1, util=-1),
        extra=["activity 0 318500 350000 1710 1980 83 37", "activity 2 1 1 1 1 1 1"],
    )
    code = """
import dataclasses
from myxtts.devices.nvml import Nvml
with Nvml() as nvml:
    report([dataclasses.asdict(nvml.read_activity(id)) for id in (0, 1)])
"""
    busy, unknown = run_code(code, machine.environ())
    # 37 is idle (1), power limit (4) and temperature (32): being idle holds nothing down.
    assert busy == {
        "physical_id": 0, "utilization_percent": 93, "used_mib": 700, "power_w": 318.5, "power_limit_w": 350.0,
        "clock_mhz": 1710, "max_clock_mhz": 1980, "temperature_c": 83, "throttled_by": ["power limit", "temperature"],
    }  # fmt: skip
    assert unknown.pop("physical_id") == 1
    assert unknown.pop("used_mib") == 500
    assert set(unknown.values()) == {None}
