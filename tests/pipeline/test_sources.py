"""The same batches by three ways, each in a process of its own: values, places, and what is left behind."""

from pathlib import Path
from typing import Any

import pytest

from tests.pipeline.small_runs import damage_clip, make_production, make_run_folder, run_source

@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run whose corpus was scanned when all was well. Now one clip is damaged."""
    folder = make_run_folder(tmp_path_factory.mktemp("run"))
    data, _ = make_production(folder)
    damage_clip(data.train.find_file(int(data.sampler.make_batch(3).clips[1])))
    return folder


@pytest.fixture(scope="module")
def reference(folder: Path) -> dict[str, Any]:
    return run_source(folder, "single")


def list_values(told: dict[str, Any]) -> list[Any]:
    """All that must be the same in every mode."""
    return [{key: value for key, value in batch.items() if key != "devices"} for batch in told["batches"]]


def test_the_stream_is_train_and_validation_in_order(reference: dict[str, Any]) -> None:
    facts = [batch["facts"] for batch in reference["batches"]]
    assert [fact[0] for fact in facts] == list(range(len(facts)))
    kinds = "".join(fact[1][0] for fact in facts)
    rounds = kinds.count("v") // 2
    assert kinds == "t" * 5 + "v" * rounds + "t" * 4 + "v" * rounds
    assert len({batch["arrays"]["codes_BM"][2] for batch in reference["batches"]}) > 8


def test_a_damaged_clip_is_replaced_and_reported(reference: dict[str, Any], folder: Path) -> None:
    replaced = [failure for batch in reference["batches"] for failure in batch["replaced"]]
    assert replaced
    assert replaced[0][0] == 3
    step_3 = next(batch for batch in reference["batches"] if batch["facts"][1:3] == ["train", 3])
    assert replaced[0][2] not in step_3["clips"]
    assert len(reference["drops"]) == len(replaced)
    assert reference["drops"][0][1] in reference["log"]


WAYS = {
    "dual": ("dual", {}),
    "isolated": ("isolated", {}),
    "single, asynchronous, cached in memory": (
        "single",
        {"asynchronous": True, "sections": {"data": {"cache": "memory"}}},
    ),
    "dual, asynchronous, cached on disk, two rows at a time": (
        "dual",
        {"asynchronous": True, "rows_at_a_time": 2, "sections": {"data": {"cache": "disk", "num_workers": 0}}},
    ),
    "dual, waiting on the host, cache chosen": (
        "dual",
        {"sections": {"data": {"cache": "auto", "prefetch_to_gpu": False}}},
    ),
    "isolated, asynchronous, killed twice": ("isolated", {"asynchronous": True, "kill_at": [2, 6]}),
}


@pytest.mark.parametrize("way", WAYS)
def test_every_way_gives_the_same_bits(way: str, folder: Path, reference: dict[str, Any]) -> None:
    mode, options = WAYS[way]
    told = run_source(folder, mode, **options)
    assert list_values(told) == list_values(reference)
    assert told["drops"] == reference["drops"]
    assert told["left_behind"] == []
    assert told["meters"][2] == 0, "traced after warm-up"
    device = f"/job:localhost/replica:0/task:0/device:{told['model_device'].removeprefix('/')}"
    assert {tuple(batch["devices"]) for batch in told["batches"]} == {(device,)}
    assert {name: items for name, items, _ in told["stages"]}["prepare"] >= len(told["batches"])
    assert [event[0] for event in told["events"]].count("died") == len(options.get("kill_at", []))
    hits = told["meters"][0]
    assert ("cache" in way and way != "dual, waiting on the host, cache chosen") == (hits > 0)


def test_a_resumed_stream_goes_on_with_the_same_batches(folder: Path, reference: dict[str, Any]) -> None:
    told = run_source(folder, "dual", first_step=3)
    first = told["batches"][0]["facts"][0]
    assert first == 3
    assert list_values(told) == list_values(reference)[first:]


def test_a_codec_is_trained_on_the_same_mels_in_every_mode(folder: Path) -> None:
    told = [run_source(folder, mode, target="codec", end_step=4) for mode in ("single", "isolated")]
    assert list_values(told[0]) == list_values(told[1])
    assert set(told[0]["batches"][0]["arrays"]) == {"mel_BFM", "frame_lengths_B", "weights_B", "totals_2"}


def test_the_log_says_what_is_in_force(folder: Path, reference: dict[str, Any]) -> None:
    told = run_source(folder, "isolated", end_step=2)
    for line in (
        "Intelligent GPU Pipeline: Multi-GPU Mode",
        "Smart Prefetching: Enabled",
        "Multi-GPU Mode: Waiting up to 2.0s for data pipeline to warm up...",
        "Model training starting now",
        "Buffer Size: 50",
        "TF-native loading is not in force",
        "Codes are not kept. --cache is off.",
    ):
        assert line in told["log"], line
    assert "Single-GPU Buffered Mode" in reference["log"]
    assert "Waiting up to" not in reference["log"]
