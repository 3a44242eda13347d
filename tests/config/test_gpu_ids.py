"""Lists of GPUs as users give them."""

import pytest

from myxtts.config.settings import parse_gpu_ids


@pytest.mark.parametrize(("text", "ids"), [("0", [0]), ("1,0", [1, 0]), (" 2 , 10", [2, 10])])
def test_ids_keep_their_order(text, ids):
    assert parse_gpu_ids(text) == ids


@pytest.mark.parametrize("text", ["", "0,", "x", "0,0", "0,00", "-1,0", "0;1", "\u0661"])
def test_what_is_no_list_of_different_ids_is_refused(text):
    with pytest.raises(ValueError, match="must be a list of different ids"):
        parse_gpu_ids(text)
