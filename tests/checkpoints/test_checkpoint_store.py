"""The last and the best checkpoints are kept, damaged ones are set aside, and nothing goes before its successor is whole.

A checkpoint gives back every value of a run, and is a model directory to everybody else.
"""

import json
import math
import shutil
from types import SimpleNamespace

import numpy as np
import pytest

from myxtts.checkpoints.model_directory import write_model_directory
from myxtts.checkpoints.store import CheckpointStore, TrainingState, find_model_directory, read_training_checkpoint
from myxtts.errors import CheckpointError, DamagedFileError, ModelFileError
from tests.checkpoints.training_states import (
    assert_content,
    collect_warnings,
    list_steps,
    make_content,
    make_state,
    open_store,
    save,
)


def list_names(folder):
    return sorted(entry.name for entry in folder.iterdir())


def fill(folder, losses, **options):
    """A store of steps 10, 20, ... with these validation losses; None where there was no validation."""
    store = open_store(folder, **options)
    for number, loss in enumerate(losses, 1):
        save(store, number * 10, **({} if loss is None else {"val_loss": loss}))
    return store


@pytest.mark.parametrize(
    ("losses", "keep_last", "keep_best", "kept", "best"),
    [
        ([5, 4, 3, 2], 2, 1, [30, 40], 40),
        ([1, 4, 3, 2], 2, 1, [10, 30, 40], 10),
        ([1, 4, 3, 2], 1, 2, [10, 40], 10),
        ([1, 2, 3, 4], 1, 2, [10, 20, 40], 10),
        ([1, 2, 3, 4], 2, 0, [30, 40], 30),
        ([1, 1, 1, 1], 1, 1, [10, 40], 10),
        ([None, 7, None, None], 1, 1, [20, 40], 20),
        ([None] * 4, 3, 1, [20, 30, 40], None),
        ([math.nan, 9, math.inf, -math.inf], 1, 1, [20, 40], 20),
    ],
)
def test_the_last_and_the_best_are_kept(tmp_path, losses, keep_last, keep_best, kept, best):
    store = fill(tmp_path, losses, keep_last=keep_last, keep_best=keep_best)
    assert list_steps(store) == kept
    assert store.latest().step == 40
    assert (store.best().step if best else store.best()) == best
    assert list_names(tmp_path) == ["checkpoints.json", *(f"step-{step:08d}" for step in kept)]


def test_the_index_says_why_each_is_kept(tmp_path):
    fill(tmp_path, [1, 4, 3])
    index = json.loads((tmp_path / "checkpoints.json").read_text())
    assert (index["keep_last"], index["keep_best"], index["best_metric"]) == (2, 1, "val_loss")
    assert [(entry["step"], entry["directory"], entry["kept_as"]) for entry in index["checkpoints"]] == [
        (10, "step-00000010", ["best"]),
        (20, "step-00000020", ["last"]),
        (30, "step-00000030", ["last"]),
    ]
    assert index["checkpoints"][0]["metrics"] == {"val_loss": 1.0}
    assert index["checkpoints"][0]["bytes"] > 1000


def test_the_directories_alone_decide(tmp_path):
    fill(tmp_path, [1, 4, 3])
    (tmp_path / "checkpoints.json").write_text("nonsense")
    shutil.rmtree(tmp_path / "step-00000010")
    store = open_store(tmp_path)
    assert list_steps(store) == [20, 30]
    assert store.best().step == 30
    save(store, 40, val_loss=9.0)
    index = json.loads((tmp_path / "checkpoints.json").read_text())
    assert [entry["step"] for entry in index["checkpoints"]] == [30, 40]


@pytest.mark.parametrize(("metric", "step"), [("val_loss", 10), ("train_loss", 20)])
def test_a_folder_means_the_best_checkpoint_as_its_run_judged(tmp_path, metric, step):
    store = CheckpointStore(tmp_path, keep_last=9, keep_best=1, best_metric=metric)
    for number, val, train in ((10, 1.0, 9.0), (20, 2.0, 8.0), (30, 3.0, 8.5)):
        save(store, number, val_loss=val, train_loss=train)
    assert find_model_directory(tmp_path) == tmp_path / f"step-{step:08d}"
    (tmp_path / "checkpoints.json").write_text("[")
    assert find_model_directory(tmp_path).name == "step-00000010", "without its list, by the usual metric"


def test_the_same_step_again_replaces_it(tmp_path):
    store = fill(tmp_path, [5, 4])
    save(store, 20, val_loss=1.0)
    assert list_steps(store) == [10, 20]
    assert store.find(20).metrics == {"val_loss": 1.0}
    taken = tmp_path / f".myxtts-{7:016x}" / ".myxtts-taken"
    taken.mkdir(parents=True)
    (tmp_path / "step-00000020").rename(taken / "step-00000020")
    assert list_steps(store) == [10, 20], "where that was interrupted it comes back"


def test_a_run_that_went_back_does_not_find_what_came_after(tmp_path):
    store = fill(tmp_path, [1, 2, 3])
    store.rewind(10)
    assert store.latest().step == 10
    assert list_names(tmp_path) == ["checkpoints.json", "newer-step-00000020", "newer-step-00000030", "step-00000010"]
    save(store, 20, val_loss=4.0)
    store.rewind(10)
    assert "newer-step-00000020-2" in list_names(tmp_path), "nothing set aside is overwritten"


def flip(path):
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)


