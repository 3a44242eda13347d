"""What is written without torch reads back bit by bit, and has the form that torch maps into memory."""

import struct
import zipfile

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from myxtts.checkpoints import torch_files
from myxtts.checkpoints.tensors import LazyTensor
from myxtts.checkpoints.torch_files import ZipRecords, read_torch_file
from myxtts.errors import CheckpointError
from tests.checkpoints.builders import write_torch_file

DTYPES = [
    *(np.dtype(code) for code in ("f2", "f4", "f8", "i1", "i2", "i4", "i8", "u1", "u2", "u4", "u8", "?")),
    np.dtype(ml_dtypes.bfloat16),
]


def draw_arrays():
    shapes = hnp.array_shapes(min_dims=0, max_dims=3, min_side=0, max_side=4)

    def make(dtype, shape, seed):
        # From random bytes: every bit pattern, NaNs with payloads among them.
        size = int(np.prod(shape)) * dtype.itemsize
        raw = np.random.default_rng(seed).integers(0, 2 if dtype.kind == "b" else 256, size, np.uint8)
        return raw.view(dtype).reshape(shape)

    return st.builds(make, st.sampled_from(DTYPES), shapes, st.integers(0, 2**32))


SCALARS = st.none() | st.booleans() | st.integers(-(2**63), 2**64 - 1) | st.floats() | st.text()
VALUES = st.recursive(
    SCALARS | draw_arrays(),
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.lists(inner, max_size=4).map(tuple)
        | st.dictionaries(st.text() | st.integers(-(2**63), 2**63), inner, max_size=4)
    ),
    max_leaves=12,
)


def assert_identical(actual, expected):
    if isinstance(expected, np.ndarray):
        assert isinstance(actual, LazyTensor)
        array = actual.read()
        assert (array.shape, array.dtype) == (expected.shape, expected.dtype)
        assert array.tobytes() == expected.tobytes()
    elif isinstance(expected, dict):
        assert list(actual) == list(expected)
        assert [type(key) for key in actual] == [type(key) for key in expected]
        for key, value in expected.items():
            assert_identical(actual[key], value)
    elif isinstance(expected, list | tuple):
        assert type(actual) is type(expected)
        assert len(actual) == len(expected)
        for one, other in zip(actual, expected, strict=True):
            assert_identical(one, other)
    elif isinstance(expected, float):
        assert struct.pack(">d", actual) == struct.pack(">d", expected)
    else:
        assert (type(actual), actual) == (type(expected), expected)


@given(VALUES)
@settings(max_examples=150, derandomize=True, deadline=None)
def test_any_content_reads_back_bit_by_bit(tmp_path_factory, content):
    path = tmp_path_factory.getbasetemp() / "round_trip.pth"
    write_torch_file(path, content)
    assert_identical(read_torch_file(path), content)


def test_arrays_of_any_layout_are_written_by_value(tmp_path):
    base = np.arange(24, dtype=np.float32).reshape(2, 3, 4)
    views = {
        "transposed": base.T,
        "strided": base[:, ::2, ::-1],
        "big": base.astype(">f4"),
        "broadcast": np.broadcast_to(base[0, 0], (5, 4)),
    }
    write_torch_file(tmp_path / "views.pth", views)
    for name, tensor in read_torch_file(tmp_path / "views.pth").items():
        np.testing.assert_array_equal(tensor.read(), views[name])


@pytest.mark.parametrize("zip64_from_bytes", [2**30, 0], ids=["32 bit", "64 bit"])
def test_storages_are_aligned_and_the_records_are_those_of_torch(tmp_path, monkeypatch, zip64_from_bytes):
    monkeypatch.setattr(torch_files, "_ZIP64_FROM_BYTES", zip64_from_bytes)
    path = tmp_path / "aligned.pth"
    arrays = {f"t{index}": np.arange(index, dtype=np.int8) for index in range(70)}
    write_torch_file(path, arrays)
    starts = ZipRecords(path).starts
    others = {"data.pkl", "byteorder", "version"}
    assert {name.partition("/")[2] for name in starts} == others | {f"data/{index}" for index in range(70)}
    assert all(start % 64 == 0 for name, start in starts.items() if "/data/" in name)
    with zipfile.ZipFile(path) as archive:
        assert archive.testzip() is None
        assert archive.read("archive/version") == b"3\n"
        assert archive.read("archive/byteorder") == b"little"
    assert all(np.array_equal(read_torch_file(path)[name].read(), array) for name, array in arrays.items())


def test_a_tensor_in_two_places_is_stored_once(tmp_path):
    shared = np.arange(1000, dtype=np.float64)
    write_torch_file(tmp_path / "shared.pth", {"a": shared, "b": shared})
    assert sum("/data/" in name for name in ZipRecords(tmp_path / "shared.pth").records) == 1
    content = read_torch_file(tmp_path / "shared.pth")
    assert np.array_equal(content["a"].read(), content["b"].read())


def make_cycle():
    cycle = []
    cycle.append(cycle)
    return cycle


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (object(), r"\(object\) cannot be written"),
        ({1, 2}, r"\(set\) cannot be written"),
        (make_cycle(), "nested more than"),
        ({(1, 2): 3}, r"\(dict\) cannot be written"),
        ({1.5: 3}, r"\(dict\) cannot be written"),
        (2**64, "cannot be written: .* of 64 bits"),
        ("\ud800", "half a character"),
        ("x" * (2**20 + 1), "longer than"),
        (np.array(["text"]), "torch has no tensors of type"),
        (np.array([None]), "torch has no tensors of type object"),
    ],
)
def test_what_cannot_be_written_is_said_and_nothing_is(tmp_path, content, message):
    path = tmp_path / "refused.pth"
    path.write_bytes(b"old")
    with pytest.raises(CheckpointError, match=message):
        write_torch_file(path, {"value": [content]})
    assert path.read_bytes() == b"old"
