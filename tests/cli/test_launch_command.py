"""`myxtts launch` and the flags of clusters: what is refused, and what is made of it. The runs themselves are elsewhere."""

import json
import os
import sys
from dataclasses import asdict

import pytest

from myxtts.cli import launch, train
from myxtts.cli.train import build_parser
from myxtts.config import resolve_config
from myxtts.devices.machine import Machine
from myxtts.devices.nvml import Card, CardScan, PhysicalId
from myxtts.devices.plan import PlanRequest
from myxtts.devices.planning import plan_devices
from myxtts.errors import ClusterError, CommandLineError, ConfigError, DevicePlanError
from myxtts.training.mode import Circumstances, PlannedRun, StageCosts, choose_mode, load_choice
from tests.support.processes import run_code


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--workers", "2"], "give the command behind two dashes"),
        (["--workers", "2", "--", "synthesize"], "starts trainers"),
        (["--", "train"], "either --workers or --gpus"),
        (["--workers", "2", "--gpus", "0,1", "--", "train"], "either --workers or --gpus"),
        (["--workers", "1", "--", "train"], "from 2 to 64, but is 1"),
        (["--gpus", "0,0", "--", "train"], "different ids"),
        (["--gpus", "0,x", "--", "train"], "different ids"),
    ],
)
def test_what_cannot_be_launched_is_refused(words, said):
    with pytest.raises(CommandLineError, match=said):
        launch.run(words, "myxtts launch")


@pytest.fixture
def codec(tmp_path):
    """A folder that passes for a codec until it is read."""
    (tmp_path / "codec").mkdir()
    (tmp_path / "codec" / "manifest.json").touch()
    return ["--codec", str(tmp_path / "codec")]


@pytest.mark.parametrize(
    ("words", "flags", "is_refused"),
    [
        (["--workers", "2"], [], True),
        (["--workers", "2"], ["--rehearsal"], False),
        (["--workers", "2"], ["--set", "training.rehearsal=true"], False),
        (["--gpus", "4,7", "--rehearsal"], [], False),
    ],
)
def test_workers_never_share_cards_untold_and_a_launcher_can_be_asked_to_rehearse(
    monkeypatch, codec, words, flags, is_refused
):
    make_machine(monkeypatch, [0, 1])
    monkeypatch.setattr("myxtts.cluster.launch.enter_private_network", lambda: (_ for _ in ()).throw(Replaced))
    wanted, said = (DevicePlanError, r"has GPU 0, 1\. Give --gpus") if is_refused else (Replaced, None)
    with pytest.raises(wanted, match=said):
        launch.run([*words, "--", "train", *codec, *flags], "myxtts launch")


@pytest.mark.parametrize("flags", [[], ["--open-ports"]])
def test_cards_of_a_container_are_trained_on_when_its_network_may_be_used(monkeypatch, codec, flags):
    launched = []
    monkeypatch.setattr(launch, "launch", lambda words, workers, **more: launched.append(more["open_ports"]) or 0)
    words = ["--model-gpus", "0,1", *codec, *flags]
    assert train.run(words, "train_main.py") == 0
    assert launched == [bool(flags)]
    if flags:
        with pytest.raises(CommandLineError, match="this run starts none"):
            train.run(flags, "train_main.py")


def make_machine(monkeypatch, ids, visible=None):
    cards = tuple(Card(PhysicalId(id), "RTX 3090", f"GPU-{id}{id}", "", 24000, 20000) for id in ids)
    machine = Machine(CardScan(cards, (), None), 8000, {} if visible is None else {"CUDA_VISIBLE_DEVICES": visible})
    monkeypatch.setattr("myxtts.devices.machine.read_machine", lambda: machine)


def test_cards_are_given_to_workers_by_what_never_changes_and_those_that_are_not_there_are_named(monkeypatch):
    make_machine(monkeypatch, [0, 1, 2])
    assert launch.find_uuids([2, 0]) == ["GPU-22", "GPU-00"]
    make_machine(monkeypatch, [0, 1], visible="0")
    with pytest.raises(DevicePlanError, match="Asked for GPU 1, 3"):
        launch.find_uuids([0, 1, 3])


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"training.model_gpus": "0"}, "two or more different ids"),
        ({"training.model_gpus": "0,0"}, "two or more different ids"),
        ({"training.model_gpus": "0,1", "data.enable_memory_isolation": "true"}, "asks for another way to use them"),
        ({"training.model_gpus": "0,1", "training.mode": "dual"}, "training.mode asks for another way"),
    ],
)
def test_ids_that_cannot_all_train_are_refused(settings, said):
    words = [word for key, value in settings.items() for word in ("--set", f"{key}={value}")]
    with pytest.raises(ConfigError, match=said):
        train.run(words, "train_main.py")


def test_a_cluster_that_cannot_be_is_refused_before_tensorflow_is_loaded():
    code = """
from myxtts.cli.main import main
report([main(['train', '--cluster', 'none.yaml', '--worker-index', '0']), 'tensorflow' in sys.modules])
"""
    assert run_code(code) == [2, False]


class Replaced(BaseException):
    """This process has become another one."""


@pytest.fixture
def became(monkeypatch):
    """Programs that this process would have become: their words and variables."""
    seen = []

    def replace_process(program, words, environ):
        seen.append((words, environ))
        raise Replaced

    monkeypatch.setattr(os, "execve", replace_process)
    return seen


def make_choice():
    costs = StageCosts(prepare_s=0.001, transfer_s=0.001, train_s=0.04, single_s=0.041, dual_s=0.04, exchange_s=0.004)
    return choose_mode(costs, Circumstances(kept_obstacle="There are none."), ["a", "b"])


