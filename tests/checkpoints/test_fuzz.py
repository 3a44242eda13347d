"""Damaged files give their content or a typed error: no other exception, no side effect, no wrong value."""

import random

import numpy as np
import pytest

from myxtts.checkpoints.tensors import LazyTensor
from myxtts.checkpoints.torch_files import read_torch_file
from myxtts.errors import ModelFileError
from tests.checkpoints.builders import ASSETS, write_torch_file
from tests.support.processes import run_code


def read_everything(path):
    """All values of a file as something that can be compared, with the bytes of every tensor."""

    def freeze(value):
        if isinstance(value, LazyTensor):
            return value.shape, str(value.dtype), value.read().tobytes()
        if isinstance(value, dict):
            return [(key, freeze(inner)) for key, inner in value.items()]
        if isinstance(value, list | tuple):
            return [freeze(inner) for inner in value]
        return repr(value)

    return freeze(read_torch_file(path))


@pytest.fixture(scope="module")
def small_file(tmp_path_factory):
    path = tmp_path_factory.mktemp("fuzz") / "small.pth"
    content = {
        "model": {"a": np.arange(6, dtype=np.float32).reshape(2, 3), "b": np.array([True, False])},
        "step": 3,
    }
    write_torch_file(path, content)
    return path


@pytest.fixture(scope="module")
def scratch(tmp_path_factory):
    return tmp_path_factory.mktemp("scratch") / "damaged.pth"


def test_a_file_cut_short_anywhere_is_an_error(small_file, scratch):
    raw = small_file.read_bytes()
    for length in range(len(raw)):
        scratch.write_bytes(raw[:length])
        with pytest.raises(ModelFileError):
            read_everything(scratch)


@pytest.mark.parametrize("source", ["small", "values", "coqui_classes"])
def test_a_flipped_bit_gives_an_error_or_the_same_content(small_file, scratch, source):
    path = small_file if source == "small" else ASSETS / f"{source}.pth"
    raw = path.read_bytes()
    expected = read_everything(path)
    generator = random.Random(2)
    errors = 0
    for position in generator.sample(range(len(raw)), min(len(raw), 800)):
        damaged = bytearray(raw)
        damaged[position] ^= 1 << generator.randrange(8)
        scratch.write_bytes(damaged)
        try:
            content = read_everything(scratch)
        except ModelFileError:
            errors += 1
        else:
            # Bytes that mean nothing here: padding, dates, versions.
            assert content == expected, f"the bit flip at byte {position} changed the content unnoticed"
    assert errors > 150


def test_mutated_pickles_have_no_side_effect():
    # Python reports imports, files, calls into the system and more to an audit hook: none may happen while they run.
    counts, events = run_code("from tests.checkpoints.mutated_pickles import run\nreport(run(count=6000, seed=3))")
    assert events == []
    assert counts["refused"] > 2000
    assert counts["read"] > 100, "mutations that leave a valid pickle must be among them"
