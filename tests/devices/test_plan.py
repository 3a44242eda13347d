"""Plans: every mode, any order of ids, limits that fit, and errors that say what would work."""

import re
import shlex

import pytest

from myxtts.cli.devices import format_devices
from myxtts.cli.train import build_parser
from myxtts.config import XTTSConfig, resolve_config
from myxtts.devices.environment import prepare_environment, select_visible
from myxtts.devices.machine import Machine
from myxtts.devices.memory import Growth, Limit
from myxtts.devices.nvml import Card, CardScan, PhysicalId
from myxtts.devices.plan import Mode, PlanRequest, Process
from myxtts.devices.plan_words import suggest_single_command
from myxtts.devices.planning import plan_devices
from myxtts.errors import DevicePlanError


def make_card(id, free=23000, total=24564, name="NVIDIA GeForce RTX 4090"):
    return Card(PhysicalId(id), name, f"GPU-{id:04d}-aaaa", f"0:{id}", total, free)


def make_machine(count=4, environ=None, **card):
    cards = tuple(make_card(id, **card) for id in range(count))
    return Machine(CardScan(cards, (), None), host_free_mib=20000, environ=environ or {})


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


@pytest.mark.parametrize(("data", "model"), [(0, 1), (1, 0), (3, 1)])
def test_isolated_gives_each_process_one_card_with_its_limit(data, model):
    made = plan(data_gpu=data, model_gpu=model, isolation=True)
    assert made.mode is Mode.ISOLATED
    assert cards_of(made) == [(model, model, Limit(16384))]
    assert cards_of(made, Process.PRODUCER) == [(data, 0, Limit(8192))]
    assert dict(made.process(Process.PRODUCER).environ) == {"CUDA_VISIBLE_DEVICES": f"GPU-{data:04d}-aaaa"}
    assert (made.data.device, made.model.device) == ("/GPU:0", "/GPU:0")
    assert (made.data.process, made.model.process) == (Process.PRODUCER, Process.TRAINER)


@pytest.mark.parametrize(
    ("request_values", "has_producer", "is_shared", "limits"),
    [
        ({}, False, True, (None, None)),
        ({"data_gpu": 0, "model_gpu": 1}, False, False, (None, None)),
        # Both are the /GPU:0 of their own process, which makes them no one device.
        ({"data_gpu": 0, "model_gpu": 1, "isolation": True}, True, False, (8192, 16384)),
        ({"mode": "isolated", "rehearsal": True, "data_limit_mib": 2000, "model_limit_mib": 3000}, True, False, (2000, 3000)),
    ],
)  # fmt: skip
def test_a_plan_tells_what_its_roles_share(request_values, has_producer, is_shared, limits):
    made = plan(**request_values)
    assert (made.has_producer, made.is_shared) == (has_producer, is_shared)
    assert [role.role for role in made.own_roles] == (["model"] if is_shared else ["data", "model"])
    assert (made.data.limit_mib, made.model.limit_mib) == limits
    assert made.model.is_gpu is not made.rehearsal


def test_isolation_inside_one_process_shows_both_cards_with_limits():
    made = plan(in_process=True, data_gpu=3, model_gpu=1, isolation=True, data_limit_mib=4096)
    assert cards_of(made) == [(1, 1, Limit(16384)), (3, 3, Limit(4096))]
    assert (made.data.device, made.model.device) == ("/GPU:1", "/GPU:0")
    assert len(made.processes) == 1


def test_one_card_is_split_when_both_limits_fit():
    made = plan(data_gpu=2, model_gpu=2, data_limit_mib=6000, model_limit_mib=12000)
    assert made.mode is Mode.SPLIT
    assert cards_of(made) == [(2, 2, Limit(12000))]
    assert cards_of(made, Process.PRODUCER) == [(2, 0, Limit(6000))]


@pytest.mark.parametrize(
    ("limits", "words"),
    [
        ({}, "both limits given"),
        ({"data_limit_mib": 4000}, "both limits given"),
        ({"data_limit_mib": 12000, "model_limit_mib": 12000}, "sum to at most 21976"),
    ],
)
def test_one_card_for_both_roles_needs_limits_that_fit(limits, words):
    with pytest.raises(DevicePlanError, match=words):
        plan(data_gpu=1, model_gpu=1, **limits)


def test_nothing_asked_is_one_gpu_with_growth_and_a_hint_at_the_others():
    made = plan(make_machine(2))
    assert made.mode is Mode.SINGLE
    assert cards_of(made) == [(0, 0, Growth())]
    assert (made.data.device, made.model.device) == ("/GPU:0", "/GPU:0")
    assert "--data-gpu 1 --model-gpu 0" in made.notes[0]


