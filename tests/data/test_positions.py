from itertools import islice

from hypothesis import given
from hypothesis import strategies as st

from myxtts.data.sampler import Position, count_micro_batches, find_position, follow_position, number_position
from tests.data.test_sampler import samplers


@given(samplers())
def test_places_follow_each_other_through_all_micro_batches(sampler):
    def walk():
        position = Position(0)
        while True:
            yield position
            position = follow_position(sampler, position)

    expected = [
        Position(step, number)
        for step in range(2 * sampler.steps_per_epoch + 1)
        for number in range(len(sampler.make_batch(step).micro_batches))
    ]

    assert list(islice(walk(), len(expected))) == expected
    assert [number_position(sampler, position) for position in expected] == list(range(len(expected)))
    assert [find_position(sampler, number) for number in range(len(expected))] == expected


@given(samplers(), st.integers(0, 10**9))
def test_far_places_are_found_without_walking(sampler, number):
    position = find_position(sampler, number)
    assert number_position(sampler, position) == number
    assert position.micro_batch < count_micro_batches(sampler, position.step)
