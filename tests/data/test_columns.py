import numpy as np
import pytest

from myxtts.data.columns import NameColumnBuilder, TextColumnBuilder


def test_texts_come_back_as_they_were():
    texts = ["", "plain", "سلام، دنیا", "a\udcffb", "", "\U0001f600"]

    column = TextColumnBuilder(texts).build()

    assert list(column) == texts
    assert [column[i] for i in range(len(column))] == texts


def test_taking_texts_keeps_the_order_asked_for():
    column = TextColumnBuilder(["a", "bb", "", "dddd"]).build()

    assert list(column.take(np.array([3, 0, 2]))) == ["dddd", "a", ""]
    assert column.take(np.arange(4)) is column
    assert len(column.take(np.array([], dtype=int))) == 0


def test_an_entry_beyond_the_end_is_an_error():
    with pytest.raises(IndexError):
        TextColumnBuilder(["a"]).build()[1]


def test_taking_names_forgets_those_that_no_longer_occur():
    builder = NameColumnBuilder()
    for name in ["x", "y", "x", "z", "y"]:
        builder.append(name)

    taken = builder.build().take(np.array([3, 4, 1]))

    assert taken.names == ("z", "y")
    assert [taken[i] for i in range(3)] == ["z", "y", "y"]
