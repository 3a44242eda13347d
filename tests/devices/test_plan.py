"""Plans: every mode, any order of ids, limits that fit, and errors that say what would work."""

import re
import shlex

import pytest

from myxtts.cli.devices import format_devices
from myxtts.cli.main import make_parser
from myxtts.config import resolve_config
from myxtts.devices.machine import Machine, prepare_environment, select_visible
from myxtts.devices.nvml import Card, CardScan, PhysicalId
from myxtts.devices.plan import Growth, Limit, Mode, PlanRequest, Process
from myxtts.devices.planning import plan_devices, suggest_single_command
from myxtts.errors import DevicePlanError

ISOLATED = {"data_gpu": 0, "model_gpu": 1, "isolation": True}


def make_card(id, free=23000, total=24564, name="NVIDIA GeForce RTX 4090"):
    return Card(PhysicalId(id), name, f"GPU-{id:04d}-aaaa", f"0:{id}", total, free)


def make_machine(count=4, environ=None, lost=(), problem=None, **card):
    cards = tuple(make_card(id, **card) for id in range(count))
    return Machine(CardScan(cards, lost, problem), host_free_mib=20000, environ=environ or {})


def plan(machine=None, in_process=False, command=("python", "train_main.py"), **request):
    return plan_devices(PlanRequest(**request, command=command), machine or make_machine(), in_process)


def cards_of(plan, process=Process.TRAINER):
    return [(card.physical_id, card.tf_index, card.memory) for card in plan.process(process).cards]


@pytest.mark.parametrize(
    ("data", "model", "data_device", "model_device"),
    [
        (0, 1, "/GPU:0", "/GPU:1"),
        (1, 0, "/GPU:1", "/GPU:0"),
        (2, 3, "/GPU:0", "/GPU:1"),
        (3, 1, "/GPU:1", "/GPU:0"),
    ],
)
def test_dual_keeps_the_roles_in_any_order_of_ids(data, model, data_device, model_device):
    made = plan(data_gpu=data, model_gpu=model)
    assert made.mode is Mode.DUAL
    assert (made.data.device, made.data.physical_id) == (data_device, data)
    assert (made.model.device, made.model.physical_id) == (model_device, model)
    assert cards_of(made) == [(id, id, Growth()) for id in sorted((data, model))]


@pytest.mark.parametrize(
    ("request_values", "mode", "data", "trainers"),
    [
        ({"model_gpu": 3, "other_gpus": (1,)}, Mode.SINGLE, (3, "/GPU:1"), [(3, "/GPU:1"), (1, "/GPU:0")]),
        ({"data_gpu": 2, "model_gpu": 3, "other_gpus": (1,)}, Mode.DUAL, (2, "/GPU:1"), [(3, "/GPU:2"), (1, "/GPU:0")]),
        ({"mode": "dual", "model_gpu": 0, "other_gpus": (1,)}, Mode.DUAL, (2, "/GPU:2"), [(0, "/GPU:0"), (1, "/GPU:1")]),
        ({**ISOLATED, "model_gpu": 2, "other_gpus": (1,)}, Mode.ISOLATED, (0, "/GPU:0"), [(2, "/GPU:1"), (1, "/GPU:0")]),
    ],
)  # fmt: skip
def test_several_cards_train_beside_whatever_prepares(request_values, mode, data, trainers):
    made = plan(**request_values)
    assert made.mode is mode
    assert (made.data.physical_id, made.data.device) == data
    assert [(role.physical_id, role.device) for role in made.trainers] == trainers
    memory = Limit(16384) if mode is Mode.ISOLATED else Growth()
    own = {id for id, _ in trainers} | ({data[0]} if mode is Mode.DUAL else set())
    assert cards_of(made) == [(id, id, memory) for id in sorted(own)]
    rehearsed = plan(make_machine(0), rehearsal=True, **request_values)
    assert rehearsed.mode is mode
    assert [role.device for role in rehearsed.trainers] == [f"/CPU:{int(device[-1]) + 1}" for _, device in trainers]


@pytest.mark.parametrize(
    ("request_values", "words"),
    [
        ({"model_gpu": 0, "other_gpus": (9,)}, "asked for GPU 0 and GPU 9, but this machine has GPU 0 "),
        ({"mode": "dual", "model_gpu": 0, "other_gpus": (1,)}, "GPU 0 and GPU 1, and one more that prepares, but"),
    ],
)
def test_cards_that_are_not_there_to_train_are_an_error(request_values, words):
    command = ("python", "train_main.py", "--model-gpus", "0,1", "--epochs", "3")
    with pytest.raises(DevicePlanError, match=words) as caught:
        plan(make_machine(2), command=command, **request_values)
    assert "python train_main.py --epochs 3" in str(caught.value)


