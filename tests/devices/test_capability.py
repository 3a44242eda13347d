"""Cards that the installed TensorFlow was not built for: found by the driver's answer, told, and never compiled for."""

import os
from dataclasses import replace

import pytest

from myxtts.cli.devices import format_devices
from myxtts.config import XTTSConfig
from myxtts.devices import machine as machines
from myxtts.devices.machine import BuiltFor, Machine, read_built_for, reuse_compiled
from myxtts.devices.nvml import Card, CardScan, PhysicalId
from myxtts.devices.plan import PlanRequest, choose_xla
from myxtts.devices.planning import plan_devices
from myxtts.errors import DevicePlanError
from tests.support.nvml import StubCard
from tests.support.processes import run_code

BUILT = BuiltFor((6, 0), (9, 0), "2.21.0")


def make_machine(*capabilities, built=BUILT):
    cards = [Card(PhysicalId(id), "RTX", f"GPU-{id}", "", 24000, 23000, each) for id, each in enumerate(capabilities)]
    return Machine(CardScan(tuple(cards), (), None), 20000, {}, built)


def test_the_driver_is_asked_and_tensorflow_is_read_without_being_imported(make_machine):
    machine = make_machine(StubCard(0), StubCard(1), extra=["capability 1 12 0"])
    code = """
import sys
from myxtts.devices.machine import read_machine
machine = read_machine()
report([[card.capability for card in machine.cards], machine.built, "tensorflow" in sys.modules])
"""
    capabilities, built, is_imported = run_code(code, machine.environ())
    assert (capabilities, is_imported) == ([[8, 9], [12, 0]], False)
    assert tuple(map(tuple, built[:2])) == read_built_for()[:2]


@pytest.mark.parametrize("built", [BUILT, None])
@pytest.mark.parametrize("capability", [(6, 1), (8, 6), (8, 9), (9, 0), None])
def test_a_card_of_the_build_or_an_unknown_one_is_compiled_for(capability, built):
    plan = plan_devices(PlanRequest(wants_xla=True), make_machine(capability, built=built))
    assert (plan.serves_xla, plan.notes) == (True, ())
    assert choose_xla(XTTSConfig(), plan)
    assert not choose_xla(XTTSConfig(data={"pad_to_fixed_length": False}), plan)
    assert not choose_xla(XTTSConfig(data={"enable_xla": False}), plan)


@pytest.mark.parametrize(
    ("capability", "version", "told"),
    [
        ((12, 0), "2.21.0", "Without XLA it was seen to work"),
        ((12, 0), "2.20.1", "its first operation fails. Install TensorFlow 2.21"),
        ((5, 2), "2.21.0", "nothing runs on it"),
    ],
)
def test_another_card_is_told_at_the_start_and_in_the_list_and_xla_is_refused(capability, version, told):
    machine = make_machine((8, 9), capability, built=BUILT._replace(version=version))
    plan = plan_devices(PlanRequest(data_gpu=0, model_gpu=1), machine)
    (note,) = plan.notes
    assert note.startswith(f"GPU 1 (RTX) has compute capability {capability[0]}.{capability[1]}, but TensorFlow")
    assert told in note
    assert not choose_xla(XTTSConfig(), plan)
    assert f"Note    {note}" in format_devices(machine, [])
    with pytest.raises(DevicePlanError, match="XLA was asked for"):
        plan_devices(PlanRequest(data_gpu=0, model_gpu=1, wants_xla=True), machine)
    # A card that only prepares needs no XLA, and one that nobody uses is no worth a word at the start.
    swapped = plan_devices(PlanRequest(data_gpu=1, model_gpu=0, wants_xla=True), machine)
    assert (swapped.serves_xla, swapped.notes) == (True, (note,))
    alone = replace(machine, scan=CardScan(machine.cards[:1], (), None))
    assert plan_devices(PlanRequest(), alone).notes == ()


def test_a_cpu_is_compiled_for_only_where_it_was_asked():
    plan = plan_devices(PlanRequest(rehearsal=True), make_machine((8, 9)))
    assert not choose_xla(XTTSConfig(), plan)
    assert choose_xla(XTTSConfig(data={"enable_xla": True}), plan)


def test_what_xla_compiled_for_a_card_is_kept_by_the_user_and_not_without_end(tmp_path, monkeypatch):
    (card,) = make_machine((8, 6)).cards
    environ = {"XDG_CACHE_HOME": str(tmp_path), "TF_XLA_FLAGS": "--tf_xla_max_cluster_size=9"}
    folder = reuse_compiled(environ, card)
    assert (folder.parent, folder.name) == (tmp_path / "myxtts" / "xla", f"{read_built_for().version}-8.6")
    assert folder.stat().st_mode & 0o077 == 0
    first, *others = environ["TF_XLA_FLAGS"].split()
    assert first == "--tf_xla_max_cluster_size=9"
    assert f"--tf_xla_persistent_cache_directory={folder}" in others
    monkeypatch.setattr(machines, "XLA_FOLDER_BYTES", 10)
    for age, name in enumerate(["new", "older", "oldest"]):
        (folder / name).write_bytes(b"12345")
        os.utime(folder / name, (1000 - age, 1000 - age))
    reuse_compiled({"XDG_CACHE_HOME": str(tmp_path)}, card)
    assert sorted(file.name for file in folder.iterdir()) == ["new", "older"]


KEPT = """
import os
os.environ["TF_XLA_FLAGS"] = "--tf_xla_persistent_cache_directory={folder} --tf_xla_persistent_cache_device_types=CPU"
import tensorflow as tf
tf.function(lambda x: tf.reduce_sum(tf.nn.softmax(x @ x)), jit_compile=True, autograph=False)(tf.ones([8, 8]))
report(len(os.listdir("{folder}")))
"""


def test_tensorflow_keeps_what_is_compiled_under_the_names_of_these_options(tmp_path):
    assert [run_code(KEPT.format(folder=tmp_path)) for _ in range(2)] == [1, 1]
