import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from myxtts.data.buckets import Bucket, BucketPlan, PaddingWaste, plan_buckets
from myxtts.data.sampler import IndexSampler
from tests.data.test_buckets import lengths, make_ljspeech_lengths


@st.composite
def samplers(draw):
    samples, tokens = draw(lengths)
    plan = plan_buckets(samples, tokens, batch_size=draw(st.integers(1, 12)))
    return IndexSampler(plan, seed=draw(st.integers(0, 2**63 - 1)), accumulation=draw(st.integers(1, 5)))


def copy_sampler(sampler: IndexSampler, **changes) -> IndexSampler:
    settings = {"seed": sampler.seed, "accumulation": sampler.accumulation} | changes
    return IndexSampler(sampler.plan, **settings)


def list_rows(batch) -> list[list[int]]:
    return [micro_batch.clips.tolist() for micro_batch in batch.micro_batches]


@given(samplers(), st.integers(0, 10**6))
def test_an_epoch_sees_every_clip_exactly_once(sampler, epoch):
    steps = range(epoch * sampler.steps_per_epoch, (epoch + 1) * sampler.steps_per_epoch)
    batches = [sampler.make_batch(step) for step in steps]
    clips = np.concatenate([batch.clips for batch in batches])
    assert sorted(clips.tolist()) == list(range(len(sampler.plan.bucket_of_clip)))
    assert {batch.epoch for batch in batches} == {epoch}


@given(samplers(), st.integers(2, 5))
def test_accumulation_only_groups_the_same_micro_batches(sampler, accumulation):
    single, grouped = copy_sampler(sampler, accumulation=1), copy_sampler(sampler, accumulation=accumulation)

    def epoch(each: IndexSampler) -> list[list[int]]:
        return [rows for step in range(each.steps_per_epoch) for rows in list_rows(each.make_batch(step))]

    assert epoch(grouped) == epoch(single)
    rows = [micro_batch.first_row for micro_batch in grouped.make_batch(0).micro_batches]
    assert rows == np.cumsum([0, *(len(clips) for clips in list_rows(grouped.make_batch(0))[:-1])]).tolist()


def test_epochs_and_seeds_shuffle_differently():
    plan = plan_buckets(*make_ljspeech_lengths(400), batch_size=8)
    sampler = IndexSampler(plan, seed=1)

    def clips(each: IndexSampler, epoch: int) -> list[list[int]]:
        return [list_rows(each.make_batch(epoch * each.steps_per_epoch + i)) for i in range(each.steps_per_epoch)]

    assert clips(sampler, 0) != clips(sampler, 1)
    assert clips(sampler, 0) != clips(IndexSampler(plan, seed=2), 0)
    # Not only the batches' order but also who is beside whom, and not only that but also which bucket's turn it is.
    assert {frozenset(rows[0]) for rows in clips(sampler, 0)}.isdisjoint(frozenset(r[0]) for r in clips(sampler, 1))
    turns = [
        [sampler.make_batch(epoch * sampler.steps_per_epoch + i).micro_batches[0].bucket_number for i in range(20)]
        for epoch in (0, 1)
    ]
    assert turns[0] != turns[1]


def test_the_order_never_changes_between_versions():
    # Saved runs depend on it.
    plan = BucketPlan(
        buckets=(Bucket(3, 4096, 8), Bucket(2, 8192, 8)),
        bucket_of_clip=np.array([0, 1, 0, 1, 0, 0, 1, 0, 0], dtype=np.uint8),
        batches_of_bucket=(2, 2),
        waste=PaddingWaste(1, 1, 1, 1),
    )
    sampler = IndexSampler(plan, seed=42)
    assert [list_rows(sampler.make_batch(step))[0] for step in range(8)] == [
        [0, 4, 5], [3, -1], [1, 6], [7, 8, 2], [6, 1], [4, 5, 2], [8, 0, 7], [3, -1],
    ]  # fmt: skip