@pytest.mark.parametrize(("data", "model"), [(0, 1), (1, 0), (3, 1)])
def test_isolated_gives_each_process_one_card_with_its_limit(data, model):
    made = plan(data_gpu=data, model_gpu=model, isolation=True)
    assert made.mode is Mode.ISOLATED
    assert cards_of(made) == [(model, model, Limit(16384))]
    assert cards_of(made, Process.PRODUCER) == [(data, 0, Limit(8192))]
    assert dict(made.process(Process.PRODUCER).environ) == {"CUDA_VISIBLE_DEVICES": f"GPU-{data:04d}-aaaa"}
    assert (made.data.device, made.model.device) == ("/GPU:0", "/GPU:0")
    assert (made.data.process, made.model.process) == (Process.PRODUCER, Process.TRAINER)


LOST = ((PhysicalId(1), "The NVIDIA driver could not tell GPU 1: GPU is lost."),)
REHEARSED = {"rehearsal": True, "mode": "isolated"}


@pytest.mark.parametrize(
    ("machine", "request_values", "words"),
    [
        ({}, {"data_gpu": 1, "model_gpu": 1}, "both limits given"),
        ({}, {"data_gpu": 1, "model_gpu": 1, "data_limit_mib": 4000}, "both limits given"),
        (
            {},
            {"data_gpu": 1, "model_gpu": 1, "data_limit_mib": 12000, "model_limit_mib": 12000},
            "sum to at most 21976",
        ),
        ({}, {**ISOLATED, "model_limit_mib": 23000}, r"--model-gpu-memory 23000 does not fit.*Give at most 22488"),
        ({"free": 300}, ISOLATED, "300 MB free, too little"),
        ({"environ": {"CUDA_VISIBLE_DEVICES": "MIG-abc"}}, {}, "MIG"),
        ({}, {"mode": "auto"}, "--mode single, dual or isolated"),
        ({}, {"in_process": True, "data_gpu": 1, "model_gpu": 1, "isolation": True}, "needs two cards"),
        ({"count": 1, "lost": LOST}, {"data_gpu": 0, "model_gpu": 1}, "GPU is lost"),
        ({}, {"rehearsal": True, "data_gpu": 0, "model_gpu": 0}, "both --data-gpu-memory and --model-gpu-memory"),
        (
            {},
            {**REHEARSED, "data_limit_mib": 10000, "model_limit_mib": 20000},
            "30000 MB, but this rehearsal has 20000 MB",
        ),
        ({}, {**REHEARSED, "data_limit_mib": 19500}, "too little is left for the model role"),
    ],
)
def test_what_cannot_be_had_is_an_error_that_says_what_can(machine, request_values, words):
    with pytest.raises(DevicePlanError, match=words):
        plan(make_machine(**machine), **request_values)


@pytest.mark.parametrize(
    ("machine", "request_values", "words"),
    [
        ({"count": 0}, {}, "Training on the CPU: this machine has no NVIDIA GPU."),
        ({"count": 0, "problem": "Driver Not Loaded."}, {}, "Training on the CPU. Driver Not Loaded."),
        ({"environ": {"CUDA_VISIBLE_DEVICES": "-1"}}, {}, "CUDA_VISIBLE_DEVICES=-1 hides every GPU"),
        ({}, {"data_gpu": 0, "model_gpu": 1, "data_limit_mib": 4096}, "--data-gpu-memory has no effect"),
        ({}, {**ISOLATED, "in_process": True, "rehearsal": True}, "no limit is enforced"),
        ({}, {"command": (), "data_limit_mib": 500}, "data.data_gpu_memory has no effect"),
    ],
)
def test_what_differs_from_what_was_asked_is_noted(machine, request_values, words):
    made = plan(make_machine(**machine), **request_values)
    assert words in made.notes[0]
    assert request_values.get("command") is None or "--" not in " ".join(made.notes)


def test_nothing_asked_is_one_gpu_with_growth_and_a_hint_at_the_others():
    made = plan(make_machine(2))
    assert made.mode is Mode.SINGLE
    assert cards_of(made) == [(0, 0, Growth())]
    assert (made.data.device, made.model.device) == ("/GPU:0", "/GPU:0")
    assert "--data-gpu 1 --model-gpu 0" in made.notes[0]


