import errno
import gc
import os

import numpy as np
import psutil
import pytest

from myxtts.data.loading_workers import MOST_LEASES, SlotMemory
from myxtts.errors import MachineError


@pytest.fixture
def memory():
    memory = SlotMemory(3, 5000)
    yield memory
    memory.close()


def test_slots_do_not_overlap(memory):
    slots = [memory.acquire() for _ in range(3)]
    for slot in slots:
        memory.view(slot, 5, 1000)[:] = slot + 1
    assert [np.unique(memory.view(slot, 5, 1000)).tolist() for slot in slots] == [[1.0], [2.0], [3.0]]
    assert [memory.find_offset(slot) * 4 % 4096 for slot in slots] == [0, 0, 0]


def test_a_slot_comes_back_when_nobody_refers_to_it(memory):
    slot = memory.acquire()
    batch = memory.hand_out(slot, 5, 1000)
    part = batch[1:3, :10].T

    del batch
    assert memory.acquire() != slot
    del part
    assert memory.acquire() == slot


def test_who_keeps_many_gets_copies_and_never_takes_a_slot_from_the_readers(memory):
    kept = []
    for number in range(10):
        slot = memory.acquire()
        memory.view(slot, 5, 1000)[:] = number
        kept.append(memory.hand_out(slot, 5, 1000))
    assert [batch[0, 0] for batch in kept] == list(range(10))
    assert len({memory.acquire() for _ in range(3)}) == 3
    assert sum(batch.base is not None for batch in kept) == MOST_LEASES


def test_what_is_kept_outlives_the_memory_and_then_all_of_it_goes():
    before = psutil.Process().num_fds()
    memory = SlotMemory(2, 5000)
    slot = memory.acquire()
    memory.view(slot, 1, 5000)[:] = 7
    batch = memory.hand_out(slot, 1, 5000)

    memory.close()
    assert batch[0, -1] == 7
    del batch
    gc.collect()

    assert psutil.Process().num_fds() == before


def test_a_machine_without_memory_says_so(memory, monkeypatch):
    def refuse(*arguments):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "posix_fallocate", refuse)
    with pytest.raises(MachineError, match=r"batch 1 of 5 .* Lower --buffer-size"):
        memory.acquire()
