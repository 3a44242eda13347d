import pytest
from hypothesis import given
from hypothesis import strategies as st

from myxtts.pipeline.errors import MalformedMessageError
from myxtts.pipeline.ring import SlotContent
from myxtts.pipeline.slot_table import Grant, SlotTable

CONTENT = SlotContent((), 0)


def test_slots_are_granted_for_the_next_positions_up_to_the_end():
    table = SlotTable(3, first_position=10, end_position=12)
    assert table.grant_free() == [Grant(0, 10), Grant(1, 11)]
    assert table.grant_free() == []


def test_a_stream_without_positions_is_at_its_end():
    table = SlotTable(3, 5, 5)
    assert table.is_at_end()
    assert table.grant_free() == []


@pytest.mark.parametrize(("slot", "position"), [(1, 0), (0, 1), (0, 5), (9, 0), (-1, 0)])
def test_a_commit_that_was_not_granted_is_refused(slot, position):
    table = SlotTable(3, 0, None)
    table.grant_free()
    with pytest.raises(MalformedMessageError, match="not granted"):
        table.commit(slot, position, CONTENT)
    assert len(table.list_granted()) == 3


def test_a_second_commit_of_the_same_batch_is_refused():
    table = SlotTable(3, 0, None)
    table.grant_free()
    table.commit(0, 0, CONTENT)
    with pytest.raises(MalformedMessageError):
        table.commit(0, 0, CONTENT)


def test_a_damaged_batch_is_granted_again_before_the_later_ones():
    table = SlotTable(3, 0, None)
    table.grant_free()
    for slot in range(2):
        table.commit(slot, slot, CONTENT)
    table.put_back()
    assert table.find_ready() is None
    assert table.list_granted() == [Grant(0, 0), Grant(2, 2)]
    assert table.is_waiting()


@given(
    slots=st.integers(1, 4),
    end=st.integers(0, 20),
    moves=st.lists(st.sampled_from(["commit", "die", "take", "release", "damage"]), max_size=200),
)
def test_every_batch_is_taken_once_and_in_order_whatever_happens(slots, end, moves):
    table = SlotTable(slots, 0, end)
    orders = table.grant_free()
    taken, held = [], 0
    for move in [*moves, *["commit", "take", "release"] * 60]:
        if move == "commit" and orders:
            grant = orders.pop(0)
            table.commit(grant.slot, grant.position, CONTENT)
        elif move == "die":
            orders = table.list_granted()
        elif move == "damage" and table.find_ready():
            table.put_back()
            orders = table.list_granted()
        elif move == "take" and table.find_ready():
            taken.append(table.find_ready()[0].position)
            table.take()
            held += 1
        elif move == "release" and held:
            table.release()
            held -= 1
            orders += table.grant_free()
        in_use = [grant.slot for grant in table.list_granted()] + list(table._taken)
        in_use += [slot for slot, _ in table._committed.values()]
        assert sorted(in_use + list(table._free)) == list(range(slots))
    assert taken == list(range(end))
    assert table.is_at_end()
