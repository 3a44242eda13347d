"""What is prepared for a clip depends on that clip alone."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from myxtts.audio.units import MAX_SLICE_SAMPLES, SAMPLES_PER_CODE
from myxtts.data.host_batch import HostBatch
from myxtts.data.sampler import EMPTY_ROW
from myxtts.pipeline.batch_factory import BatchFactory
from myxtts.pipeline.batch_facts import BatchFacts, parse_failures
from myxtts.pipeline.batch_meters import BatchMeters
from myxtts.pipeline.batch_spans import parse_spans
from myxtts.pipeline.order import Kind
from myxtts.pipeline.preparation import Prepared
from myxtts.pipeline.preparation_settings import Target
from myxtts.pipeline.production import Production
from tests.pipeline.small_runs import make_production, make_run_folder

Run = tuple[Any, Production]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_run_folder(tmp_path_factory.mktemp("run"), clips=16)


@pytest.fixture(scope="module")
def run(folder: Path) -> Run:
    return make_production(folder, data={"num_workers": 0, "batch_size": 5})


def make_batches(run: Run, count: int = 4, **preparation: Any) -> list[Prepared]:
    data, production = run
    settings = replace(production.preparation, **preparation)
    factory = BatchFactory(data, replace(production, preparation=settings), "/CPU:0")
    try:
        return [factory.fetch(factory.make(number)) for number in range(count)]
    finally:
        factory.close()


def read_values(batch: Prepared) -> dict[str, Any]:
    return {name: array.tolist() for name, array in batch.items() if name not in ("meters_N", "moments_22", "memory_3")}


@pytest.fixture(scope="module")
def batches(run: Run) -> list[Prepared]:
    return make_batches(run, 6)


def test_arrays_have_the_shapes_and_types_of_the_contract(run: Run, batches: list[Prepared]) -> None:
    data, production = run
    for batch in batches:
        facts = BatchFacts.parse(batch["facts_N"])
        bucket = data.sampler.plan.buckets[facts.bucket_number]
        frames = 1 + production.preparation.prompt_samples // 256
        shapes = {name: (array.dtype.name, array.shape) for name, array in batch.items()}
        rows, codes = bucket.rows, bucket.samples // SAMPLES_PER_CODE
        assert shapes["mel_BFM"] == ("float32", (rows, frames, 80))
        assert shapes["codes_BM"] == ("int32", (rows, codes))
        assert shapes["text_BT"] == ("int32", (rows, bucket.tokens))
        assert shapes["spans_B2"] == ("int32", (rows, 2))
        assert shapes["totals_2"] == ("float32", (2,))
        for name in ("text_lengths_B", "code_lengths_B", "clips_B"):
            assert shapes[name] == ("int32", (rows,)), name
        assert facts.clips == np.count_nonzero(batch["weights_B"])


def test_preparing_lasts_until_a_batch_is_really_made(run: Run) -> None:
    data, production = run
    factory = BatchFactory(data, production, "/CPU:0")
    try:
        made = factory.make(0)
        read, told = parse_spans(made["moments_22"])
        factory.settle(made)
        settled = parse_spans(made["moments_22"])[1]
        fetched = factory.fetch(made)
    finally:
        factory.close()
    done = parse_spans(fetched["moments_22"])[1]
    assert told.began_s == read.ended_s
    assert told.began_s == settled.began_s == done.began_s
    assert told.ended_s < settled.ended_s < done.ended_s
    meters = BatchMeters.parse(fetched["meters_N"])
    assert meters.read_s == pytest.approx(read.seconds)
    assert meters.prepare_s == pytest.approx(done.seconds)


def test_totals_are_those_of_the_global_batch(run: Run, folder: Path) -> None:
    data, production = make_production(
        folder,
        data={"num_workers": 0, "batch_size": 3, "prompt_seconds": 6.0, "prompt_from": "clip"},
        training={"gradient_accumulation_steps": 2},
    )
    for blank in (False, True):
        batches = make_batches((data, production), 2, blank_prompt=blank)
        text = sum(int(np.sum((batch["text_lengths_B"] + 1) * batch["weights_B"])) for batch in batches)
        audio = sum(int(np.sum((batch["code_lengths_B"] + 4) * batch["weights_B"])) for batch in batches)
        bounds = [batch["spans_B2"] // SAMPLES_PER_CODE for batch in batches]
        prompt = sum(int(np.sum(bound[:, 1] - bound[:, 0])) for bound in bounds)
        assert prompt > 0
        for batch in batches:
            assert batch["totals_2"].tolist() == [text, audio - (prompt if blank else 0)]


def test_rows_at_a_time_change_nothing(run: Run, batches: list[Prepared]) -> None:
    for rows in (1, 2):
        made = make_batches(run, 3, rows_at_a_time=rows)
        assert list(map(read_values, made)) == list(map(read_values, batches[:3]))


def crowd(host: HostBatch, row: int, extra_codes: int) -> HostBatch:
    """The batch with noise of full length in all rows but one, in a bucket that is longer by so many codes."""
    samples = host.wav_BS.shape[1] + extra_codes * SAMPLES_PER_CODE
    assert host.prompt_BS is not None
    noise = np.random.default_rng(row).normal(scale=0.3, size=(2, host.rows, samples)).astype(np.float32)
    for crowded_BS, own_BS in zip(noise, (host.wav_BS, host.prompt_BS), strict=True):
        crowded_BS[row] = 0
        crowded_BS[row, : own_BS.shape[1]] = own_BS[row]
    lengths_B = np.where(np.arange(host.rows) == row, host.wav_lengths_B, samples).astype(np.int32)
    return replace(host, wav_BS=noise[0], prompt_BS=noise[1], wav_lengths_B=lengths_B)


def read_row(batch: Prepared, row: int) -> tuple[list[int], list[list[float]]]:
    """Codes and mel of a row."""
    length = int(batch["code_lengths_B"][row])
    assert not batch["codes_BM"][row, length:].any()
    return batch["codes_BM"][row, :length].tolist(), np.asarray(batch["mel_BFM"])[row].tolist()


def test_neighbours_and_bucket_change_nothing(run: Run, batches: list[Prepared]) -> None:
    data, production = run
    factory = BatchFactory(data, production, "/CPU:0")
    before = [read_row(batches[0], row) for row in range(len(batches[0]["clips_B"]))]
    assert all(len(set(codes)) > 3 for codes, _ in before), "codes that are all alike would be equal anyway"
    try:
        item = factory._host.read(0)
        totals = factory._count_totals(item)
        for row, extra_codes in zip(range(item.host.rows), (0, 1, 17, 40), strict=True):
            host = crowd(item.host, row, extra_codes)
            prepared = factory.preparer.prepare(host, Kind.TRAIN, totals)
            after = [read_row(prepared, each) for each in range(host.rows)]
            assert after[row] == before[row]
            others = [each for each in range(host.rows) if each != row]
            assert all(after[each] != before[each] for each in others), "the neighbours are others now"
    finally:
        factory.close()


def test_empty_rows_hold_nothing(run: Run) -> None:
    short = [batch for batch in make_batches(run, 8) if (batch["weights_B"] == 0).any()]
    assert short
    for batch in short:
        empty = batch["weights_B"] == 0
        assert not batch["codes_BM"][empty].any()
        assert not batch["code_lengths_B"][empty].any()
        assert (batch["clips_B"][empty] == -1).all()


@pytest.fixture
def cached_factory(run: Run, tmp_path: Path) -> Iterator[BatchFactory]:
    data, production = run
    config = production.config.replace(data={"cache": "disk"})
    factory = BatchFactory(data, replace(production, config=config, cache_folder=tmp_path / "features"), "/CPU:0")
    factory.warm_up()
    yield factory
    factory.close()


def test_cached_codes_are_the_same(cached_factory: BatchFactory, batches: list[Prepared]) -> None:
    first = [cached_factory.fetch(cached_factory.make(number)) for number in range(4)]
    again = [cached_factory.fetch(cached_factory.make(number)) for number in range(4)]
    assert list(map(read_values, first)) == list(map(read_values, again)) == list(map(read_values, batches[:4]))
    hits = [batch["meters_N"][3] for batch in again]
    assert hits == [(batch["weights_B"] > 0).sum() for batch in again]
    assert all(batch["meters_N"][5] == 0 for batch in first + again), "traced after warm-up"


def test_augmentation_changes_training_but_not_validation(run: Run, folder: Path, batches: list[Prepared]) -> None:
    data, production = make_production(
        folder,
        data={
            "num_workers": 0, "batch_size": 5, "augment_gain_db": 6.0, "augment_noise_db": -40.0, "augment_speed": 0.1,
            "augment_frame_masks": 1, "augment_band_masks": 1,
        },
    )  # fmt: skip
    changed = make_batches((data, production), 6)
    for plain, batch in zip(batches, changed, strict=True):
        facts = BatchFacts.parse(batch["facts_N"])
        if facts.kind is Kind.VALIDATION:
            assert read_values(batch) == read_values(plain)
            continue
        assert batch["mel_BFM"].tolist() != plain["mel_BFM"].tolist()
        assert (batch["code_lengths_B"] != plain["code_lengths_B"]).any()
        assert batch["codes_BM"].shape[1] > plain["codes_BM"].shape[1]
        assert batch["totals_2"][1] == np.sum((batch["code_lengths_B"] + 4) * batch["weights_B"])
        ends = batch["spans_B2"][:, 1]
        assert (ends <= batch["code_lengths_B"] * SAMPLES_PER_CODE).all()
    assert {BatchFacts.parse(batch["facts_N"]).kind for batch in changed} == set(Kind)


def test_codec_batches_hold_mels_and_count_frames(folder: Path) -> None:
    data, production = make_production(folder, Target.CODEC, data={"num_workers": 0, "batch_size": 5})
    for batch in make_batches((data, production), 2):
        bucket = data.sampler.plan.buckets[BatchFacts.parse(batch["facts_N"]).bucket_number]
        assert batch["mel_BFM"].shape == (bucket.rows, bucket.samples // 256, 80)
        assert batch["mel_BFM"].shape[1] % 4 == 0
        assert batch["totals_2"].tolist() == [batch["frame_lengths_B"].sum()] * 2
        assert (batch["frame_lengths_B"] <= batch["mel_BFM"].shape[1]).all()


def test_a_replaced_batch_has_other_clips_and_prompts_and_comes_again_with_its_failures(run: Run) -> None:
    data, production = run
    factory = BatchFactory(data, production, "/CPU:0")
    try:
        others = [factory.make(number) for number in (0, 2)]
        before = factory.make(1)
        names = factory.replace_batch(1, "a test says so")
        after, unchanged = factory.make(1), [factory.make(number) for number in (0, 2)]
    finally:
        factory.close()
    clips = before["clips_B"][before["clips_B"] != EMPTY_ROW].tolist()
    assert names == [data.train.audio[clip] for clip in clips]
    assert not {*names} & {data.train.audio[clip] for clip in after["clips_B"] if clip != EMPTY_ROW}
    failures = parse_failures(after["replaced_R3"])
    assert [failure.step for failure in failures] == [1] * len(names)
    for old, new in zip(others, unchanged, strict=True):
        np.testing.assert_array_equal(old["codes_BM"], new["codes_BM"])
        np.testing.assert_array_equal(old["mel_BFM"], new["mel_BFM"])

    resumed = BatchFactory(data, replace(production, first_step=1, failures=failures), "/CPU:0")
    try:
        twin = resumed.make(1)
    finally:
        resumed.close()
    for name in ("clips_B", "mel_BFM", "codes_BM", "totals_2", "replaced_R3"):
        np.testing.assert_array_equal(twin[name], after[name])


def test_prompts_are_cut_to_the_longest_allowed(run: Run) -> None:
    short, long = make_batches(run, 1, prompt_samples=8192), make_batches(run, 1, prompt_samples=MAX_SLICE_SAMPLES)
    lengths = [np.diff(batches[0]["spans_B2"])[:, 0] for batches in (short, long)]
    assert lengths[0].max() == 8192
    assert lengths[0].tolist() == np.minimum(lengths[1], 8192).tolist()
    assert short[0]["mel_BFM"].shape[1] == 33
