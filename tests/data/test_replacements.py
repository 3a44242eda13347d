import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from myxtts.data.buckets import plan_buckets
from myxtts.data.sampler import EMPTY_ROW, Failure, IndexSampler, ReplacementJournal, replace_failed
from tests.data.test_buckets import make_ljspeech_lengths
from tests.data.test_sampler import copy_sampler, list_rows, samplers


def make_sampler(clips: int = 300) -> IndexSampler:
    return IndexSampler(plan_buckets(*make_ljspeech_lengths(clips), batch_size=8), seed=5, accumulation=2)


def find_clip(sampler: IndexSampler, step: int, row: int) -> int:
    return int(np.concatenate(list_rows(sampler.make_batch(step)))[row])


def test_a_failed_clip_gives_way_to_one_of_its_bucket_and_only_there():
    sampler = make_sampler()
    journal = ReplacementJournal([Failure(step=3, row=1, clip=find_clip(sampler, 3, 1))])
    before, other = sampler.make_batch(3), sampler.make_batch(4)
    after = replace_failed(before, sampler, journal)
    changed = [
        (i, row)
        for i, (old, new) in enumerate(zip(list_rows(before), list_rows(after), strict=True))
        for row in range(len(old))
        if old[row] != new[row]
    ]
    assert changed == [(0, 1)]
    substitute = list_rows(after)[0][1]
    assert sampler.plan.bucket_of_clip[substitute] == before.micro_batches[0].bucket_number
    assert substitute not in before.clips
    assert list_rows(replace_failed(other, sampler, journal)) == list_rows(other)


@given(samplers(), st.integers(0, 50), st.randoms())
def test_the_result_depends_on_the_failures_not_on_who_found_them_when(sampler, step, random):
    rows = len(np.concatenate(list_rows(sampler.make_batch(step))))
    failures = []
    journal = ReplacementJournal()
    # As a reader would: read the batch, note what fails, read the substitutes, note what fails of those.
    for _ in range(3):
        clips = np.concatenate(list_rows(replace_failed(sampler.make_batch(step), sampler, journal))).tolist()
        for row in range(rows):
            if clips[row] != EMPTY_ROW and random.random() < 0.3:
                failures.append(Failure(step, row, clips[row]))
                journal.record(failures[-1])
    expected = list_rows(replace_failed(sampler.make_batch(step), sampler, journal))
    random.shuffle(failures)
    other = copy_sampler(sampler)
    joined = ReplacementJournal([*failures, *failures])
    assert list_rows(replace_failed(other.make_batch(step), other, joined)) == expected
    assert joined.list_failures() == journal.list_failures() == sorted(set(failures))
