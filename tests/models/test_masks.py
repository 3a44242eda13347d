"""Masks by their effect: what is seen changes the result, what is hidden changes nothing."""

import numpy as np
import pytest
import tensorflow as tf

from myxtts.models.gpt import SequenceTooLongError
from tests.models.small import CODE_LENGTHS, TEXT_LENGTHS, build_small_gpt, make_batch


@pytest.fixture(scope="module")
def small():
    return build_small_gpt()


def read_sums(losses):
    return [float(losses.text.total), float(losses.audio.total), float(losses.text.count), float(losses.audio.count)]


def replace_padding(array, lengths, draw, high):
    padding = np.arange(array.shape[1]) >= np.array(lengths)[:, None]
    return tf.constant(np.where(padding, draw.integers(0, high, array.shape), array).astype(np.int32))


def test_the_text_and_the_prompt_are_heard(small):
    batch = make_batch()
    changed = batch._replace(text_BT=tf.constant(np.where(batch.text_BT == batch.text_BT[0, 2], 3, batch.text_BT)))
    louder = batch._replace(mel_BFM=batch.mel_BFM + tf.range(20.0)[None, :, None])
    assert len({float(small.compute_losses(each).audio.total) for each in (batch, changed, louder)}) == 3


def test_the_content_of_padding_changes_no_bit(small):
    batch = make_batch()
    draw = np.random.default_rng(9)
    other = batch._replace(
        text_BT=replace_padding(batch.text_BT, TEXT_LENGTHS, draw, 30),
        codes_BM=replace_padding(batch.codes_BM, CODE_LENGTHS, draw, 20),
    )
    assert not np.array_equal(other.text_BT, batch.text_BT)
    assert not np.array_equal(other.codes_BM, batch.codes_BM)
    assert read_sums(small.compute_losses(batch)) == read_sums(small.compute_losses(other))


def test_the_amount_of_padding_changes_next_to_nothing(small):
    tight, wide = (
        small.compute_losses(make_batch(tokens=7, codes=12)),
        small.compute_losses(make_batch(tokens=20, codes=30)),
    )
    assert read_sums(tight) == pytest.approx(read_sums(wide), rel=1e-6)
    assert float(tight.weigh()) == pytest.approx(float(wide.weigh()), abs=1e-5)


def test_every_token_and_four_stops_per_clip_count(small):
    losses = small.compute_losses(make_batch())
    assert float(losses.text.count) == sum(TEXT_LENGTHS) + 3
    assert float(losses.audio.count) == sum(CODE_LENGTHS) + 4 * 3


def compute_audio_logits(gpt, batch):
    return gpt.compute_logits(gpt.make_prompt(batch.mel_BFM), *gpt.frame(batch))[1].numpy()


def test_a_later_code_changes_no_earlier_logit(small):
    batch = make_batch()
    codes = batch.codes_BM.numpy()
    codes[1, 8] = (codes[1, 8] + 1) % 20
    before, after = (
        compute_audio_logits(small, batch),
        compute_audio_logits(small, batch._replace(codes_BM=tf.constant(codes))),
    )
    # Code 8 is the input of position 9.
    np.testing.assert_array_equal(before[1, :9], after[1, :9])
    assert np.all(np.any(before[1, 9:] != after[1, 9:], -1))
    np.testing.assert_array_equal(before[[0, 2]], after[[0, 2]])


@pytest.mark.parametrize(
    ("sizes", "what"), [({"tokens": 25}, "A text may have 24 tokens"), ({"codes": 39}, "A clip may have 38 codes")]
)
def test_what_exceeds_the_position_tables_is_refused(small, sizes, what):
    with pytest.raises(SequenceTooLongError, match=what):
        small.compute_losses(make_batch(**sizes))
