import pytest

from myxtts.monitoring.clock import Flow, add_flows, find_slowest, list_stage_shares, subtract_flow
from myxtts.pipeline.threads import HandoffFacts, WorkFacts
from tests.monitoring.runs import make_flow


def test_each_side_of_a_hand_off_has_its_name():
    flow = make_flow()
    names = [(flow.name_giver(n), flow.name_taker(n)) for n in range(2)]
    assert names == [("prepare", "transfer"), ("transfer", "train")]
    unknown = Flow(1.0, (), (HandoffFacts("device", 1, 0.0, 0.5, 0.5),))
    assert (unknown.name_giver(0), unknown.name_taker(0)) == ("before device", "train")


@pytest.mark.parametrize(
    ("train_waits", "transfer_waits", "slowest"),
    [(0.02, 0.9, "train"), (0.3, 0.02, "transfer"), (0.3, 0.9, "prepare")],
)
def test_the_slowest_stage_is_found_by_following_the_waiting(train_waits, transfer_waits, slowest):
    flow = make_flow(train_waits=train_waits, transfer_waits=transfer_waits)
    assert find_slowest(flow) == slowest
    # Of stages in series it is the busier one.
    busy_reader = Flow(flow.elapsed_s, (WorkFacts("read", 20, 8.0), *flow.stages[1:]), flow.handoffs)
    assert find_slowest(busy_reader) == ("read" if slowest == "prepare" else slowest)
    assert find_slowest(Flow(1.0, (WorkFacts("prepare", 1, 0.9),), ())) == "train"


def test_shares_of_a_stage_come_from_both_its_hand_offs():
    read, prepare, transfer = list_stage_shares(make_flow(elapsed_s=20.0, transfer_waits=0.5, busy=0.6))
    assert read == ("read", pytest.approx(0.06), None, None)
    assert prepare == ("prepare", pytest.approx(0.54), None, pytest.approx(0.4))
    assert transfer == ("transfer", pytest.approx(0.05), pytest.approx(0.5), pytest.approx(0.3))
    assert make_flow(elapsed_s=0.0).share(0.0) is None


def test_what_is_new_between_two_readings_and_adds_up_to_the_whole():
    before, after = make_flow(elapsed_s=10.0, train_waits=0.0), make_flow(elapsed_s=30.0, train_waits=0.4)
    window = subtract_flow(after, before)
    assert window.elapsed_s == 20.0
    assert window.handoffs[1].taker_wait_s == pytest.approx(12.0)
    # Ready for 18 s of 30 s in all, of which for all of the first 10 s.
    assert window.handoffs[1].readiness == pytest.approx(8 / 20)
    assert window.stages[1].busy_s == pytest.approx(9.0)
    total = add_flows([before, window])
    assert (total.elapsed_s, total.stages[1].items) == (30.0, after.stages[1].items)
    assert total.handoffs[1].taker_wait_s == pytest.approx(after.handoffs[1].taker_wait_s)
    assert total.handoffs[1].readiness == pytest.approx(after.handoffs[1].readiness)
    assert add_flows([]) is None
    # A pipeline that was opened anew counts from its start.
    assert subtract_flow(before, after) is before
    assert subtract_flow(after, None) is after