@pytest.mark.parametrize(
    ("request_values", "count"),
    [
        ({"data_gpu": 0, "model_gpu": 3}, 2),
        ({"data_gpu": 0, "model_gpu": 1}, 1),
        ({"data_gpu": 0, "model_gpu": 1, "isolation": True}, 0),
        ({"mode": "dual"}, 1),
        ({"mode": "isolated"}, 0),
    ],
)
def test_cards_that_do_not_exist_are_an_error_with_the_command_that_works(request_values, count):
    command = (
        "python",
        "train_main.py",
        "--data-gpu",
        "0",
        "--model-gpu=3",
        "--enable-memory-isolation",
        "--epochs",
        "5",
    )
    with pytest.raises(DevicePlanError) as caught:
        plan(make_machine(count), command=command, **request_values)
    text = str(caught.value)
    assert "Insufficient GPUs for Multi-GPU Mode" in text
    assert "python train_main.py --epochs 5\n" in text
    for id in range(count):
        assert f"GPU {id} (NVIDIA GeForce RTX 4090)" in text


@pytest.mark.parametrize(
    ("request_values", "said"),
    [
        ({"data_gpu": 0, "model_gpu": 9}, "leave out data.data_gpu, data.model_gpu"),
        ({"mode": "dual", "data_gpu": 8, "model_gpu": 9}, "training.rehearsal or MYXTTS_REHEARSAL=1"),
        ({"data_gpu": 0, "model_gpu": 0}, "data.data_gpu_memory and data.model_gpu_memory"),
        ({"data_gpu": 0, "model_gpu": 1, "isolation": True, "data_limit_mib": 99999}, "data.data_gpu_memory 99999"),
        ({"data_gpu": 0, "model_gpu": 0, "rehearsal": True}, "both data.data_gpu_memory and data.model_gpu_memory"),
    ],
)
def test_who_asks_from_python_is_told_settings_and_no_flags(request_values, said):
    with pytest.raises(DevicePlanError) as caught:
        plan(command=(), **request_values)
    assert said in str(caught.value)
    assert "--" not in str(caught.value)


def test_the_command_that_the_list_of_devices_names_has_two_roles():
    told = re.search(r"`myxtts train (.*)` tries two roles", format_devices(make_machine(0), []))[1]
    config = resolve_config(flags=make_parser("train", "myxtts train").parse_all(told.split()).given)
    made = plan_devices(PlanRequest.from_config(config), make_machine(0))
    assert made.data.device != made.model.device


def test_two_roles_without_ids_train_on_the_card_with_most_free_memory_and_one_role_on_that_which_was_to_train():
    cards = (make_card(0, free=10000), make_card(1, free=8000), make_card(2, free=20000))
    machine = Machine(CardScan(cards, (), None), 8000)
    made = plan(machine, mode="dual")
    assert (made.data.physical_id, made.model.physical_id) == (0, 2)
    made = plan(machine, mode="single", data_gpu=0, model_gpu=1)
    assert (made.mode, made.model.physical_id, made.data.physical_id) == (Mode.SINGLE, 1, 1)
    assert cards_of(made) == [(1, 1, Growth())]


def test_a_default_limit_that_does_not_fit_is_computed_anew_and_reported():
    cards = make_card(0, 5000, 6144, "RTX 2060"), make_card(1, 9500, 10240, "RTX 3080")
    made = plan(Machine(CardScan(cards, (), None), 8000), data_gpu=0, model_gpu=1, isolation=True)
    assert made.model.memory == Limit(8192)
    assert 0 < made.data.memory.mib < 5000 - 512
    assert any("instead of the default 16384" in note for note in made.notes)
    assert any("instead of the default 8192" in note for note in made.notes)


def test_unknown_free_memory_is_said_not_guessed():
    made = plan(make_machine(2, free=None), data_gpu=0, model_gpu=1, isolation=True)
    assert (made.data.memory, made.model.memory) == (Limit(8192), Limit(16384))
    assert sum("free memory unknown" in note for note in made.notes) == 2


def test_the_allocator_that_ignores_limits_is_refused_only_with_limits():
    machine = make_machine(2, environ={"TF_GPU_ALLOCATOR": "cuda_malloc_async"})
    with pytest.raises(DevicePlanError, match="ignores memory limits"):
        plan(machine, data_gpu=0, model_gpu=1, isolation=True)
    assert plan(machine, data_gpu=0, model_gpu=1).mode is Mode.DUAL


