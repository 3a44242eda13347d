import os

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as npst

from myxtts.errors import MachineError, UserError
from myxtts.pipeline.ring import ALIGNMENT, Ring, SlotTable, reserve_shared_memory
from tests.support.processes import run_code

SLOT_BYTES = 1 << 16


class Pair:
    """Both sides of one ring."""

    def __init__(self, slots=3, slot_bytes=SLOT_BYTES):
        self.reader = Ring.create(slots, slot_bytes)
        self.writer = Ring.attach(os.dup(self.reader.fileno()), slots, self.reader.slot_bytes)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.reader.close()
        self.writer.close()


@pytest.fixture
def pair():
    with Pair() as pair:
        yield pair


ARRAYS = st.dictionaries(
    st.text(max_size=12),
    st.sampled_from(["bool", "uint8", "int16", "int32", "int64", "float16", "float32", "float64"]).flatmap(
        lambda dtype: npst.arrays(np.dtype(dtype), npst.array_shapes(min_dims=0, max_dims=4, min_side=0, max_side=5))
    ),
    max_size=6,
)


@given(batches=st.lists(ARRAYS, min_size=1, max_size=5))
@settings(max_examples=50, deadline=None)
def test_what_is_packed_is_read_bit_for_bit(batches):
    with Pair() as pair:
        layouts = [pair.writer.pack(position, arrays) for position, arrays in enumerate(batches)]
        # As many as there are slots: none has touched another.
        for position, arrays in list(enumerate(batches))[-3:]:
            views = pair.reader.read(position, layouts[position])
            assert list(views) == list(arrays)
            for name, array in arrays.items():
                assert views[name].dtype == array.dtype
                assert views[name].shape == array.shape
                assert views[name].tobytes() == array.tobytes()
                assert not views[name].size or views[name].ctypes.data % ALIGNMENT == 0
            del views


def test_a_batch_that_does_not_fit_is_refused_with_its_sizes(pair):
    arrays = {"codes": np.zeros(10, np.int32), "mel": np.zeros((4, SLOT_BYTES // 16 + 1), np.float32)}
    with pytest.raises(UserError, match=r"64.0 kB, but needs 64.1 kB: mel float32\[4, 4097\] 64.0 kB, codes int32"):
        pair.writer.pack(0, arrays)


def test_the_reader_cannot_write(pair):
    views = pair.reader.read(0, pair.writer.pack(0, {"a": np.zeros(4)}))
    with pytest.raises(ValueError, match="read-only"):
        views["a"][0] = 1
    with pytest.raises(ValueError, match="WRITEABLE"):
        views["a"].flags.writeable = True


@pytest.mark.parametrize("slot_bytes", [1 << 40, 1 << 60])
def test_memory_that_is_not_there_is_refused_before_it_is_touched(slot_bytes):
    told = r"of shared host memory are needed, but only .* are free, of which at most 80% are taken. Lower --batch-size"
    with pytest.raises(MachineError, match=told):
        Ring.create(3, slot_bytes)


@pytest.mark.parametrize(
    ("limit", "slot_bytes", "told"),
    [
        ("FSIZE, (1 << 20,) * 2", 1 << 20, "3.0 MB of shared host memory cannot be reserved: File too large"),
        ("AS, (read_process_memory(os.getpid()).address_space_bytes + (1 << 20),) * 2", 1 << 24, "3 slots of 16.0 MB cannot be mapped"),
    ],
)  # fmt: skip
def test_a_limit_of_the_system_is_a_clear_error_and_not_a_signal(limit, slot_bytes, told):
    # In a process of its own: the limit cannot be lifted again.
    answer, left = run_code(
        "import os, resource\n"
        "from myxtts.errors import MachineError\n"
        "from myxtts.pipeline.ring import Ring\n"
        "from myxtts.processes import read_process_memory\n"
        f"resource.setrlimit(resource.RLIMIT_{limit})\n"
        "before = len(os.listdir('/proc/self/fd'))\n"
        f"try:\n    Ring.create(3, {slot_bytes})\n"
        "except MachineError as error:\n    report([str(error), len(os.listdir('/proc/self/fd')) - before])\n"
    )
    assert told in answer
    assert left == 0


def test_the_memory_is_reserved_and_its_size_is_sealed():
    descriptor = reserve_shared_memory(1 << 20)
    try:
        assert os.fstat(descriptor).st_blocks * 512 == 1 << 20, "not reserved: the first writer could die of SIGBUS"
        for size in (0, 1 << 19, 1 << 21):
            with pytest.raises(PermissionError):
                os.ftruncate(descriptor, size)
        assert not os.get_inheritable(descriptor)
    finally:
        os.close(descriptor)


def test_views_outlive_a_closed_ring():
    with Pair() as pair:
        views = pair.reader.read(0, pair.writer.pack(0, {"a": np.arange(10)}))
    assert views["a"].sum() == 45
    pair.reader.close()


@given(
    slots=st.integers(1, 4),
    end=st.integers(0, 20),
    moves=st.lists(st.sampled_from(["commit", "die", "take", "release"]), max_size=200),
)
def test_every_batch_is_taken_once_and_in_order_whatever_happens(slots, end, moves):
    table = SlotTable(slots, 0, end)
    orders = table.list_granted()
    taken, held = [], []
    for move in [*moves, *["commit", "take", "release"] * 60]:
        if move == "commit" and orders:
            # No slot is written that is still read.
            assert orders[0] % slots not in [position % slots for position in held]
            table.commit(orders.pop(0), [])
        elif move == "die":
            orders = table.list_granted()
        elif move == "take" and (ready := table.take()) is not None:
            taken.append(ready[0])
            held.append(ready[0])
        elif move == "release" and held:
            held.pop(0)
            orders += table.release()
        assert len(held) + len(table.list_granted()) <= slots
    assert taken == list(range(end))
    assert table.is_at_end()
    assert not table.has_work_left()
