import pytest
from hypothesis import given
from hypothesis import strategies as st

from myxtts.monitoring.errors import MemoryBillError
from myxtts.monitoring.memory_bill import (
    BatchChoice,
    bill_data_device,
    bill_model_device,
    check_bill,
    format_bills,
    suggest_batch,
)

MIB = 2**20


def make_bill(limit_bytes, activations_bytes=500 * MIB):
    return bill_model_device(
        "/GPU:1", weights_bytes=100 * MIB, gradients_bytes=100 * MIB, optimizer_bytes=200 * MIB,
        activations_bytes=activations_bytes, slots_bytes=24 * MIB, limit_bytes=limit_bytes,
    )  # fmt: skip


def test_a_bill_is_the_sum_of_its_items_against_the_limit():
    assert make_bill(924 * MIB).total_bytes == 924 * MIB
    assert make_bill(924 * MIB).fits is True
    assert make_bill(924 * MIB - 1).fits is False


@pytest.mark.parametrize("bill", [make_bill(None), make_bill(1, activations_bytes=None)])
def test_what_is_unknown_is_neither_zero_nor_refused(bill):
    assert bill.fits is None
    check_bill(bill, None)
    assert "unknown" in format_bills([bill])
    assert "not known to fit" in format_bills([bill])


def test_the_table_has_a_column_per_device_and_fits_80_columns():
    data = bill_data_device(
        "/GPU:0", weights_bytes=50 * MIB, activations_bytes=3 * MIB, slots_bytes=0, limit_bytes=8 * MIB
    )
    lines = format_bills([make_bill(1000 * MIB), data]).splitlines()
    assert max(map(len, lines)) <= 80
    assert lines[0].split() == ["Memory", "/GPU:1", "(model)", "/GPU:0", "(data)"]
    assert [line.split() for line in lines if line.startswith("gradients")] == [["gradients", "100.0", "MB", "-"]]
    assert "~500.0 MB" in format_bills([make_bill(None)])
    assert lines[-1].split() == ["fits", "DOES", "NOT", "FIT"]


def test_a_bill_too_high_is_refused_with_a_batch_that_fits():
    suggestion = suggest_batch(BatchChoice(8, 2), lambda batch: 100 * batch, 450)
    assert suggestion == BatchChoice(4, 4)
    with pytest.raises(MemoryBillError, match="--batch-size 4 --grad-accum 4") as caught:
        check_bill(make_bill(300 * MIB), suggestion)
    assert "needs about 924.0 MB, its limit is 300.0 MB" in str(caught.value)


def test_when_not_even_one_clip_fits_the_error_says_so():
    assert suggest_batch(BatchChoice(8, 1), lambda batch: 1000, 999) is None
    with pytest.raises(MemoryBillError, match="Not even a single clip"):
        check_bill(make_bill(300 * MIB), None)


@given(st.integers(1, 48), st.integers(1, 16), st.integers(0, 100), st.integers(1, 9), st.integers(1, 400))
def test_a_suggestion_fits_keeps_the_product_and_is_the_largest(batch, accumulation, fixed, each, limit):
    wanted = BatchChoice(batch, accumulation)
    choice = suggest_batch(wanted, lambda clips: fixed + each * clips, limit)
    fitting = [b for b in range(1, batch + 1) if (batch * accumulation) % b == 0 and fixed + each * b <= limit]
    if choice is None:
        assert not fitting
    else:
        assert choice.batch_size == max(fitting)
        assert choice.batch_size * choice.accumulation == batch * accumulation