def plan_as_chosen(monkeypatch, workers=(1, 0)):
    machine = Machine(CardScan((), (), None), 8000)
    planned = PlannedRun(plan_devices(PlanRequest(mode="single", rehearsal=True), machine), make_choice(), workers)
    monkeypatch.setattr("myxtts.training.mode.plan_run", lambda *_, **__: planned)
    return planned


@pytest.mark.parametrize(
    ("flags", "who"),
    [
        ([], ["--gpus", "1,0"]),
        (["--rehearsal"], ["--workers", "2"]),
        (["--open-ports"], ["--gpus", "1,0", "--open-ports"]),
    ],
)
def test_what_auto_chose_for_both_cards_is_launched(monkeypatch, became, capsys, flags, who):
    planned = plan_as_chosen(monkeypatch)
    words = ["--mode", "auto", "--data-gpu", "0", "--model-gpu", "1", *flags]
    with pytest.raises(Replaced):
        train.run(words, "train_main.py")
    assert "Mode    data-parallel: 2 workers, one for each of the" in capsys.readouterr().out
    ((command, environ),) = became
    assert command[:4] == [sys.executable, "-P", "-m", "myxtts.cli.main"]
    end = command.index("train")
    assert command[4:end] == ["launch", *who, "--"]
    told = resolve_config(flags=build_parser("train").parse_all(command[end + 1 :]).given)
    assert (told.training.mode, told.data.data_gpu, told.data.model_gpu) == ("single", None, None)
    assert json.loads(environ["MYXTTS_LAUNCH_COMMAND"]) == ["python", "train_main.py", *words]
    assert load_choice(json.loads(environ["MYXTTS_MODE_CHOICE"])) == planned.choice


def test_a_plan_that_is_only_printed_starts_nothing(monkeypatch, became, capsys):
    plan_as_chosen(monkeypatch)
    assert train.run(["--mode", "auto", "--print-plan"], "train_main.py") == 0
    said = capsys.readouterr().out
    assert "Auto    data-parallel" in said
    assert "Mode    data-parallel: 2 workers, one for each of the GPUs 1,0" in said
    assert became == []


def test_a_launcher_keeps_the_command_that_led_to_it(monkeypatch):
    launched = []
    monkeypatch.setattr(launch, "launch", lambda words, workers, **more: launched.append(more["launched_as"]) or 0)
    launch.run(["--workers", "2", "--", "train", "--rehearsal"], "myxtts launch")
    monkeypatch.setenv("MYXTTS_LAUNCH_COMMAND", '["python", "train_main.py", "--mode", "auto"]')
    launch.run(["--workers", "2", "--", "train", "--rehearsal"], "myxtts launch")
    assert launched == [
        ["myxtts", "launch", "--workers", "2", "--", "train", "--rehearsal"],
        ["python", "train_main.py", "--mode", "auto"],
    ]


def write_cluster(folder):
    cluster = folder / "cluster.yaml"
    cluster.write_text(launch.make_cluster_file(2), encoding="utf-8")
    return ["--cluster", str(cluster), "--worker-index", "1"]


def test_a_worker_is_handed_the_choice(monkeypatch, codec, tmp_path):
    plan_as_chosen(monkeypatch, workers=())
    given = []
    monkeypatch.setattr(train, "_train", lambda config, planned, *_, **__: given.append(planned.choice) or 0)
    words = [*codec, *write_cluster(tmp_path)]
    assert train.run(words, "myxtts train") == 0
    monkeypatch.setenv("MYXTTS_MODE_CHOICE", json.dumps(asdict(make_choice())))
    assert train.run(words, "myxtts train") == 0
    assert given == [None, make_choice()]


def test_tf_config_makes_a_worker_too(monkeypatch, codec):
    plan_as_chosen(monkeypatch, workers=())
    told = []
    monkeypatch.setattr(train, "_train", lambda *_, is_worker: told.append(is_worker) or 0)
    assert train.run(codec, "myxtts train") == 0
    cluster = {"worker": ["127.0.0.1:5000", "127.0.0.1:5002"]}
    monkeypatch.setenv("TF_CONFIG", json.dumps({"cluster": cluster, "task": {"type": "worker", "index": 1}}))
    assert train.run(codec, "myxtts train") == 0
    assert told == [False, True]
    with pytest.raises(ClusterError, match="--mode auto chooses for one machine"):
        train.run([*codec, "--mode", "auto"], "myxtts train")


def test_a_worker_does_not_start_workers_of_its_own(monkeypatch, codec, tmp_path):
    plan_as_chosen(monkeypatch, workers=())
    monkeypatch.setattr(train, "_train", lambda *_, **__: 0)
    words = [*codec, "--model-gpus", "0,1", *write_cluster(tmp_path)]
    with pytest.raises(CommandLineError, match="this process is one worker of a cluster already"):
        train.run(words, "myxtts train")
    # Those that --model-gpus itself has started are told so.
    monkeypatch.setenv("MYXTTS_LAUNCH_COMMAND", '["python", "train_main.py", "--model-gpus", "0,1"]')
    assert train.run(words, "myxtts train") == 0


@pytest.mark.parametrize("flags", [[], ["--open-ports"]])
def test_auto_knows_that_workers_can_be_started_and_whether_ports_may_be_open(monkeypatch, flags):
    asked = []

    def plan_run(*_, launches, opens_ports, **__):
        asked.append((launches, opens_ports))
        raise DevicePlanError("That is all.")

    monkeypatch.setattr("myxtts.training.mode.plan_run", plan_run)
    with pytest.raises(DevicePlanError, match="That is all"):
        train.run(["--mode", "auto", *flags], "myxtts train")
    assert asked == [(True, bool(flags))]
