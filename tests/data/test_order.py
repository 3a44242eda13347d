from hypothesis import given
from hypothesis import strategies as st

from myxtts.data.sampler import Kind, Place, Position, RunOrder, count_micro_batches
from tests.data.test_sampler import samplers

limits = {"validation_batches": (0, 4), "validation_interval": (1, 7), "end_step": (0, 25)}
runs = st.fixed_dictionaries({name: st.integers(*each) for name, each in limits.items()})


def list_places(sampler, validation_batches, validation_interval, end_step):
    """The whole stream, by walking through it."""
    places = []
    for step in range(end_step):
        micro_batches = len(sampler.make_batch(step).micro_batches)
        places += [Place(Kind.TRAIN, Position(step, number), step) for number in range(micro_batches)]
        if (step + 1) % validation_interval == 0 or step + 1 == end_step:
            places += [Place(Kind.VALIDATION, Position(batch), step + 1) for batch in range(validation_batches)]
    return places


def list_order(order):
    return [order.find_place(number) for number in range(order.first_number, order.end_number)]


@given(samplers(), runs)
def test_the_stream_is_what_walking_through_it_gives(sampler, run):
    order = RunOrder(sampler, **run)
    assert (order.first_number, order.end_number) == (0, len(order))
    assert list_order(order) == list_places(sampler, **run)


@given(samplers(), runs, st.data())
def test_a_resumed_stream_is_the_rest_of_the_unbroken_one(sampler, run, data):
    first_step = data.draw(st.integers(0, run["end_step"]))
    unbroken = RunOrder(sampler, **run)
    resumed = RunOrder(sampler, **run, first_step=first_step)
    places = list_order(unbroken)
    assert resumed.end_number == unbroken.end_number
    assert list_order(resumed) == places[resumed.first_number :]
    assert all(place.updates < first_step or is_round_at(place, first_step) for place in places[: resumed.first_number])
    assert all(place.updates >= first_step for place in places[resumed.first_number :])


def is_round_at(place, updates):
    return place.kind is Kind.VALIDATION and place.updates == updates


@given(samplers(), runs, st.data())
def test_a_round_that_was_cut_off_comes_again(sampler, run, data):
    first_step = data.draw(st.integers(0, run["end_step"]))
    later = RunOrder(sampler, **run, first_step=first_step)
    order = RunOrder(sampler, **run, first_step=first_step, is_validated=False)
    is_due = first_step > 0 and first_step % run["validation_interval"] == 0
    rounds = [Place(Kind.VALIDATION, Position(n), first_step) for n in range(run["validation_batches"])]
    assert list_order(order) == (rounds if is_due else []) + list_order(later)
    assert order.end_number == later.end_number


@given(samplers(), runs, st.integers(0, 25))
def test_another_end_changes_no_number_before_the_former_last_round(sampler, run, more):
    order = RunOrder(sampler, **run)
    longer = RunOrder(sampler, **run | {"end_step": run["end_step"] + more})
    shared = order.number_step(order.end_step)
    assert longer.number_step(order.end_step) == shared
    assert list_order(longer)[:shared] == list_order(order)[:shared]


@given(samplers(), st.integers(0, 10**9), st.integers(1, 10**6), st.integers(0, 500))
def test_far_places_are_found_without_walking(sampler, step, interval, validation_batches):
    order = RunOrder(sampler, validation_batches, validation_interval=interval, end_step=step + 1)
    number = order.number_step(step)
    assert order.find_place(number) == Place(Kind.TRAIN, Position(step), step)
    last = number + count_micro_batches(sampler, step) - 1
    assert order.find_place(last).position == Position(step, count_micro_batches(sampler, step) - 1)
    if validation_batches:
        assert order.find_place(last + 1) == Place(Kind.VALIDATION, Position(0), step + 1)
        assert order.find_place(order.end_number - 1).position == Position(validation_batches - 1)
    else:
        assert last + 1 == order.end_number