def test_without_a_gpu_training_is_on_the_cpu_and_says_so():
    made = plan(make_machine(0))
    assert (made.mode, made.model.device) == (Mode.SINGLE, "/CPU:0")
    assert made.notes == ("Training on the CPU: this machine has no NVIDIA GPU.",)


def test_a_driver_that_fails_is_named_when_the_cpu_is_used():
    machine = Machine(CardScan((), (), "The NVIDIA driver does not answer: Driver Not Loaded."), 8000)
    assert "Driver Not Loaded" in plan(machine).notes[0]


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


def test_who_asks_from_another_command_is_told_that_one():
    command = ("python", "utilities/dual_gpu_bottleneck_profiler.py", "--num-steps", "9", "--data-gpu", "0")
    with pytest.raises(DevicePlanError) as caught:
        plan(make_machine(1), command=command, data_gpu=0, model_gpu=1)
    assert "do the same on one device with\n  python utilities/dual_gpu_bottleneck_profiler.py --num-steps 9\n" in str(
        caught.value
    )


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


@pytest.mark.parametrize("request_values", [{}, {"data_limit_mib": 500}])
def test_notes_for_python_name_no_flags(request_values):
    made = plan(command=(), **request_values)
    assert made.notes
    assert "--" not in " ".join(made.notes)


def test_the_command_that_the_list_of_devices_names_has_two_roles():
    told = re.search(r"`myxtts train (.*)` tries two roles", format_devices(make_machine(0), []))[1]
    config = resolve_config(flags=build_parser("myxtts train").parse_all(told.split()).given)
    made = plan_devices(PlanRequest.from_config(config), make_machine(0))
    assert made.data.device != made.model.device


def test_a_card_that_was_lost_is_named_in_the_error():
    scan = CardScan((make_card(0),), ((PhysicalId(1), "The NVIDIA driver could not tell GPU 1: GPU is lost."),), None)
    with pytest.raises(DevicePlanError, match="GPU is lost"):
        plan(Machine(scan, 8000), data_gpu=0, model_gpu=1)


def test_two_roles_without_ids_train_on_the_card_with_most_free_memory():
    cards = (make_card(0, free=10000), make_card(1, free=8000), make_card(2, free=20000))
    made = plan(Machine(CardScan(cards, (), None), 8000), mode="dual")
    assert (made.data.physical_id, made.model.physical_id) == (0, 2)


def test_mode_auto_is_no_mode_before_it_was_chosen():
    with pytest.raises(DevicePlanError, match="--mode single, dual or isolated"):
        plan(mode="auto")


def test_a_single_plan_trains_on_the_card_that_was_to_train():
    cards = (make_card(0), make_card(1), make_card(2))
    made = plan(Machine(CardScan(cards, (), None), 8000), mode="single", data_gpu=0, model_gpu=2)
    assert (made.mode, made.model.physical_id, made.data.physical_id) == (Mode.SINGLE, 2, 2)
    (card,) = made.process(Process.TRAINER).cards
    assert (card.physical_id, card.tf_index) == (2, 2)


def test_a_default_limit_that_does_not_fit_is_computed_anew_and_reported():
    cards = (
        make_card(0, free=5000, total=6144, name="RTX 2060"),
        make_card(1, free=9500, total=10240, name="RTX 3080"),
    )
    made = plan(Machine(CardScan(cards, (), None), 8000), data_gpu=0, model_gpu=1, isolation=True)
    assert made.model.memory == Limit(8192)
    assert 0 < made.data.memory.mib < 5000 - 512
    assert any("instead of the default 16384" in note for note in made.notes)
    assert any("instead of the default 8192" in note for note in made.notes)


def test_a_given_limit_that_does_not_fit_is_an_error_with_the_largest_that_does():
    with pytest.raises(DevicePlanError, match=r"--model-gpu-memory 23000 does not fit.*Give at most 22488"):
        plan(data_gpu=0, model_gpu=1, isolation=True, model_limit_mib=23000)


def test_unknown_free_memory_is_said_not_guessed():
    made = plan(make_machine(2, free=None), data_gpu=0, model_gpu=1, isolation=True)
    assert (made.data.memory, made.model.memory) == (Limit(8192), Limit(16384))
    assert sum("free memory unknown" in note for note in made.notes) == 2


def test_a_card_without_room_is_refused():
    with pytest.raises(DevicePlanError, match="300 MB free, too little"):
        plan(make_machine(2, free=300), data_gpu=0, model_gpu=1, isolation=True)


def test_the_allocator_that_ignores_limits_is_refused_only_with_limits():
    machine = make_machine(2, environ={"TF_GPU_ALLOCATOR": "cuda_malloc_async"})
    with pytest.raises(DevicePlanError, match="ignores memory limits"):
        plan(machine, data_gpu=0, model_gpu=1, isolation=True)
    assert plan(machine, data_gpu=0, model_gpu=1).mode is Mode.DUAL