def test_visible_devices_of_a_container_shift_the_index_but_not_the_id():
    machine = make_machine(4, environ={"CUDA_VISIBLE_DEVICES": "3,1"})
    made = plan(machine, data_gpu=1, model_gpu=3)
    assert cards_of(made) == [(3, 0, Growth()), (1, 1, Growth())]
    assert (made.data.device, made.model.device) == ("/GPU:1", "/GPU:0")
    with pytest.raises(DevicePlanError, match=r"CUDA_VISIBLE_DEVICES=3,1 shows GPU 3 \(.*\), GPU 1 \(.*\) of GPU 0"):
        plan(machine, data_gpu=0, model_gpu=1)


@pytest.mark.parametrize(
    ("text", "ids"),
    [
        (None, [0, 1, 2, 3]), ("", []), ("-1", []), ("2", [2]), ("3,0", [3, 0]), ("1,9,0", [1]), ("1,1", []), ("2,GPU-0002", []), ("01", [1]), ("9" * 5000, []),
        ("GPU-0002-aaaa,GPU-0000", [2, 0]), ("GPU-", []), ("1, 2", [1, 2]),
    ],
)  # fmt: skip
def test_cuda_visible_devices_is_read_as_cuda_reads_it(text, ids):
    environ = {} if text is None else {"CUDA_VISIBLE_DEVICES": text}
    assert [card.physical_id for card in select_visible(make_machine().cards, environ)] == ids


@pytest.mark.parametrize(("marks", "level"), [((), "3"), ((__file__,), "1")])
def test_tensorflow_does_not_complain_of_a_driver_that_nobody_expects(monkeypatch, marks, level):
    monkeypatch.setattr("myxtts.devices.machine._DRIVER_MARKS", marks)
    environ = {}
    prepare_environment(environ)
    assert environ["TF_CPP_MIN_LOG_LEVEL"] == level
    environ = {"TF_CPP_MIN_LOG_LEVEL": "0"}
    prepare_environment(environ)
    assert environ["TF_CPP_MIN_LOG_LEVEL"] == "0", "a user's own"


@pytest.mark.parametrize(
    ("request_values", "mode", "devices", "cpus"),
    [
        ({}, Mode.SINGLE, ("/CPU:1", "/CPU:1"), [2]),
        ({"mode": "dual"}, Mode.DUAL, ("/CPU:1", "/CPU:2"), [3]),
        ({"data_gpu": 1, "model_gpu": 0}, Mode.DUAL, ("/CPU:2", "/CPU:1"), [3]),
        ({"mode": "isolated"}, Mode.ISOLATED, ("/CPU:1", "/CPU:1"), [2, 2]),
        (
            {"data_gpu": 0, "model_gpu": 0, "data_limit_mib": 500, "model_limit_mib": 500},
            Mode.SPLIT,
            ("/CPU:1",) * 2,
            [2, 2],
        ),
    ],
)
def test_rehearsals_have_the_same_modes_on_logical_cpus(request_values, mode, devices, cpus):
    made = plan(make_machine(0), rehearsal=True, **request_values)
    assert (made.mode, (made.data.device, made.model.device)) == (mode, devices)
    assert [process.logical_cpus for process in made.processes] == cpus
    assert made.rehearsal


def test_default_limits_of_a_rehearsal_are_scaled_to_the_host():
    made = plan(Machine(CardScan((), (), None), host_free_mib=3000), rehearsal=True, mode="isolated")
    assert made.data.memory.mib + made.model.memory.mib <= 3000
    assert made.data.memory.mib * 2 == pytest.approx(made.model.memory.mib, rel=0.2)


@pytest.mark.parametrize(
    "words",
    [
        ["--data-gpu", "0", "--model-gpu=1", "--enable-memory-isolation", "--epochs", "3"],
        ["--config", "configs/dual_gpu_24gb.yaml", "--epochs", "3"],
        ["--set", "data.data_gpu=0", "--set", "data.model_gpu=1", "--mode", "dual", "--epochs", "3"],
    ],
)
def test_the_command_that_is_advised_gives_a_single_plan(words):
    advised = shlex.split(suggest_single_command(["myxtts", "train", *words]))[2:]
    arguments = make_parser("train", "train").parse_all(advised)
    config = resolve_config(flags=arguments.given, yaml_path=arguments.config, environ={})
    made = plan_devices(PlanRequest.from_config(config), make_machine(1))
    assert (made.mode, config.training.epochs) == (Mode.SINGLE, 3)
