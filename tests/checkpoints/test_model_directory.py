"""A model written in our own form reads back equal, and what is wrong with a copy of it is said."""

import json
import shutil

import ml_dtypes
import numpy as np
import pytest

from myxtts.checkpoints.model_directory import FORMAT_VERSION, read_model_directory, write_model_directory
from myxtts.config import XTTSConfig
from myxtts.errors import ConfigError, ModelFileError
from tests.checkpoints.hostile_models import seal

MODEL = {
    "wide": np.arange(6, dtype=np.float64).reshape(2, 3).T,
    "half": np.arange(5).astype(np.float16),
    "brain": np.arange(5).astype(ml_dtypes.bfloat16),
    "flags": np.array([True, False, True]),
    "scalar": np.array(1.5, np.float32),
    "empty": np.zeros((0, 4), np.int64),
    "big": np.arange(3, dtype=">i4"),
    "zwölf": np.arange(12, dtype=np.uint8),
}


@pytest.fixture
def written(tmp_path):
    """A model directory with everything in it."""
    target = tmp_path / "model"
    write_model_directory(
        target,
        config=XTTSConfig(model={"size": "tiny", "gpt_layers": 3}),
        model=MODEL,
        dvae={"codebook.embed": np.ones((2, 3), np.float32)},
        vocabulary='{"model": "سلام"}',
        source_config={"model_args": {"gpt_layers": 3}, "path": {1, 2}},
        notice="not for sale",
    )
    return target


def assert_same_tensors(actual, expected):
    assert set(actual) == set(expected)
    for name, array in expected.items():
        native = np.asarray(array, array.dtype.newbyteorder("="))
        assert (actual[name].shape, actual[name].dtype) == (native.shape, native.dtype), name
        np.testing.assert_array_equal(actual[name].read(), native, err_msg=name, strict=True)


def test_a_model_reads_back_equal(written):
    directory = read_model_directory(written)
    assert_same_tensors(directory.model, MODEL)
    assert_same_tensors(directory.dvae, {"codebook.embed": np.ones((2, 3), np.float32)})
    assert directory.config.model.gpt_layers == 3
    assert directory.config.model.size == "tiny"
    assert directory.vocabulary == '{"model": "سلام"}'
    assert directory.source_config == {"model_args": {"gpt_layers": 3}, "path": "{1, 2}"}
    assert directory.manifest.facts.notice == "not for sale"
    assert directory.manifest.format_version == FORMAT_VERSION


def test_the_environment_of_the_reader_does_not_change_the_model(written, monkeypatch):
    monkeypatch.setenv("MYXTTS_REHEARSAL", "1")
    assert read_model_directory(written).config.training.rehearsal is False


def test_equal_models_give_equal_bytes(tmp_path):
    for name, model in (("one", MODEL), ("two", dict(reversed(MODEL.items())))):
        write_model_directory(tmp_path / name, config=XTTSConfig(), model=model)
    one, two = ((tmp_path / name / "model.safetensors").read_bytes() for name in ("one", "two"))
    assert one == two


def edit_manifest(directory, **changes):
    path = directory / "manifest.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))


def flip(path):
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(content)


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda d: (d / "model.safetensors").write_bytes((d / "model.safetensors").read_bytes()[:-1]), r"model\.safetensors: must have \d+ bytes, but has \d+: it is cut short"),
        (lambda d: flip(d / "model.safetensors"), r"model\.safetensors: is damaged: its checksum"),
        (lambda d: flip(d / "dvae.safetensors"), r"dvae\.safetensors: is damaged"),
        (lambda d: (d / "vocab.json").unlink(), r"vocab\.json: there is no such file.*Copy the directory again"),
        (lambda d: (d / "manifest.json").unlink(), r"has no manifest\.json.*imported from its \.pth file"),
        (lambda d: edit_manifest(d, format_version=FORMAT_VERSION + 1), "written by a newer MyXTTS .*Update MyXTTS"),
        (lambda d: edit_manifest(d, format="myxtts training state"), "must be a myxtts model, but is a myxtts training state"),
        (lambda d: edit_manifest(d, files={"../x": {"bytes": 1, "sha256": ""}}), "names a file that cannot"),
        (lambda d: edit_manifest(d, files={"vocab.json": {"bytes": "many"}}), "is not what it should be"),
        (lambda d: edit_manifest(d, files={}), r"lacks model\.safetensors"),
        (shutil.rmtree, "there is no such directory"),
    ],
)  # fmt: skip
def test_what_is_wrong_with_a_copy_is_said(written, damage, message):
    damage(written)
    with pytest.raises(ModelFileError, match=message) as caught:
        read_model_directory(written)
    assert str(written) in str(caught.value)


def test_checksums_can_be_waived_but_sizes_cannot(written):
    flip(written / "vocab.json")
    read_model_directory(written, verify_checksums=False)
    (written / "vocab.json").write_bytes(b"")
    with pytest.raises(ModelFileError, match="cut short"):
        read_model_directory(written, verify_checksums=False)


def test_a_setting_that_is_not_known_is_named(written):
    (written / "config.yaml").write_text("model:\n  gpt_layer: 3\n")
    seal(written)
    with pytest.raises(ConfigError, match="gpt_layers"):
        read_model_directory(written)