DAMAGES = {
    "flipped weights": lambda d: flip(d / "model.safetensors"),
    "flipped slots": lambda d: flip(d / "training.safetensors"),
    "cut state": lambda d: (d / "training.json").write_bytes(b"{"),
    "no slots": lambda d: (d / "training.safetensors").unlink(),
    "empty manifest": lambda d: (d / "manifest.json").write_bytes(b""),
    "no manifest": lambda d: (d / "manifest.json").unlink(),
    "nothing": lambda d: [path.unlink() for path in d.iterdir()],
}


@pytest.mark.parametrize("damage", DAMAGES.values(), ids=DAMAGES.keys())
@pytest.mark.parametrize("is_validated", [True, False])
def test_the_older_one_is_taken_and_only_a_run_sets_the_damaged_one_aside(tmp_path, damage, is_validated):
    fill(tmp_path, [5, 4, 3] if is_validated else [None] * 3, keep_last=2)
    damage(tmp_path / "step-00000030")
    (tmp_path / f".myxtts-{7:016x}").mkdir()
    before = list_names(tmp_path)
    with collect_warnings() as warnings:
        assert find_model_directory(tmp_path).name == "step-00000020"
    assert ["It stays as it is" in warning for warning in warnings] == [True], "said once"
    assert list_names(tmp_path) == before
    with collect_warnings() as warnings:
        found = open_store(tmp_path).latest()
        assert open_store(tmp_path).latest().step == found.step == 20
    assert_content(found)
    (warning,) = warnings
    assert f"{tmp_path / 'step-00000030'}" in warning
    assert f"set aside as {tmp_path / 'damaged-step-00000030'}" in warning
    assert list_names(tmp_path) == ["checkpoints.json", "damaged-step-00000030", "step-00000020"]


def test_a_run_whose_every_checkpoint_is_damaged_does_not_begin_again_unasked(tmp_path):
    fill(tmp_path, [5, 4])
    for name in ("step-00000010", "step-00000020"):
        flip(tmp_path / name / "model.safetensors")
    for _ in range(2):
        with (
            collect_warnings(),
            pytest.raises(CheckpointError, match=r"damaged-step-00000010, damaged-step-00000020.*--reset-training"),
        ):
            open_store(tmp_path).latest()


def test_one_of_a_newer_myxtts_is_an_error_and_left_alone(tmp_path):
    fill(tmp_path, [5, 4])
    path = tmp_path / "step-00000020" / "manifest.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"format_version": 99}))
    with pytest.raises(ModelFileError, match="written by a newer MyXTTS"):
        open_store(tmp_path).latest()
    assert (tmp_path / "step-00000020").exists()


def test_other_things_in_the_folder_are_left_alone(tmp_path):
    for name in ("step-best", "notes", ".step-1.keep", "step-5.tar", ".hidden.new-mine"):
        (tmp_path / name).mkdir()
    (tmp_path / "step-77").write_text("a file")
    before = list_names(tmp_path)
    store = fill(tmp_path, [5, 4, 3, 2])
    store.latest()
    assert [name for name in list_names(tmp_path) if name in before] == before


def test_the_room_that_will_be_taken_is_told_before(tmp_path, monkeypatch):
    store = open_store(tmp_path / "deep" / "run", keep_last=3, keep_best=2)
    content = make_content(1, size=250_000)
    told = f"Checkpoints need 12 MB in {store.folder} (5 kept, 2 MB each); 0.0 GB are free."
    free = 6 * 2_000_016
    monkeypatch.setattr(shutil, "disk_usage", lambda folder: SimpleNamespace(free=free))
    assert store.describe_disk(**content) == told
    free -= 1
    assert store.describe_disk(**content) == f"{told} That is too little: a save will fail."
    store.save(**content, state=make_state(1))
    assert store.describe_disk(**content) == told, "what is there already needs no room"
    (store.folder / "start").mkdir()
    (store.folder / "start" / "model.safetensors").write_bytes(bytes(3_000_000))
    assert store.describe_disk(**content) == f"{told} The model it starts from lies beside them: 3 MB."


@pytest.fixture
def written(tmp_path):
    return open_store(tmp_path).save(**make_content(7), state=make_state(7, val_loss=0.1 + 0.2)).path


def test_what_would_not_come_back_as_it_was_is_not_written(tmp_path):
    state = TrainingState(step=1, metrics={}, extra={"counter": np.int64(3)})
    with pytest.raises(TypeError, match="int64"):
        open_store(tmp_path).save(**make_content(1), state=state)
    assert list(tmp_path.iterdir()) == []


def test_a_model_without_the_state_of_a_run_says_how_to_use_it(tmp_path):
    write_model_directory(tmp_path / "model", **make_content(1)["model"])
    with pytest.raises(ModelFileError, match=r"without training\.json.*--init-from"):
        read_training_checkpoint(tmp_path / "model")


def test_a_state_of_another_version_is_no_damage(written):
    path = written / "training.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"version": 9}).ljust(path.stat().st_size))
    with pytest.raises(DamagedFileError, match=r"training\.json: (is damaged|must have)"):
        read_training_checkpoint(written)
    manifest = json.loads((written / "manifest.json").read_text())
    manifest["files"]["training.json"]["bytes"] = path.stat().st_size
    (written / "manifest.json").write_text(json.dumps(manifest))
    with pytest.raises(ModelFileError, match="has version 9, but this MyXTTS reads version 1") as caught:
        read_training_checkpoint(written, verify_checksums=False)
    assert not isinstance(caught.value, DamagedFileError)