def test_limits_without_isolation_have_no_effect_and_the_plan_says_so():
    assert plan(data_gpu=0, model_gpu=1, data_limit_mib=4096).notes[0].startswith("--data-gpu-memory has no effect")


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


def test_a_slice_of_a_card_is_refused():
    with pytest.raises(DevicePlanError, match="MIG"):
        plan(make_machine(environ={"CUDA_VISIBLE_DEVICES": "MIG-abc"}))


@pytest.mark.parametrize(("marks", "level"), [((), "3"), ((__file__,), "1")])
def test_tensorflow_does_not_complain_of_a_driver_that_nobody_expects(monkeypatch, marks, level):
    monkeypatch.setattr("myxtts.devices.environment._DRIVER_MARKS", marks)
    environ = {}
    prepare_environment(environ)
    assert environ["TF_CPP_MIN_LOG_LEVEL"] == level
    environ = {"TF_CPP_MIN_LOG_LEVEL": "0"}
    prepare_environment(environ)
    assert environ["TF_CPP_MIN_LOG_LEVEL"] == "0", "a user's own"


def test_one_card_that_is_split_is_not_called_several():
    assert [mode.log_name for mode in Mode] == [
        "Single-GPU Buffered Mode", "Multi-GPU Mode", "Multi-GPU Mode", "Split-GPU Mode"
    ]  # fmt: skip


def test_the_environment_counts_cards_as_nvidia_smi_does():
    environ = {"CUDA_DEVICE_ORDER": "FASTEST_FIRST"}
    prepare_environment(environ)
    assert environ["CUDA_DEVICE_ORDER"] == "PCI_BUS_ID"
    assert environ["KERAS_BACKEND"] == "tensorflow"


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


def test_a_rehearsal_ignores_the_cards_of_the_machine():
    made = plan(make_machine(2), rehearsal=True, data_gpu=7, model_gpu=5)
    assert all(not process.cards for process in made.processes)
    assert (made.data.physical_id, made.model.physical_id) == (7, 5)


def test_default_limits_of_a_rehearsal_are_scaled_to_the_host():
    made = plan(Machine(CardScan((), (), None), host_free_mib=3000), rehearsal=True, mode="isolated")
    assert made.data.memory.mib + made.model.memory.mib <= 3000
    assert made.data.memory.mib * 2 == pytest.approx(made.model.memory.mib, rel=0.2)


def test_given_limits_of_a_rehearsal_must_fit_the_host():
    with pytest.raises(DevicePlanError, match="30000 MB, but this rehearsal has 20000 MB"):
        plan(rehearsal=True, mode="isolated", data_limit_mib=10000, model_limit_mib=20000)


def test_a_split_card_in_rehearsal_needs_both_limits_too():
    with pytest.raises(DevicePlanError, match="both --data-gpu-memory and --model-gpu-memory"):
        plan(rehearsal=True, data_gpu=0, model_gpu=0)


def test_isolation_inside_one_process_needs_two_cards():
    with pytest.raises(DevicePlanError, match="needs two cards"):
        plan(in_process=True, data_gpu=1, model_gpu=1, isolation=True)


def test_a_request_carries_what_the_configuration_says():
    config = XTTSConfig(
        data={"data_gpu": 3, "model_gpu": 1, "enable_memory_isolation": True, "data_gpu_memory": 4096},
        training={"rehearsal": True},
    )
    assert PlanRequest.from_config(config) == PlanRequest(
        data_gpu=3, model_gpu=1, isolation=True, data_limit_mib=4096, rehearsal=True
    )


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
    arguments = build_parser("train").parse_all(advised)
    config = resolve_config(flags=arguments.given, yaml_path=arguments.config, environ={})
    made = plan_devices(PlanRequest.from_config(config), make_machine(1))
    assert (made.mode, config.training.epochs) == (Mode.SINGLE, 3)


def test_every_gpu_hidden_is_said():
    made = plan(make_machine(2, environ={"CUDA_VISIBLE_DEVICES": "-1"}))
    assert "CUDA_VISIBLE_DEVICES=-1 hides every GPU" in made.notes[0]


def test_a_rehearsal_inside_one_process_says_that_no_limit_is_enforced():
    made = plan(in_process=True, rehearsal=True, isolation=True, data_gpu=0, model_gpu=1)
    assert "no limit is enforced" in made.notes[0]


def test_a_rehearsal_never_gives_a_role_next_to_nothing():
    with pytest.raises(DevicePlanError, match="too little is left for the model role"):
        plan(rehearsal=True, mode="isolated", data_limit_mib=19500)


def test_the_single_gpu_command_drops_just_the_two_card_flags():
    command = ["myxtts", "train", "--mode", "dual", "--train-data", "my set", "--data-gpu-memory", "4", "--lr=1e-4"]
    assert suggest_single_command(command) == "myxtts train --train-data 'my set' --lr=1e-4"
