import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from myxtts.data.buckets import (
    FEW_BUCKETS,
    MAX_BUCKETS,
    SAMPLES_STEP,
    TOKENS_STEP,
    LengthTable,
    assign_buckets,
    list_sample_edges,
    plan_buckets,
    plan_shared_buckets,
)
from myxtts.data.sampler import EMPTY_ROW, IndexSampler

lengths = st.lists(
    st.tuples(st.integers(1, 300_000), st.integers(1, 250)),
    min_size=1,
    max_size=120,
).map(lambda pairs: np.array(pairs, dtype=np.int64).T)


def make_ljspeech_lengths(clips: int) -> tuple[np.ndarray, np.ndarray]:
    """Lengths as LJSpeech has them: 1.1 to 10.1 s, 6.6 s on average, most of them long; about 6 tokens a second."""
    random = np.random.default_rng(7)
    seconds = np.clip(10.1 - random.gamma(1.9, 1.9, clips), 1.1, 10.1)
    tokens = np.maximum(3, seconds * 6 * np.exp(random.normal(0, 0.15, clips)))
    return (seconds * 22050).astype(np.int64), tokens.astype(np.int64)


@given(lengths, st.integers(1, 40))
def test_shapes_hold_every_clip_and_no_batch_more_than_the_usual_one(lengths, batch_size):
    samples, tokens = lengths
    plan = plan_buckets(samples, tokens, batch_size=batch_size)
    shapes = np.array([[b.rows, b.samples, b.tokens] for b in plan.buckets])
    assert np.all(shapes[plan.bucket_of_clip, 1] >= samples)
    assert np.all(shapes[plan.bucket_of_clip, 2] >= tokens)
    assert np.all(np.diff(shapes[:, 1:], axis=0) >= 0)
    assert np.all(np.diff(shapes[:, 0]) <= 0)
    assert np.all(shapes[:, 0] <= batch_size)
    assert np.all(shapes[:, 1] % SAMPLES_STEP == 0)
    assert np.all(shapes[:, 2] % TOKENS_STEP == 0)
    assert len(plan.buckets) <= MAX_BUCKETS + 1
    usual = next(b for b in plan.buckets if b.samples >= np.sort(samples)[(len(samples) - 1) // 2])
    assert all(b.rows * b.samples <= batch_size * usual.samples or b.rows == 1 for b in plan.buckets)
    rows = plan.batches_of_bucket * shapes[:, 0]
    assert 0 <= rows.sum() - len(samples) < plan.buckets[-1].rows, "at most one batch is short"
    assert all(plan.batches_of_bucket)
    assert plan.waste.audio_share == pytest.approx(1 - samples.sum() / (rows @ shapes[:, 1]))


@given(st.lists(st.integers(1, 9), min_size=1, max_size=7, unique=True).map(sorted), st.data())
def test_edges_waste_as_little_as_any(lengths, data):
    from itertools import combinations

    clips = [data.draw(st.integers(1, 5)) for _ in lengths]
    table = LengthTable(np.array(lengths), np.array([8]), np.array(clips)[:, None])
    for count, edges in enumerate(list_sample_edges(table, 4), start=1):
        choices = [(*chosen, lengths[-1]) for chosen in combinations(lengths[:-1], count - 1)]
        cost = {
            choice: sum(n * min(e for e in choice if e >= length) for length, n in zip(lengths, clips, strict=True))
            for choice in choices
        }
        assert cost[tuple(edges.tolist())] == min(cost.values())


@pytest.mark.parametrize("batch_size", [4, 8, 16, 32])
def test_padding_is_below_a_tenth_on_ljspeech_lengths(batch_size):
    plan = plan_buckets(*make_ljspeech_lengths(13_100), batch_size=batch_size)
    assert plan.waste.audio_share < 0.10
    assert plan.waste.sequence_share < 0.15
    assert len(plan.buckets) <= 13


def test_a_model_of_many_layers_gets_a_handful_of_shapes():
    lengths = make_ljspeech_lengths(5000)
    few, many = (plan_shared_buckets([lengths], batch_size=16, layers=layers)[0] for layers in (30, 4))
    assert len(few.buckets) <= FEW_BUCKETS + 1 < len(many.buckets)
    assert few.waste.padded_samples < 1.2 * many.waste.padded_samples


def test_one_long_text_does_not_lengthen_every_batch():
    samples, tokens = make_ljspeech_lengths(5_000)
    before = plan_buckets(samples, tokens, batch_size=8)
    tokens[np.argmin(samples)] = 200
    after = plan_buckets(samples, tokens, batch_size=8)
    assert after.buckets[-1].tokens == 200
    assert after.buckets[-2].tokens < 120
    assert after.waste.text_share < before.waste.text_share + 0.02


@given(lengths, st.integers(1, 20), st.data())
def test_every_clip_of_a_part_fits_its_bucket_and_is_batched(lengths, batch_size, data):
    samples, tokens = lengths
    cut = data.draw(st.integers(1, max(1, len(samples) - 1)))
    parts = [(samples[:cut], tokens[:cut]), (samples[cut:], tokens[cut:])][: 1 + (cut < len(samples))]
    plans = plan_shared_buckets(parts, batch_size=batch_size)
    assert len({plan.buckets for plan in plans}) == 1
    assert all(map(any, zip(*(plan.batches_of_bucket for plan in plans), strict=True))), "a shape that nobody needs"
    for (part_samples, part_tokens), plan in zip(parts, plans, strict=True):
        shapes = np.array([[b.rows, b.samples, b.tokens] for b in plan.buckets])
        sampler = IndexSampler(plan, seed=3)
        batches = [sampler.make_batch(step).micro_batches[0] for step in range(sampler.steps_per_epoch)]
        for batch in batches:
            clips = batch.clips[batch.clips != EMPTY_ROW]
            assert len(clips) > 0
            assert len(batch.clips) == batch.bucket.rows
            assert np.all(part_samples[clips] <= batch.bucket.samples)
            assert np.all(part_tokens[clips] <= batch.bucket.tokens)
        batched = sorted(clip for batch in batches for clip in batch.clips if clip != EMPTY_ROW)
        assert batched == list(range(len(part_samples)))
        rows = sum(n * b.rows for n, b in zip(plan.batches_of_bucket, plan.buckets, strict=True))
        assert rows - len(part_samples) < shapes[np.flatnonzero(plan.batches_of_bucket)[-1], 0]


def test_the_last_batches_share_their_clips_out_instead_of_filling_up_with_empty_rows():
    samples, validation = np.array([50_000] * 32 + [70_000] * 19), np.array([70_000] * 3)
    parts = [(each, np.full(len(each), 9)) for each in (samples, validation)]
    alone = plan_buckets(*parts[0], batch_size=16)
    assert [(bucket.rows, count) for bucket, count in zip(alone.buckets, alone.batches_of_bucket, strict=True)] == [
        (16, 2),
        (11, 2),
    ]
    plan, other = plan_shared_buckets(parts, batch_size=16)
    assert [bucket.rows for bucket in plan.buckets] == [16, 10], "19 clips in two batches"
    assert (plan.batches_of_bucket, other.batches_of_bucket) == ((2, 2), (0, 1))


def test_a_few_short_clips_are_not_padded_to_the_longest_shape():
    samples, tokens = make_ljspeech_lengths(1_000)
    buckets = plan_buckets(samples, tokens, batch_size=8).buckets
    plan = assign_buckets(buckets, np.array([30_000, 31_000]), np.array([9, 9]))
    (number,) = np.flatnonzero(plan.batches_of_bucket)
    assert number == plan.bucket_of_clip.max() < len(buckets) - 1
    assert plan.buckets == buckets
