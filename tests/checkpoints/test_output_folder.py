"""Where a folder is written, nothing that lies there is lost."""

import numpy as np
import pytest

from myxtts.checkpoints.errors import OutputFolderError
from myxtts.checkpoints.model_directory import write_model_directory
from myxtts.checkpoints.output_folder import require_free_folder, require_makeable_folder, require_model_folder
from myxtts.config import XTTSConfig

BOTH = pytest.mark.parametrize("require", [require_free_folder, require_model_folder])


@pytest.fixture
def model(tmp_path):
    write_model_directory(tmp_path / "model", config=XTTSConfig(), model={"mel_stats": np.ones(80, np.float32)})
    return tmp_path / "model"


@BOTH
def test_a_new_or_empty_folder_is_free_and_nothing_is_left_beside_it(tmp_path, require):
    require(tmp_path / "not" / "yet")
    (tmp_path / "empty").mkdir()
    require(tmp_path / "empty")
    assert [path.name for path in tmp_path.iterdir()] == ["empty"]


@BOTH
def test_files_of_others_are_named(tmp_path, require):
    for name in "abcd":
        (tmp_path / name).touch()
    with pytest.raises(
        OutputFolderError, match=r"holds other files \(a, b, c, \.\.\.\), which would be lost\. Give a new"
    ):
        require(tmp_path)


def test_a_model_alone_may_be_replaced_by_a_model_only(model):
    require_model_folder(model)
    with pytest.raises(OutputFolderError, match=r"config\.yaml, manifest\.json, model\.safetensors"):
        require_free_folder(model)
    (model / "training.safetensors").touch()
    with pytest.raises(OutputFolderError, match=r"\(training\.safetensors\)"):
        require_model_folder(model)


@BOTH
def test_a_folder_whose_replacement_was_interrupted_counts_as_there(tmp_path, require):
    # As after a crash where names cannot be exchanged.
    old = tmp_path / ".target.old-0123456789abcdef"
    old.mkdir()
    (old / "precious").touch()
    with pytest.raises(OutputFolderError, match=r"holds other files \(precious\)"):
        require(tmp_path / "target")
    assert (tmp_path / "target" / "precious").exists()


@BOTH
def test_the_folder_one_stands_in_is_not_replaced(tmp_path, monkeypatch, require):
    (tmp_path / "a" / "b").mkdir(parents=True)
    monkeypatch.chdir(tmp_path / "a" / "b")
    for place in (tmp_path / "a" / "b", tmp_path / "a"):
        with pytest.raises(OutputFolderError, match="started in, or one above it"):
            require(place)


def test_what_is_still_to_be_read_is_not_replaced(model):
    with pytest.raises(OutputFolderError, match=r"holds .*model\.safetensors, which is to be read"):
        require_model_folder(model, [model / "model.safetensors"])


@pytest.mark.parametrize("require", [require_free_folder, require_model_folder, require_makeable_folder])
def test_a_place_that_takes_no_folder_is_the_users_to_change(tmp_path, require):
    (tmp_path / "file").touch()
    for place, why in (
        ("file", "must be a folder, but is a file"),
        ("file/new", "Not a directory"),
        ("/proc/new", "/proc takes"),
    ):
        with pytest.raises(OutputFolderError, match=why) as caught:
            require(tmp_path / place)
        assert caught.value.exit_code == 2
