"""`myxtts launch` and the flags of clusters: what is refused, and what is made of it. The runs themselves are elsewhere."""

import pytest
import yaml

from myxtts.cli import launch
from myxtts.cli.train import build_parser
from myxtts.config import resolve_config
from myxtts.devices.machine import Machine
from myxtts.devices.nvml import Card, CardScan, PhysicalId
from myxtts.errors import CommandLineError, ConfigError, DevicePlanError
from tests.support.processes import run_python


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
        (["--workers", "2", "--", "train", "--data-service", "a:1"], "--open-ports"),
    ],
)
def test_what_cannot_be_launched_is_refused(words, said):
    with pytest.raises(CommandLineError, match=said):
        launch.run(words, "myxtts launch")


def test_ports_are_different_and_of_loopback():
    content = yaml.safe_load(launch.make_cluster_file(3))
    addresses = [*content["workers"], content["control"]]
    assert len(set(addresses)) == 4
    assert all(address.startswith("127.0.0.1:") for address in addresses)


def make_machine(monkeypatch, ids, visible=None):
    cards = tuple(Card(PhysicalId(id), "RTX 3090", f"GPU-{id}{id}", "", 24000, 20000) for id in ids)
    machine = Machine(CardScan(cards, (), None), 8000, {} if visible is None else {"CUDA_VISIBLE_DEVICES": visible})
    monkeypatch.setattr("myxtts.devices.machine.read_machine", lambda: machine)


def test_cards_are_given_to_workers_by_what_never_changes(monkeypatch):
    make_machine(monkeypatch, [0, 1, 2])
    assert launch.find_uuids([2, 0]) == ["GPU-22", "GPU-00"]


@pytest.mark.parametrize("visible", [None, "0"])
def test_a_card_that_is_not_there_is_named(monkeypatch, visible):
    make_machine(monkeypatch, [0, 1], visible)
    with pytest.raises(DevicePlanError, match="Asked for GPU 3"):
        launch.find_uuids([0, 3])


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
    arguments = build_parser("train").parse_all(words)
    with pytest.raises(ConfigError, match=said):
        resolve_config(flags=arguments.given)


def test_a_cluster_that_cannot_be_is_refused_before_tensorflow_is_loaded(tmp_path):
    code = (
        "import sys\nfrom myxtts.cli.main import main\n"
        "code = main(['train', '--cluster', 'none.yaml', '--worker-index', '0'])\n"
        "assert 'tensorflow' not in sys.modules\nsys.exit(code)"
    )
    done = run_python(["-c", code])
    assert done.returncode == 2
    assert "none.yaml: there is no such file" in done.stderr
