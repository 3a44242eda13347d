"""Files that torch wrote come back with every value; files that are something else are called by their name."""

import tracemalloc

import ml_dtypes
import numpy as np
import pytest

from myxtts.checkpoints.tensors import LazyTensor
from myxtts.checkpoints.torch_files import read_torch_file
from myxtts.errors import ModelFileError
from tests.checkpoints.builders import ASSETS, read_state, tensor, write_torch_file, zip_program, zip_records
from tests.support.shared_files import find_parity


def assert_same_arrays(tensors, expected):
    assert tensors.keys() == expected.keys()
    for name, array in expected.items():
        assert isinstance(tensors[name], LazyTensor)
        assert (tensors[name].shape, tensors[name].dtype) == (array.shape, array.dtype), name
        np.testing.assert_array_equal(tensors[name].read(), array, err_msg=name, strict=True)


def test_the_tiny_model_has_the_reference_weights():
    content = read_torch_file(find_parity("tiny_xtts_model.pth"))
    assert_same_arrays(content["model"], read_state("l_end_to_end"))
    assert len(content["model"]) == 483
    assert content["config"]["model_args"]["gpt_n_model_channels"] == 64


@pytest.fixture(scope="module")
def values():
    """What torch itself wrote: see tools/make_torch_assets.py."""
    return read_torch_file(ASSETS / "values.pth")


def test_every_type_of_element_is_read(values):
    kinds = {kind: (16, 32, 64) if kind == "float" else (8, 16, 32, 64) for kind in ("float", "int", "uint")}
    names = {f"{kind}{bits}" for kind, sizes in kinds.items() for bits in sizes} | {"bfloat16"}
    assert values["dtypes"].keys() == names
    for name, found in values["dtypes"].items():
        dtype = np.dtype(ml_dtypes.bfloat16) if name == "bfloat16" else np.dtype(name)
        expected = np.arange(0 if "uint" in name else -3, 9).astype(dtype)
        np.testing.assert_array_equal(found.read(), expected, err_msg=name, strict=True)


def test_views_of_one_storage_are_read(values):
    base = np.arange(24, dtype=np.float32).reshape(4, 6)
    expected = {
        "whole": base, "transposed": base.T, "row": base[2], "column": base[:, 1], "block": base[1:3, 2:5],
        "every_second": base[::2, ::3], "parameter": base, "scalar": np.array(2.5, np.float32), "empty": np.zeros((0, 3), np.float32),
    }  # fmt: skip
    for name, array in expected.items():
        np.testing.assert_array_equal(values[name].read(), array, err_msg=name, strict=True)
        assert values[name].nbytes == array.nbytes


def test_plain_values_are_read(values):
    assert values["bool"].read().tolist() == [True, False, True]
    assert values["size"] == (2, 3)
    assert values["set"] == {1, 2}
    assert values["frozen"] == frozenset(["a"])
    assert values["bytes"] == b"\x00\xff"
    assert values["bytearray"] == b"xyz"
    assert values["numbers"] == [0, 255, 256, 65536, -1, 2**31, -(2**40), 2**63, 2**64 - 1, 0.1, float("inf")]
    assert values["plain"] == (None, True, False, "سلام", "", (), [], {})
    assert values["counter"] == {1: 2, 2: 1}
    assert values["default"] == {"k": [1]}
    assert list(values["ordered"].items()) == [("b", 1), ("a", 2)]
    assert values["numpy"] == [1.5, 0.25, -7, True]


def test_a_file_without_checksums_is_read():
    assert read_torch_file(ASSETS / "no_checksums.pth")["a"].read().tolist() == [0, 1, 2, 3, 4]


def test_a_boolean_is_zero_or_one_whatever_its_byte(tmp_path):
    path = tmp_path / "bool.pth"
    program = tensor("0", 3, (3,), (1,)).replace(b"FloatStorage", b"BoolStorage")
    path.write_bytes(zip_program(program, {"0": b"\x00\x02\xff"}))
    assert read_torch_file(path).read().view(np.uint8).tolist() == [0, 1, 1]


def test_reading_one_tensor_leaves_the_others_in_the_file(tmp_path):
    path = tmp_path / "large.pth"
    tensors = {f"t{index}": np.full(2**20, index, np.float32) for index in range(16)}
    write_torch_file(path, tensors)
    del tensors
    tracemalloc.start()
    content = read_torch_file(path)
    assert all(content[f"t{index}"].read()[-1] == index for index in range(16))
    peak_mib = tracemalloc.get_traced_memory()[1] / 2**20
    tracemalloc.stop()
    assert peak_mib < 10, "64 MiB of tensors, 4 MiB each: two at a time are 8"


def test_a_file_that_is_replaced_while_it_is_read_is_noticed(tmp_path):
    path = tmp_path / "model.pth"
    write_torch_file(path, {"a": np.zeros(8)})
    content = read_torch_file(path)
    write_torch_file(path, {"a": np.ones(8)})
    with pytest.raises(ModelFileError, match="was changed while it was being read"):
        content["a"].read()


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "is empty"),
        (b"\x80\x04N.", "bare pickle"),
        (bytes(257) + b"ustar" + bytes(250), "old form of torch before 1.6"),
        ((ASSETS / "legacy.pth").read_bytes(), r"old form of torch before 1\.6.*torch\.load\(.*weights_only=True\)"),
        (b"\x08" + bytes(7) + b'{"a": 1}' + bytes(8), "is a safetensors file"),
        (b"version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 1\n", "git lfs pull"),
        (b"\n<!DOCTYPE html><html>", "web page"),
        (b"something else", "does not begin like a zip file"),
        (b"PK\x03\x04", "directory at its end is missing"),
        (zip_records({"word/document.xml": b"<x/>"}), "torch.save did not write it"),
        (zip_records({"m/data.pkl": b"\x80\x02N.", "m/constants.pkl": b"\x80\x02)."}), "TorchScript program"),
        (zip_program(b"N", byteorder=b"big"), "byte order"),
    ],
)
def test_other_files_are_called_by_their_name(tmp_path, content, message):
    path = tmp_path / "given.pth"
    path.write_bytes(content)
    with pytest.raises(ModelFileError, match=message) as caught:
        read_torch_file(path)
    assert str(caught.value).startswith(f"{path}: ")
    assert caught.value.exit_code == 2
