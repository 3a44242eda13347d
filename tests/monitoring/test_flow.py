import pytest

from myxtts.monitoring.flow import Flow, add_flows, find_slowest, list_stage_shares, subtract_flow
from myxtts.pipeline.slots import HandoffFacts
from myxtts.pipeline.worker import WorkerFacts
from tests.monitoring.runs import make_flow


def test_each_side_of_a_hand_off_has_its_name():
    flow = make_flow()
    assert [(flow.name_giver(n), flow.name_taker(n)) for n in range(2)] == [
        ("prepare", "transfer"),
        ("transfer", "train"),
    ]


def test_a_stage_that_is_not_reported_is_named_by_its_hand_off():
    flow = Flow(1.0, (), (HandoffFacts("device", 1, 0.0, 0.5, 0.5),))
    assert flow.name_giver(0) == "before device"
    assert flow.name_taker(0) == "train"


@pytest.mark.parametrize(
    ("train_waits", "transfer_waits", "slowest"),
    [(0.02, 0.9, "train"), (0.3, 0.02, "transfer"), (0.3, 0.9, "prepare")],
)
def test_the_slowest_stage_is_found_by_following_the_waiting(train_waits, transfer_waits, slowest):
    assert find_slowest(make_flow(train_waits=train_waits, transfer_waits=transfer_waits)) == slowest


def test_of_stages_in_series_the_busier_one_is_the_slowest():
    flow = make_flow(train_waits=0.3, transfer_waits=0.9)
    busy_reader = Flow(flow.elapsed_s, (WorkerFacts("read", 20, 8.0), *flow.stages[1:]), flow.handoffs)
    assert find_slowest(flow) == "prepare"
    assert find_slowest(busy_reader) == "read"


def test_without_hand_offs_nothing_is_waited_for():
    assert find_slowest(Flow(1.0, (WorkerFacts("prepare", 1, 0.9),), ())) == "train"


def test_shares_of_a_stage_come_from_both_its_hand_offs():
    read, prepare, transfer = list_stage_shares(make_flow(elapsed_s=20.0, transfer_waits=0.5, busy=0.6))
    assert (read.busy, read.waits_for_batch, read.waits_for_slot) == (pytest.approx(0.06), None, None)
    assert (prepare.busy, prepare.waits_for_batch) == (pytest.approx(0.54), None)
    assert prepare.waits_for_slot == pytest.approx(0.4)
    assert (transfer.busy, transfer.waits_for_batch, transfer.waits_for_slot) == pytest.approx((0.05, 0.5, 0.3))


def test_no_time_has_no_shares():
    assert make_flow(elapsed_s=0.0).share(0.0) is None


def test_what_is_new_between_two_readings():
    before = make_flow(elapsed_s=10.0, train_waits=0.0)
    after = make_flow(elapsed_s=30.0, train_waits=0.4)
    window = subtract_flow(after, before)
    assert window.elapsed_s == 20.0
    assert window.handoffs[1].taker_wait_s == pytest.approx(12.0)
    # Ready for 18 s of 30 s in all, of which for all of the first 10 s.
    assert window.handoffs[1].readiness == pytest.approx(8 / 20)
    assert window.stages[1].busy_s == pytest.approx(9.0)
    assert subtract_flow(after, None) is after


def test_a_pipeline_opened_anew_counts_from_its_start():
    fresh = make_flow(elapsed_s=2.0)
    assert subtract_flow(fresh, make_flow(elapsed_s=50.0)) is fresh


def test_windows_add_up_to_the_whole():
    before, after = make_flow(elapsed_s=10.0, train_waits=0.1), make_flow(elapsed_s=30.0, train_waits=0.4)
    total = add_flows([before, subtract_flow(after, before)])
    assert total.elapsed_s == 30.0
    assert total.handoffs[1].taker_wait_s == pytest.approx(after.handoffs[1].taker_wait_s)
    assert total.handoffs[1].readiness == pytest.approx(after.handoffs[1].readiness)
    assert total.stages[2].busy_s == pytest.approx(after.stages[2].busy_s)
    assert add_flows([]) is None
