"""Damaged files give their content or a typed error: no other exception, no side effect, no wrong value."""

import random
import sys
from pathlib import Path

import numpy as np
import pytest

from myxtts.checkpoints.tensors import LazyTensor
from myxtts.checkpoints.torch_files import ZipRecords, read_torch_file
from myxtts.checkpoints.unpickling import PickleMachine, Storage
from myxtts.errors import ModelFileError
from tests.checkpoints.builders import ASSETS, call, text, write_torch_file
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
    arrays = {"a": np.arange(6, dtype=np.float32).reshape(2, 3), "b": np.array([True, False])}
    write_torch_file(path, {"model": arrays, "step": 3})
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


INSERTED = [
    call("os", "system", text("true")),
    call("builtins", "eval", text("1")),
    *(bytes([opcode]) for opcode in b"bR\x81Q\x930(t"),
]


def mutate(program, generator):
    raw = bytearray(program)
    for _ in range(generator.randint(1, 4)):
        position, start = (generator.randrange(2, len(raw)) for _ in range(2))
        match generator.randrange(5):
            case 0:
                raw[position] = generator.randrange(256)
            case 1:
                raw[position] ^= 1 << generator.randrange(8)
            case 2:
                del raw[position : min(position + generator.randint(1, 20), len(raw) - 1)]
            case 3:
                raw[position:position] = generator.choice(INSERTED)
            case 4:
                raw[position:position] = raw[start : start + generator.randint(1, 60)]
    return bytes(raw)


def load_storage(persistent_id):
    match persistent_id:
        case (_, np.dtype() as dtype, str(), str(), int(count)) if count >= 0:
            return Storage(dtype, count * dtype.itemsize, lambda start, length: bytearray(length))
    raise ValueError("is no storage")


def run_mutated(count, seed):
    """How many mutated pickles were read and refused, and what Python reported to an audit hook meanwhile.

    For a process of its own: a hook cannot be taken off again.
    """
    generator = random.Random(seed)
    assets = ("values", "coqui_classes", "no_checksums")
    programs = [ZipRecords(ASSETS / f"{asset}.pth").read_record(f"{asset}/data.pkl") for asset in assets]
    counts, events, is_armed = {"read": 0, "refused": 0}, set(), False

    def watch(event, arguments):
        if is_armed and event != "builtins.id":
            events.add(event)

    sys.addaudithook(watch)
    for _ in range(count):
        program = mutate(generator.choice(programs), generator)
        is_armed = True
        try:
            PickleMachine(Path("mutated.pth"), program, load_storage).run()
            counts["read"] += 1
        except ModelFileError:
            counts["refused"] += 1
        is_armed = False
    return counts, sorted(events)


def test_mutated_pickles_have_no_side_effect():
    # Python reports imports, files, calls into the system and more to an audit hook: none may happen while they run.
    counts, events = run_code(
        "from tests.checkpoints.test_fuzz import run_mutated\nreport(run_mutated(count=6000, seed=3))"
    )
    assert events == []
    assert counts["refused"] > 2000
    assert counts["read"] > 100, "mutations that leave a valid pickle must be among them"
