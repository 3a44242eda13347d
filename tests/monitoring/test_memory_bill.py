import pytest
from hypothesis import given
from hypothesis import strategies as st

from myxtts.errors import MemoryBillError
from myxtts.monitoring.memory import BatchChoice, BillItem, DeviceBill, check_bill, format_bills, suggest_batch

MIB = 2**20


def make_bill(limit_bytes):
    items = (BillItem("weights", 100 * MIB), BillItem("gradients", 324 * MIB), BillItem("activations", 500 * MIB, True))
    return DeviceBill("/GPU:1", "model", items, limit_bytes)


def test_a_limit_that_is_unknown_refuses_nothing():
    assert make_bill(924 * MIB).fits is True
    assert make_bill(924 * MIB - 1).fits is False
    unknown = make_bill(None)
    assert unknown.fits is None
    check_bill(unknown, None)
    assert [line.split(maxsplit=1)[-1] for line in format_bills([unknown]).splitlines()[-2:]] == [
        "unknown",
        "known to fit",
    ]


def test_the_table_has_a_column_per_device_and_fits_80_columns():
    data = DeviceBill("/GPU:0", "data", (BillItem("weights", 50 * MIB),), 8 * MIB)
    lines = format_bills([make_bill(1000 * MIB), data]).splitlines()
    assert max(map(len, lines)) <= 80
    cells = [line.split() for line in lines]
    assert cells[0] == ["Memory", "/GPU:1", "(model)", "/GPU:0", "(data)"]
    assert ["gradients", "324.0", "MB", "-"] in cells
    assert ["activations", "~500.0", "MB", "-"] in cells
    assert cells[-1] == ["fits", "DOES", "NOT", "FIT"]


def test_a_bill_too_high_is_refused_with_a_batch_that_fits_or_says_that_none_does():
    suggestion = suggest_batch(BatchChoice(8, 2), lambda batch: 100 * batch, 450)
    assert suggestion == BatchChoice(4, 4)
    with pytest.raises(MemoryBillError, match="--batch-size 4 --grad-accum 4") as caught:
        check_bill(make_bill(300 * MIB), suggestion)
    assert "needs about 924.0 MB, its limit is 300.0 MB" in str(caught.value)
    with pytest.raises(MemoryBillError, match="Not even a single clip"):
        check_bill(make_bill(300 * MIB), suggest_batch(BatchChoice(8, 1), lambda batch: 1000, 999))


@given(st.integers(1, 48), st.integers(1, 16), st.integers(0, 100), st.integers(1, 9), st.integers(1, 400))
def test_a_suggestion_fits_keeps_the_product_and_is_the_largest(batch, accumulation, fixed, each, limit):
    choice = suggest_batch(BatchChoice(batch, accumulation), lambda clips: fixed + each * clips, limit)
    fitting = [b for b in range(1, batch + 1) if (batch * accumulation) % b == 0 and fixed + each * b <= limit]
    if choice is None:
        assert not fitting
    else:
        assert choice == BatchChoice(max(fitting), batch * accumulation // max(fitting))
