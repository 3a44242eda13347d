import numpy as np

from myxtts.hashing import digest64, hash_words, mix64


def test_mix64_is_splitmix64():
    # The first outputs of SplitMix64 started at 0: mix64 of 1, 2, 3 times the golden ratio.
    golden = 0x9E3779B97F4A7C15
    states = np.array([golden * i & (1 << 64) - 1 for i in (1, 2, 3)], dtype=np.uint64)

    assert [hex(value) for value in mix64(states).tolist()] == [
        "0xe220a8397b1dcdaf",
        "0x6e789e6aa1b965f4",
        "0x6c45d188009454f",
    ]


def test_hash_words_of_an_array_equals_the_hash_of_each_element():
    together = hash_words(7, np.arange(5), 3)

    assert together.tolist() == [hash_words(7, i, 3)[0] for i in range(5)]
    assert len(set(together.tolist())) == 5


def test_hash_values_never_change():
    # Saved runs depend on these: a change here makes every run impossible to resume.
    assert hash_words(42, 1, np.arange(3)).tolist() == [
        10646091845267208524,
        6266766552776962338,
        17592914093553962002,
    ]
    assert digest64(b"LJ001-0001.wav") == 5274339293689399613
