"""`myxtts launch` and the flags of clusters: what is refused, and which cards workers get. The runs themselves are elsewhere."""

import json

import pytest

from tests.support.nvml import StubCard
from tests.support.processes import run_code, run_python


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
def test_what_cannot_be_launched_is_refused(words, said, refuse):
    assert said in refuse("launch", *words)


def test_workers_never_share_cards_untold_and_cards_that_are_not_there_are_named(make_machine):
    environ = make_machine(StubCard(0), StubCard(1), StubCard(2)).environ(CUDA_VISIBLE_DEVICES="0,1")
    for words, said in (
        (["--workers", "2"], "has GPU 0, 1. Give --gpus"),
        (["--gpus", "0,2"], "Asked for GPU 2, but this machine has GPU 0, GPU 1."),
    ):
        result = run_python(["-m", "myxtts.cli.main", "launch", *words, "--", "train"], environ)
        assert result.returncode == 2
        assert said in result.stderr


def test_cards_are_given_to_workers_by_what_never_changes(make_machine):
    code = "from myxtts.cli.launch import find_uuids; report(find_uuids([2, 0]))"
    environ = make_machine(*map(StubCard, range(3))).environ()
    assert run_code(code, environ) == [StubCard(2).uuid, StubCard(0).uuid]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--model-gpus", "0"], "two or more different ids"),
        (["--model-gpus", "0,0"], "two or more different ids"),
        (
            ["--model-gpus", "0,1", "--data-gpu", "2", "--model-gpu", "0"],
            "data.model_gpu (0) asks for one GPU that trains",
        ),
        (["--model-gpus", "0,1", "--data-gpu", "1"], "GPU 0 then prepares what all of them train on"),
        (["--model-gpus", "0,1", "--mode", "auto"], "which chooses by itself what trains"),
        (["--model-gpus", "0,1", "--set", "training.loss_mean=batches"], "only tokens count alike"),
        (["--model-gpus", "0,1,2", "--batch-size", "2"], "each needs a clip of every batch"),
    ],
)
def test_ids_that_cannot_all_train_are_refused(words, said, refuse):
    assert said in refuse("train", *words)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--mode", "auto"], "--mode auto chooses for one machine"),
        (["--model-gpus", "0,1"], "but this process is one worker of a cluster"),
    ],
)
def test_a_worker_chooses_nothing_and_starts_no_workers_of_its_own(words, said, refuse, monkeypatch):
    cluster = {"worker": ["127.0.0.1:5000", "127.0.0.1:5002"]}
    monkeypatch.setenv("TF_CONFIG", json.dumps({"cluster": cluster, "task": {"type": "worker", "index": 1}}))
    assert said in refuse("train", *words)


def test_a_cluster_that_cannot_be_is_refused_before_tensorflow_is_loaded():
    code = """
from myxtts.cli.main import main
report([main(['train', '--cluster', 'none.yaml', '--worker-index', '0']), 'tensorflow' in sys.modules])
"""
    assert run_code(code) == [2, False]
